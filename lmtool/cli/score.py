"""`lmtool score`: how likely texts are after a prompt."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Annotated, Any, Literal

import typer

from lmtool.chat.heat import ALTERNATIVES, HeatMode
from lmtool.cli.chat import HEAT, MODEL, OUTPUT, TIMEOUT, TOKENIZER
from lmtool.cli.common_options import ClientCommon
from lmtool.errors import UsageError
from lmtool.option import option


def score(
    common: ClientCommon,
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="[PROMPT] TEXT...",
            help="The prompt, then the texts to compare; alone: a text without a prompt. '-' is stdin.",
        ),
    ],
    *,
    model: str | None = MODEL,
    no_prompt: bool = option(False, "Score all texts; none is a prompt."),
    per: Literal["text", "word", "token"] = option("text", "What each row shows.", OUTPUT),
    top: int | None = option(None, "Show the most likely tokens at each position.", OUTPUT, metavar="K", minimum=0),
    heat: HeatMode | None = HEAT,
    ppl_only: bool = option(False, "Print one perplexity per line, nothing else.", OUTPUT),
    json: bool = option(False, "Print one JSON object.", OUTPUT),
    csv: bool = option(False, "Print comma-separated values.", OUTPUT),
    tokenizer: str | None = TOKENIZER,
    timeout: float | None = TIMEOUT,
) -> Coroutine[Any, Any, None]:
    """Compute logprob, probability and perplexity of texts after a prompt."""
    forms = [
        name
        for name, on in {"--json": json, "--csv": csv, "--ppl-only": ppl_only, "--heat": heat is not None}.items()
        if on
    ]
    if len(forms) > 1:
        raise UsageError(f"{forms[0]} and {forms[1]} are two forms of the same output", "choose one")
    words = [_stdin() if text == "-" else text for text in texts]
    if texts.count("-") > 1:
        raise UsageError("'-' stands for stdin, which can be read once", "leave one '-' out")
    prompt, candidates = ("", words) if no_prompt or len(words) == 1 else (words[0], words[1:])
    from lmtool.chat.scoring import Scoring, score_texts

    form = forms[0].removeprefix("--") if forms else "table"
    if heat is not None:
        top = max(top or 0, ALTERNATIVES[heat])
    scoring = Scoring(prompt, tuple(candidates), model, form, heat, per, top, tokenizer, timeout)
    return score_texts(common.server(), common.output(), scoring)


def _stdin() -> str:
    from lmtool.chat.prompt import read_stdin

    text = read_stdin(sys.stdin, wait=True)
    if text is None:
        raise UsageError("'-' stands for stdin, which is closed", "pipe something in, or leave '-' out")
    return text
