"""`lmtool chat`: one prompt and its answer, or a conversation."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.talking.heat import ALTERNATIVES, MODES, HeatMode
from lmtool.errors import UsageError

if TYPE_CHECKING:
    from lmtool.cli.talking.showing import Showing

SAMPLING = "Sampling"
SHOWING = "Showing"
HOLDING = "Holding the answer to a form"
HEAT_OPTION = typer.Option(
    "--heat",
    metavar="[MODE]",
    help=f"Colour tokens by {', '.join(MODES)}; --heat alone: {MODES[0]}.",
    rich_help_panel=SHOWING,
)
TABLE_ALTERNATIVES = 5


def chat(
    common: Common,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            help="What to say; trailing name=value words, such as max_tokens=5, are parameters; '-' is stdin. "
            "None at all: a conversation.",
            show_default=False,
        ),
    ] = None,
    *,
    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="Which model; default: the one served.")
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", "-s", metavar="TEXT", help="A system text, under the chat template.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="Any parameter; may be repeated.", show_default=False
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens", "-n", min=1, help="Most tokens of an answer; default: 256, or half the model's context."
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option("--temperature", "-t", min=0, help="0 always picks the likeliest token; default: 0.")
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens up to this mass.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Sample from this many likeliest tokens.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Sample the same answer again.")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End before this text; may be repeated.", show_default=False),
    ] = None,
    top_logprobs: Annotated[int | None, typer.Option(min=0, metavar="K", help="Alternatives a token.")] = None,
    json_schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="JSON that this schema allows.", rich_help_panel=HOLDING)
    ] = None,
    regex: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Text that matches as a whole.", rich_help_panel=HOLDING)
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="One of these; repeat it.", show_default=False, rich_help_panel=HOLDING),
    ] = None,
    grammar: Annotated[
        str | None, typer.Option(metavar="FILE", help="Text of this Lark or GBNF grammar.", rich_help_panel=HOLDING)
    ] = None,
    logits_processor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=JSON]", help="An installed one; repeat it.", show_default=False, rich_help_panel=HOLDING
        ),
    ] = None,
    n_streams: Annotated[
        int, typer.Option("--n-streams", min=1, max=256, help="Ask so many times at once; a seed counts up.")
    ] = 1,
    heat: Annotated[HeatMode | None, HEAT_OPTION] = None,
    table: Annotated[bool, typer.Option("--table", help="One row a token.", rich_help_panel=SHOWING)] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Timings and perplexity on stderr.", rich_help_panel=SHOWING)
    ] = False,
    echo: Annotated[
        bool, typer.Option("--echo", help="The prompt in front of the text.", rich_help_panel=SHOWING)
    ] = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Everything at the end.", rich_help_panel=SHOWING)
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.", rich_help_panel=SHOWING)] = False,
    jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a token.", rich_help_panel=SHOWING)] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="The server's frames as they are.", rich_help_panel=SHOWING)
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the frame that would be sent.", rich_help_panel=SHOWING)
    ] = False,
    template: Annotated[
        bool | None,
        typer.Option("--template/--no-template", help="Use the chat template; default: where the model has one."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tokenize here, for servers that take ids only.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after this time; default: never.")
    ] = None,
    record: Annotated[
        str | None, typer.Option(metavar="FILE", help="Keep what is said on the wire as a trace.", show_default=False)
    ] = None,
    literal: Annotated[bool, typer.Option("--literal", help="Take no word of the prompt for a parameter.")] = False,
    compat_space: Annotated[
        bool, typer.Option("--compat-space", help="End the prompt in one space, as LMQL's own client does.")
    ] = False,
) -> Coroutine[Any, Any, None]:
    """Talk to a model: one answer, or, without a prompt, a conversation."""
    from lmtool.cli.talking.asking import Asking, Words, question
    from lmtool.cli.talking.holding import Holding, constraint_of, processors_of
    from lmtool.cli.talking.parameters import check_typed, options
    from lmtool.cli.talking.showing import Showing, form_of

    said = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": tuple(stop) if stop else None,
        "top_logprobs": top_logprobs,
    }
    wanted = max(ALTERNATIVES[heat] if heat else 1, TABLE_ALTERNATIVES if table else 1)
    held = constraint_of(Holding(json_schema, regex, choice or (), grammar))
    typed = {name: check_typed(name, value) for name, value in said.items() if value is not None}
    values = {"top_logprobs": wanted, **typed, **options(option or [])}
    asking = Asking(model, system, template, values, held, processors_of(logits_processor or ()))
    showing = Showing(form_of(json=json, jsonl=jsonl, raw=raw, table=table), heat, stats, not no_stream, echo)
    how = Words(literal or "--" in sys.argv, compat_space)
    asked = question(prompt or [], how, sys.stdin)
    if asked is not None:
        from lmtool.cli.talking.answer import Once, answer

        return answer(common, asked, asking, showing, Once(n_streams, tokenizer, timeout, dry_run, record))
    _check_conversation(showing, n_streams=n_streams, dry_run=dry_run)
    from lmtool.cli.talking.repl import converse

    return converse(common, asking, showing, how, tokenizer=tokenizer, record=record)


def _check_conversation(showing: Showing, *, n_streams: int, dry_run: bool) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("there is no prompt, and nothing on stdin", 'say something:  lmtool chat "Hello there"')
    if showing.form != "text" or n_streams > 1 or dry_run:
        raise UsageError("--table, --json, --jsonl, --raw, --dry-run and --n-streams need a prompt", "add one")
