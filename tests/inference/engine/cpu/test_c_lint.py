"""A linter for our own C: memory, sizes and aliases, which no compiler warning covers as these kernels need it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lmtool.inference.engine.cpu import library

FILES = sorted(Path(library.__file__).parent.glob("*.[ch]"))
NARROWED = {
    "kernels.c": {
        "team = (int)count": "number of threads, which the engine bounds by the processors",
        "(int)(walk->end - walk->start)": "below SPAN / BLOCK in this branch",
        "(int32_t)(position - start)": "both are positions of one text, below 2^24",
        "(int32_t)window": "tokens of a sliding window, below 2^24",
    },
    "sampling.c": {
        "(int32_t)bits": "a word of a mask, not a size",
        "(int32_t)(WORD * i + j)": "a token id, below `max_vocabulary`",
        "(int32_t)v->cut->last": "a token id",
        "(int32_t)(rank < 0 ? INT32_MIN - rank : rank)": "the bits of a float",
        "(int)one->mask_logits": "0 or 1",
        "(int32_t)one->token": "a token id",
        "(int32_t)likeliest(&v, one->highest)": "a token id",
    },
    "kernels.h": {"(int32_t)quick_sum": "a sum of products of bytes"},
    "quantized.c": {
        "(int32_t)((uint32_t)sums[1] << 16 | (uint16_t)sums[0])": "two sums of bytes in one word",
        "(int)q[i]": "a byte",
        "(int)q[i + GROUP / 2]": "a byte",
    },
}
"""Casts to 32 bits, and why the value fits: a size or an offset that is cut off writes into foreign memory."""
LENGTHS = {
    "count * size * QUERIES": "queries of a task, at most SPAN of them by the batch's plan, times a head's size",
    "count": "groups of QUERIES queries of a task",
    "size": "numbers of one block of a format, at most 256",
    "job->tokens * WIDTH": "at most TOGETHER rows of a tile",
    "rows * words": "at most ROWS rows of a layer's inputs: 1.3 MB for the widest model known",
}
"""Arrays on the stack whose length is computed, and what bounds it."""
BOUNDED_LOOPS = {
    ("kernels.c", "count"): "at most SPAN",
    ("kernels.c", "walk->blocks"): "at most SPAN / BLOCK",
    ("kernels.c", "walk->blocks * BLOCK"): "at most SPAN",
    ("kernels.c", "3 && qkv[i].outputs"): "at most 3",
}
"""Bounds of loops that count in 32 bits, and why they fit."""
EXPORTED = re.compile(r"^(?!static|INLINE|typedef|struct|#)(?:const )?\w+ \*?(\w+)\(([^)]*)\) \{", re.MULTILINE)
IMPORTED_TYPES = re.compile(r"(const )?(\w+ \*|int64_t |float |void)")


def code(file: Path) -> str:
    """The source without comments and strings."""
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', file.read_text(encoding="utf-8"))
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
class TestSource:
    """Each file of the kernels."""

    def test_allocates_nothing(self, file: Path) -> None:
        """Memory comes from the caller: an allocation in a kernel can fail in the middle of a step."""
        assert not re.findall(r"\b(?:m|c|re)alloc\(|\balloca\(|\bfree\(|\baligned_alloc\(|\bmmap\(", code(file))

    def test_has_no_arrays_of_a_callers_length(self, file: Path) -> None:
        """Arrays on the stack have constant lengths, or stand in the list above with their bound."""
        arrays = re.findall(r"^\s+(?:\w+ )+(\w+)\[([^\]]+)\](?:\[[^\]]+\])*(?: = [^;]+)?;", code(file), re.MULTILINE)
        caller = re.compile(r"->|\b(?:count|tokens|inputs|outputs|rows|vocabulary|width|size|words)\b")
        for name, size in arrays:
            assert size in LENGTHS or not caller.search(size), (name, size)

    def test_narrows_no_size(self, file: Path) -> None:
        """A cast to 32 bits stands in the list above, with the reason why the value fits."""
        text = code(file)
        known = NARROWED.get(file.name, {})
        assert not [each for each in known if each not in text], "remove what is gone"
        for each in known:
            text = text.replace(each, "")
        assert not re.findall(r"\((?:unsigned|u?int|u?int32_t|size_t)\)[^;,]*", text)

    def test_counts_in_64_bits(self, file: Path) -> None:
        """What Python passes is a pointer, a 64-bit number or a float: ctypes converts without a check."""
        for name, parameters in EXPORTED.findall(code(file)):
            for parameter in re.split(r",\s*", " ".join(parameters.split())):
                assert IMPORTED_TYPES.match(parameter), f"{name}: {parameter}"

    def test_promises_no_aliases(self, file: Path) -> None:
        """No `restrict`: epilogues add to their own input, and the compiler would believe otherwise."""
        assert "restrict" not in code(file)

    def test_counts_up_to_a_caller_s_number_in_64_bits(self, file: Path) -> None:
        """A loop over a length that the caller gives has a counter that cannot overflow before it ends."""
        narrow = re.findall(r"for \((?:const )?(?:int|int32_t|unsigned) (\w+) = [^;]*; \1 <=? ([^;]+);", code(file))
        caller = re.compile(r"->|\b(?:count|tokens|tiles|inputs|outputs|vocabulary|size|blocks|queries)\b")
        assert not [
            bound for _, bound in narrow if caller.search(bound) and (file.name, bound.strip()) not in BOUNDED_LOOPS
        ]
