"""Prompts from words and stdin, and requests made of them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from lmtool.cli.talking.asking import (
    STDIN_LIMIT,
    Asking,
    Words,
    default_max_tokens,
    question,
    read_stdin,
    variants,
)
from lmtool.errors import UsageError
from lmtool.types import ChatMessage, ModelInfo, SamplingParams

PLAIN = ModelInfo("m", "m", "transformers", context_length=1024)
TEMPLATED = ModelInfo("m", "m", "transformers", chat_template=True)


def piped(data: str | bytes) -> io.TextIOWrapper:
    """Return a stdin with this in it."""
    return io.TextIOWrapper(io.BytesIO(data if isinstance(data, bytes) else data.encode()))


@pytest.mark.parametrize(
    ("words", "stdin", "text", "values"),
    [
        (["Hello", "there", "max_tokens=5"], None, "Hello there", {"max_tokens": 5}),
        (["Hello there max_tokens=5"], None, "Hello there", {"max_tokens": 5}),
        ([], "from a pipe\n", "from a pipe", {}),
        ([], "x max_tokens=5\n", "x max_tokens=5", {}),
        (["max_tokens=5"], "from a pipe", "from a pipe", {"max_tokens": 5}),
        (["Sum up:", "seed=1"], "the text\n", "Sum up:\n\nthe text", {"seed": 1}),
        (["Sum up:"], "", "Sum up:", {}),
        (["Sum up:", "-", "in a word", "seed=1"], "the text\n", "Sum up: the text in a word", {"seed": 1}),
        (["-"], "the text", "the text", {}),
        (["-", "seed=1"], "the text", "the text", {"seed": 1}),
    ],
)
def test_prompt(words: list[str], stdin: str | None, text: str, values: dict[str, object]) -> None:
    """Words, or stdin, or both with a blank line between; `-` places stdin; only words have parameters."""
    asked = question(words, Words(), None if stdin is None else piped(stdin))
    assert asked is not None
    assert (asked.text, dict(asked.values)) == (text, values)


def test_literal() -> None:
    """With `--literal` nothing is a parameter and nothing is stripped."""
    asked = question(["a max_tokens=5 "], Words(literal=True), None)
    assert asked is not None
    assert (asked.text, dict(asked.values)) == ("a max_tokens=5 ", {})


def test_compat_space() -> None:
    """`--compat-space` leaves the one space that LMQL's own client leaves."""
    asked = question(["Hello there max_tokens=5"], Words(compat_space=True), None)
    assert asked is not None
    assert asked.text == "Hello there "


@pytest.mark.parametrize(
    ("words", "stdin"), [([], ""), ([""], None), (["  "], None), (["max_tokens=5"], None), (["-"], ""), (["-"], None)]
)
def test_empty_prompt_is_refused(words: list[str], stdin: str | None) -> None:
    """An empty prompt is a mistake, and says so."""
    with pytest.raises(UsageError, match=r"empty|closed"):
        question(words, Words(), None if stdin is None else piped(stdin))


def test_nothing_at_all_is_no_prompt() -> None:
    """No words and no stdin: the caller decides."""
    assert question([], Words(), None) is None


def test_stdin_that_is_no_pipe(tmp_path: Path) -> None:
    """A terminal and a device such as /dev/null are not waited for; a file is read."""
    with Path(os.devnull).open() as null:
        assert read_stdin(null) is None
    controller, terminal = os.openpty()
    with os.fdopen(terminal) as stdin:
        assert read_stdin(stdin) is None
    os.close(controller)
    (tmp_path / "text").write_text("a\r\n")
    with (tmp_path / "text").open() as file:
        assert read_stdin(file) == "a"
    file.close()
    assert read_stdin(file) is None


def test_bad_text_is_refused() -> None:
    """Text that is not UTF-8, or too long for a frame, is refused with what is wrong."""
    with pytest.raises(UsageError, match="byte 1 is 0xff"):
        question([], Words(), piped(b"a\xff"))
    with pytest.raises(UsageError, match="more than 4 MiB"):
        question([], Words(), piped(b"a" * (STDIN_LIMIT + 1)))
    with pytest.raises(UsageError, match="not valid UTF-8"):
        question(["a\udcff"], Words(), None)


def test_template_is_used_where_there_is_one() -> None:
    """Messages are sent to a model with a chat template, plain text to others, unless said otherwise."""
    params = SamplingParams()
    assert Asking().request(1, "Hi", PLAIN, params).prompt == "Hi"
    assert Asking().request(1, "Hi", TEMPLATED, params).prompt == (ChatMessage("user", "Hi"),)
    assert Asking(template=False).request(1, "Hi", TEMPLATED, params).prompt == "Hi"
    assert Asking(template=True).request(1, "Hi", PLAIN, params).prompt == (ChatMessage("user", "Hi"),)
    history = (ChatMessage("user", "a"), ChatMessage("assistant", "b"))
    asked = Asking(system="Be brief.").request(1, "Hi", TEMPLATED, params, history)
    assert asked.prompt == (ChatMessage("system", "Be brief."), *history, ChatMessage("user", "Hi"))
    assert asked.text


@pytest.mark.parametrize(
    ("asking", "info"), [(Asking(system="x"), PLAIN), (Asking(system="x", template=False), TEMPLATED)]
)
def test_system_text_needs_a_template(asking: Asking, info: ModelInfo) -> None:
    """A system text without a template has no place: that is said, not ignored."""
    with pytest.raises(UsageError, match="template"):
        asking.request(1, "Hi", info, SamplingParams())


def test_what_is_said_where() -> None:
    """Words win over options, options over the defaults; 256 tokens, but at most half of the context."""
    asking = Asking(said={"max_tokens": 7, "seed": 1})
    assert asking.sampling(PLAIN, {"max_tokens": 5}) == SamplingParams(max_tokens=5, seed=1)
    assert Asking().sampling(PLAIN, {}).max_tokens == 256
    assert default_max_tokens(ModelInfo("m", "m", "x", context_length=128)) == 64
    assert default_max_tokens(ModelInfo("m", "m", "x")) == 256


def test_variants() -> None:
    """Streams of one prompt differ by their seeds; without a seed each draws its own."""
    assert [v.seed for v in variants(SamplingParams(seed=7), 3)] == [7, 8, 9]
    assert [v.seed for v in variants(SamplingParams(), 2)] == [None, None]
