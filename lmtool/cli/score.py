"""`lmtool score`: probabilities of texts after a prompt."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lmtool.cli.chat import HEAT, MODEL, OUTPUT, TIMEOUT, TOKENIZER
from lmtool.cli.common_options import ClientCommon
from lmtool.core.errors import UsageError
from lmtool.settings.option import option
from lmtool.terminal.chat.heat import ALTERNATIVES, HeatMode

if TYPE_CHECKING:
    from lmtool.settings.terminal import Output


def score(
    common: ClientCommon,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT] TEXT...",
            help="The prompt, then the texts to compare; a single word is a text or a file's name. "
            "@FILE reads a file, '-' reads stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    model: str | None = MODEL,
    no_prompt: bool = option(False, "Score all texts without a prompt."),
    per: Literal["text", "word", "token"] = option("text", "Unit of each row.", OUTPUT),
    top: int | None = option(None, "Show the most likely tokens at each position.", OUTPUT, metavar="K", minimum=0),
    heat: HeatMode | None = HEAT,
    ppl_only: bool = option(False, "Print one perplexity per line, nothing else.", OUTPUT),
    json: bool = option(False, "Print one JSON object.", OUTPUT),
    csv: bool = option(False, "Print comma-separated values.", OUTPUT),
    tokenizer: str | None = TOKENIZER,
    timeout: float | None = TIMEOUT,
) -> Coroutine[Any, Any, None]:
    """Compute logprob, probability and perplexity of texts after a prompt, or of a file.

    A text longer than the model's context is scored in windows if the model's tokenizer is on this machine.
    """
    forms = [
        name
        for name, on in {"--json": json, "--csv": csv, "--ppl-only": ppl_only, "--heat": heat is not None}.items()
        if on
    ]
    if len(forms) > 1:
        raise UsageError(f"{forms[0]} and {forms[1]} are two formats of the same output", "choose one")
    out, texts = common.output(), texts or ["-"]
    if texts.count("-") > 1:
        raise UsageError("stdin can be read only once", "omit one '-'")
    words = [_read(out, text, alone=len(texts) == 1) for text in texts]
    prompt, candidates = ("", words) if no_prompt or len(words) == 1 else (words[0], words[1:])
    from lmtool.terminal.chat.scoring import Scoring, score_texts

    form = forms[0].removeprefix("--") if forms else "table"
    if heat is not None:
        top = max(top or 0, ALTERNATIVES[heat])
    scoring = Scoring(prompt, tuple(candidates), model, form, heat, per, top, tokenizer, timeout)
    return score_texts(common.server(), out, scoring)


def _read(out: Output, word: str, *, alone: bool) -> str:
    """The text that a word names. alone: the only word, which may also be a file's name."""
    import shlex

    from lmtool.settings.score_input import read_text

    if word == "-":
        return _stdin()
    if word.startswith("@") and len(word) > 1:
        return read_text(word[1:])
    if alone and _is_file(word):
        name = shlex.quote(word)
        out.note(f"{word} is a file: scoring its text; to score the name:  printf %s {name} | lmtool score")
        return read_text(word)
    return word


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except (OSError, ValueError):  # too long for a file name
        return False


def _stdin() -> str:
    from lmtool.terminal.chat.prompt import read_stdin

    text = read_stdin(sys.stdin, wait=True)
    if text is None:
        raise UsageError(
            "no text, and nothing on stdin",
            'name a text, a file, or pipe one in:  lmtool score "Once upon a time" --heat',
        )
    if not text:
        raise UsageError("stdin is empty: nothing to score", "pipe a text in")
    return text
