"""How peers are named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lmtool.core.errors import ResourceError, UsageError
from lmtool.measure.bench.contestants import Contestant, contestants
from tests.net.subprocesses.test_foreign_python import program

OURS = Contestant("lmtool", "float32", sys.executable)


def test_ours_is_always_first() -> None:
    """Also where it is named again, or alone."""
    assert contestants(["none"], "float32") == ([OURS], [])
    found, _ = contestants(["transformers", "lmtool:int8", "lmtool"], "float32")
    assert [one.name for one in found] == ["lmtool:float32", "transformers:float32", "lmtool:int8"]


def test_a_word_says_dtype_and_python() -> None:
    """`NAME:DTYPE=PYTHON`; the dtype of all where it says none."""
    words = [f"transformers:int8={sys.executable}", f"transformers-cb={sys.executable}"]
    found, _ = contestants(words, "bfloat16")
    assert [(one.name, one.python) for one in found[1:]] == [
        ("transformers:int8", sys.executable),
        ("transformers-cb:bfloat16", sys.executable),
    ]


def test_without_words_whatever_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are named with the way to get them, also where a variable names a Python that lacks something."""
    monkeypatch.setenv("LMTOOL_VLLM_PYTHON", "/elsewhere")
    found, missing = contestants([], "float32")
    assert {"lmtool", "transformers", "transformers-cb"} <= {one.peer for one in found}
    assert "vllm" not in {one.peer for one in found}
    assert [sentence for sentence in missing if "'/elsewhere' does not run as a Python" in sentence]
    for sentence in missing:
        assert "(pip install" in sentence


@pytest.mark.parametrize("word", ["exllama", "llamacpp:int3", ""])
def test_words_that_make_no_sense(word: str) -> None:
    """Refused with what is known."""
    with pytest.raises(UsageError) as refused:
        contestants([word], "float32")
    assert "known" in refused.value.hints[0]


def test_a_peer_that_was_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 8, with the install line."""
    monkeypatch.delenv("LMTOOL_VLLM_PYTHON", raising=False)
    with pytest.raises(ResourceError) as refused:
        contestants(["vllm"], "float32")
    assert "LMTOOL_VLLM_PYTHON" in refused.value.hints[0]
    with pytest.raises(ResourceError, match="does not run as a Python"):
        contestants(["vllm=/nothing/here"], "float32")


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (["ctranslate2"], "ctranslate2 is not installed for "),
        (["transformers", "torch"], "ctranslate2 cannot run with .*, which lacks transformers and torch"),
    ],
)
def test_a_python_that_lacks_something(tmp_path: Path, missing: list[str], message: str) -> None:
    """Is refused before anything is measured, with all that is missing and what to install."""
    python = program(tmp_path / "python", f"echo '[[3, 13, 0], {json.dumps(missing)}]'")
    with pytest.raises(ResourceError, match=message) as refused:
        contestants([f"ctranslate2={python}"], "float32")
    assert "pip install ctranslate2 transformers torch" in refused.value.hints[0]


def test_on_a_gpu_others_take_part() -> None:
    """Those that run there; a named one, or a dtype, that does not is refused by name."""
    found, missing = contestants([], "bfloat16", on_gpu=True)
    assert {"transformers", "transformers-cb"} <= {one.peer for one in found}
    assert not {"llamacpp", "ctranslate2"} & {one.peer for one in found}
    assert not [sentence for sentence in missing if "llama" in sentence]
    with pytest.raises(UsageError, match="ctranslate2 is measured on CPUs only"):
        contestants(["ctranslate2"], "bfloat16", on_gpu=True)
    with pytest.raises(UsageError, match="sglang is measured on GPUs only"):
        contestants(["sglang"], "bfloat16")
    with pytest.raises(UsageError, match="int8 is measured on CPUs only"):
        contestants(["lmtool:int8"], "bfloat16", on_gpu=True)
