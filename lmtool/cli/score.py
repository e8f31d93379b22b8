"""`lmtool score`: how likely given texts are after a prompt."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import Annotated, Any, Literal

import typer

from lmtool.cli.chat import HEAT_OPTION, SHOWING
from lmtool.cli.invocation import Common
from lmtool.cli.talking.heat import ALTERNATIVES, HeatMode
from lmtool.errors import UsageError


def score(
    common: Common,
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="[PROMPT] TEXT...",
            help="The prompt, then the texts to compare; alone: a text without a prompt. '-' is stdin.",
        ),
    ],
    *,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Which model; default: the one served.")
    ] = None,
    no_prompt: Annotated[bool, typer.Option("--no-prompt", help="All texts are candidates; none is a prompt.")] = False,
    per: Annotated[
        Literal["text", "word", "token"], typer.Option(help="What a row stands for.", rich_help_panel=SHOWING)
    ] = "text",
    top: Annotated[
        int | None, typer.Option(min=0, metavar="K", help="Likeliest tokens at each place.", rich_help_panel=SHOWING)
    ] = None,
    heat: Annotated[HeatMode | None, HEAT_OPTION] = None,
    ppl_only: Annotated[
        bool, typer.Option("--ppl-only", help="One perplexity a line, nothing else.", rich_help_panel=SHOWING)
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.", rich_help_panel=SHOWING)] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Comma-separated rows.", rich_help_panel=SHOWING)] = False,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tokenize here, for servers that take ids only.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after this time; default: never.")
    ] = None,
) -> Coroutine[Any, Any, None]:
    """Logprob, probability and perplexity of texts, given a prompt."""
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
    from lmtool.cli.talking.scoring import Scoring, score_texts

    form = forms[0].removeprefix("--") if forms else "table"
    if heat is not None:
        top = max(top or 0, ALTERNATIVES[heat])
    return score_texts(common, Scoring(prompt, tuple(candidates), model, form, heat, per, top, tokenizer, timeout))


def _stdin() -> str:
    from lmtool.cli.talking.asking import read_stdin

    text = read_stdin(sys.stdin, wait=True)
    if text is None:
        raise UsageError("'-' stands for stdin, which is closed", "pipe something in, or leave '-' out")
    return text
