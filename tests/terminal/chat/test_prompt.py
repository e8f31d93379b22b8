"""Prompts from words and stdin, and requests made of them."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from lmtool.core.errors import UsageError
from lmtool.core.types import ChatMessage, ChatPrompt, ModelInfo, SamplingParams
from lmtool.terminal.chat.prompt import (
    STDIN_LIMIT,
    PromptParsing,
    RequestOptions,
    default_max_tokens,
    read_prompt,
    read_stdin,
    variants,
)

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
    prompt = read_prompt(words, PromptParsing(), None if stdin is None else piped(stdin))
    assert prompt is not None
    assert (prompt.text, dict(prompt.values)) == (text, values)


def test_literal() -> None:
    """With `--literal` nothing is a parameter and nothing is stripped."""
    prompt = read_prompt(["a max_tokens=5 "], PromptParsing(literal=True), None)
    assert prompt is not None
    assert (prompt.text, dict(prompt.values)) == ("a max_tokens=5 ", {})


def test_compat_space() -> None:
    """`--compat-space` leaves the one space that LMQL's own client leaves."""
    prompt = read_prompt(["Hello there max_tokens=5"], PromptParsing(compat_space=True), None)
    assert prompt is not None
    assert prompt.text == "Hello there "


@pytest.mark.parametrize(
    ("words", "stdin"), [([], ""), ([""], None), (["  "], None), (["max_tokens=5"], None), (["-"], ""), (["-"], None)]
)
def test_empty_prompt_is_refused(words: list[str], stdin: str | None) -> None:
    """An empty prompt is a mistake, and says so."""
    with pytest.raises(UsageError, match=r"empty|closed"):
        read_prompt(words, PromptParsing(), None if stdin is None else piped(stdin))


def test_nothing_at_all_is_no_prompt() -> None:
    """No words and no stdin: the caller decides."""
    assert read_prompt([], PromptParsing(), None) is None


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
        read_prompt([], PromptParsing(), piped(b"a\xff"))
    with pytest.raises(UsageError, match="more than 4 MiB"):
        read_prompt([], PromptParsing(), piped(b"a" * (STDIN_LIMIT + 1)))
    with pytest.raises(UsageError, match="not valid UTF-8"):
        read_prompt(["a\udcff"], PromptParsing(), None)


def test_template_is_used_where_there_is_one() -> None:
    """Messages are sent to a model with a chat template, plain text to others, unless said otherwise."""
    params = SamplingParams()
    assert RequestOptions().request(1, "Hi", PLAIN, params).prompt == "Hi"
    assert RequestOptions().request(1, "Hi", TEMPLATED, params).prompt == ChatPrompt((ChatMessage("user", "Hi"),))
    assert RequestOptions(template=False).request(1, "Hi", TEMPLATED, params).prompt == "Hi"
    assert RequestOptions(template=True).request(1, "Hi", PLAIN, params).prompt == ChatPrompt(
        (ChatMessage("user", "Hi"),)
    )
    history = (ChatMessage("user", "a"), ChatMessage("assistant", "b"))
    prompt = RequestOptions(system="Be brief.").request(1, "Hi", TEMPLATED, params, history)
    assert prompt.prompt == ChatPrompt((ChatMessage("system", "Be brief."), *history, ChatMessage("user", "Hi")))
    assert prompt.text


@pytest.mark.parametrize(
    ("options", "info"), [(RequestOptions(system="x"), PLAIN), (RequestOptions(system="x", template=False), TEMPLATED)]
)
def test_system_text_needs_a_template(options: RequestOptions, info: ModelInfo) -> None:
    """A system text without a template has no place: that is said, not ignored."""
    with pytest.raises(UsageError, match="template"):
        options.request(1, "Hi", info, SamplingParams())


def test_what_is_said_where() -> None:
    """Words win over options, options over the defaults; 256 tokens, but at most half of the context."""
    options = RequestOptions(parameters={"max_tokens": 7, "seed": 1})
    assert options.sampling(PLAIN, {"max_tokens": 5}) == SamplingParams(max_tokens=5, seed=1)
    assert RequestOptions().sampling(PLAIN, {}).max_tokens == 256
    assert default_max_tokens(ModelInfo("m", "m", "x", context_length=128)) == 64
    assert default_max_tokens(ModelInfo("m", "m", "x")) == 256


def test_variants() -> None:
    """Streams of one prompt differ by their seeds; without a seed each draws its own."""
    assert [v.seed for v in variants(SamplingParams(seed=7), 3)] == [7, 8, 9]
    assert [v.seed for v in variants(SamplingParams(), 2)] == [None, None]
