"""`lmtool chat`: one prompt and its answer, or a conversation; `lmtool history`: saved conversations."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmtool.cli.common_options import ClientCommon, Common
from lmtool.core.errors import UsageError
from lmtool.core.sampling_parameters import PARAMETER_HELP, PROMPT_MAX_TOKENS
from lmtool.settings.option import option
from lmtool.terminal.chat.heat import ALTERNATIVES, MODES, HeatMode

if TYPE_CHECKING:
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.settings.terminal import Output
    from lmtool.terminal.chat.options import OutputOptions

SAMPLING = "Sampling"
OUTPUT = "Output"
STRUCTURED = "Structured output"
CONVERSATION = "Conversation"
TABLE_ALTERNATIVES = 5

HEAT = option(None, f"Colour tokens by {', '.join(MODES)}; without MODE: {MODES[0]}.", OUTPUT, metavar="[MODE]")
MODEL = option(None, "Model to use; default: the only one served.", short="-m", metavar="NAME")
TOKENIZER = option(None, "Tokenize here, for servers that accept only token ids.", metavar="NAME")
TIMEOUT = option(None, "Give up after this time; default: never.", metavar="SECONDS", minimum=0)


def sampling(name: str, note: str = "", **more: Any) -> Any:
    """A sampling option; its help is the parameter's sentence in `PARAMETER_HELP`, completed by `note`."""
    sentence = PARAMETER_HELP[name] if not note else f"{PARAMETER_HELP[name][:-1]}; {note}."
    return option(None, sentence, SAMPLING, **more)


def chat(
    common: ClientCommon,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(
            help="The prompt; name=value words at its end, such as max_tokens=5, set parameters; '-' reads stdin. "
            "Without a prompt, start a conversation.",
            show_default=False,
        ),
    ] = None,
    *,
    model: str | None = MODEL,
    system: str | None = option(None, "System prompt, for models with a chat template.", short="-s", metavar="TEXT"),
    option: list[str] | None = option(
        None, "Set any sampling parameter; repeatable.", SAMPLING, short="-o", metavar="NAME=VALUE"
    ),
    max_tokens: int | None = sampling(
        "max_tokens", f"default: {PROMPT_MAX_TOKENS}, or half the model's context", short="-n", minimum=1
    ),
    temperature: float | None = sampling("temperature", "default: 0", short="-t", minimum=0),
    top_p: float | None = sampling("top_p"),
    top_k: int | None = sampling("top_k", minimum=0),
    seed: int | None = sampling("seed", minimum=0),
    stop: list[str] | None = sampling("stop", "repeatable", metavar="TEXT"),
    top_logprobs: int | None = sampling("top_logprobs", metavar="K", minimum=0),
    json_schema: str | None = option(None, "Answer with JSON that matches this schema.", STRUCTURED, metavar="FILE"),
    regex: str | None = option(None, "Answer with text that matches this expression.", STRUCTURED, metavar="PATTERN"),
    choice: list[str] | None = option(None, "Answer with one of these texts; repeatable.", STRUCTURED, metavar="TEXT"),
    grammar: str | None = option(None, "Answer with text of this Lark or GBNF grammar.", STRUCTURED, metavar="FILE"),
    logits_processor: list[str] | None = option(
        None, "Apply an installed logits processor; repeatable.", STRUCTURED, metavar="NAME[=JSON]"
    ),
    n_streams: int = option(
        1, "Send the prompt this many times concurrently, with consecutive seeds.", minimum=1, maximum=256
    ),
    heat: HeatMode | None = HEAT,
    markdown: bool = option(False, "Render Markdown on a terminal.", OUTPUT),
    table: bool = option(False, "Show one row per token.", OUTPUT),
    stats: bool = option(False, "Show timings and perplexity on stderr.", OUTPUT),
    echo: bool = option(False, "Print the prompt before the text.", OUTPUT),
    no_stream: bool = option(False, "Print the answer only when it is complete.", OUTPUT),
    json: bool = option(False, "Print one JSON object.", OUTPUT),
    jsonl: bool = option(False, "Print one JSON object per token.", OUTPUT),
    raw: bool = option(False, "Print the server's frames unchanged.", OUTPUT),
    dry_run: bool = option(False, "Print the frame that would be sent.", OUTPUT),
    template: bool | None = option(None, "Apply the chat template; default: if there is one."),
    tokenizer: str | None = TOKENIZER,
    timeout: float | None = TIMEOUT,
    retries: int = option(4, "Consecutive attempts to resume an interrupted stream.", minimum=0),
    token_timeout: float = option(
        60.0, "Reconnect and resume if no token arrives for this long.", metavar="SECONDS", minimum=0.1
    ),
    first_token_timeout: float = option(
        600.0,
        "End a stream without a token, or a load or queue notice, for this long.",
        metavar="SECONDS",
        minimum=0.1,
    ),
    record: str | None = option(None, "Record the frames as a trace.", metavar="FILE"),
    resume_last: bool = option(False, "Continue the last conversation.", CONVERSATION, flag="--continue", short="-c"),
    no_history: bool = option(False, "Save neither prompts nor the conversation.", CONVERSATION),
    literal: bool = option(False, "Treat name=value words of the prompt as text."),
    compat_space: bool = option(False, "Append a space to the prompt, as LMQL's client does."),
) -> Coroutine[Any, Any, None]:
    """Chat with a model: one answer, or, without a prompt, a conversation."""
    from lmtool.core.resuming import ResumeOptions
    from lmtool.settings.prompt_parameters import check_typed, parse_options
    from lmtool.terminal.chat.options import (
        OneShotOptions,
        OutputOptions,
        constraint_from_options,
        constraint_origin,
        output_form,
        processors_from_options,
    )
    from lmtool.terminal.chat.prompt import PromptParsing, RequestOptions, read_prompt

    options = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": tuple(stop) if stop else None,
        "top_logprobs": top_logprobs,
    }
    alternatives = max(ALTERNATIVES[heat] if heat else 1, TABLE_ALTERNATIVES if table else 1)
    constraint = constraint_from_options(json_schema, regex, choice or (), grammar)
    typed = {name: check_typed(name, value) for name, value in options.items() if value is not None}
    parameters = {"top_logprobs": alternatives, **typed, **parse_options(option or [])}
    processors = processors_from_options(logits_processor or ())
    origin = constraint_origin(json_schema, regex, choice or (), grammar)
    requests = RequestOptions(model, system, template, parameters, constraint, processors, origin)
    form = output_form(json=json, jsonl=jsonl, raw=raw, table=table)
    heat, markdown = _text_style(heat, markdown=markdown, typed=common.typed)
    display = OutputOptions(form, heat, markdown, stats, not no_stream, echo)
    parsing = PromptParsing(literal or "--" in sys.argv, compat_space)
    resume = ResumeOptions(retries, token_timeout, first_token_timeout)
    text = read_prompt(prompt or [], parsing, sys.stdin)
    if text is not None:
        if resume_last:
            raise UsageError("--continue takes no prompt", "type it in the conversation:  lmtool chat -c")
        from lmtool.terminal.chat.answer import answer

        once = OneShotOptions(n_streams, tokenizer, timeout, dry_run, record, resume)
        talk = partial(answer, prompt=text, requests=requests, display=display, options=once)
        return _talk(common, talk, model, only_describes=dry_run)
    _check_conversation(display, n_streams=n_streams, dry_run=dry_run)
    from lmtool.terminal.chat.keeping import ConversationOptions
    from lmtool.terminal.chat.repl import converse

    talk = partial(
        converse,
        requests=requests,
        display=display,
        parsing=parsing,
        options=ConversationOptions(resume_last, not no_history),
        tokenizer=tokenizer,
        record=record,
        resume=resume,
    )
    return _talk(common, talk, model)


def _text_style(heat: HeatMode | None, *, markdown: bool, typed: frozenset[str]) -> tuple[HeatMode | None, bool]:
    """Text style, heat or Markdown; typed options override settings. Raises `UsageError` for both."""
    if not heat or not markdown:
        return heat, markdown
    if {"heat", "markdown"} <= typed:
        raise UsageError("--markdown and --heat both style the text", "choose one")
    return (None, True) if "markdown" in typed else (heat, False)


async def _talk(
    common: ClientCommon,
    talk: Callable[[Endpoint, Output], Awaitable[None]],
    model: str | None,
    *,
    only_describes: bool = False,
) -> None:
    """Chat with the server or, on a terminal without an explicit or running server, with a model in this process.

    A script gets an error instead. only_describes: nothing is generated.
    """
    endpoint, out = common.server(), common.output()
    if common.endpoint is not None or not out.terminal or only_describes:
        await talk(endpoint, out)
        return
    from lmtool.terminal.chat.in_process import reachable

    async with reachable(endpoint, out, model) as found:
        await talk(found, out)


def _check_conversation(display: OutputOptions, *, n_streams: int, dry_run: bool) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("no prompt, and nothing on stdin", 'for example:  lmtool chat "Hello there"')
    if display.form != "text" or n_streams > 1 or dry_run:
        raise UsageError("--table, --json, --jsonl, --raw, --dry-run and --n-streams need a prompt", "add one")


def history(
    common: Common,
    *,
    clear: bool = option(False, "Remove all saved conversations and typed prompts."),
    json: bool = option(False, "Print one JSON object per conversation."),
) -> None:
    """List the saved conversations, newest first, or remove them all."""
    import json as codec

    from lmtool.terminal.chat.conversation_store import conversations_folder, kept_conversations

    out = common.output()
    if clear:
        _clear(out)
        return
    kept = kept_conversations()
    if json:
        for one in kept:
            facts = {"path": str(one.path), "modified": one.modified.isoformat(), "bytes": one.size}
            out.line(codec.dumps({**facts, "model": one.model, "title": one.title}, ensure_ascii=False))
        return
    for number, one in enumerate(kept, 1):
        out.line(f"{number:>3}  {one.modified:%Y-%m-%d %H:%M}  {_size(one.size):>8}  {one.model}  {one.title}")
    if kept:
        out.note(f"in {conversations_folder()}; continue the newest:  lmtool chat --continue")
    else:
        out.note("no conversation is kept yet; lmtool chat keeps each one")


def _clear(out: Output) -> None:
    from lmtool.core.errors import FileError
    from lmtool.terminal.chat.conversation_store import conversation_files, prompts_file

    removed = conversation_files()
    for path in removed:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"cannot remove {path}: {error.strerror}", "check its owner and permissions") from None
    conversations = sum(path != prompts_file() for path in removed)
    prompts = " and all typed prompts" if prompts_file() in removed else ""
    out.line(f"removed {conversations} conversation{'s' * (conversations != 1)}{prompts}")


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{-(-size // 1024)} KiB"
