"""`lmtool info`: what a server serves, and how it speaks."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.invocation import Common
from lmtool.cli.models import columns_of, size

if TYPE_CHECKING:
    from lmtool.cli.output import Output
    from lmtool.types import ModelEntry, ModelInfo

INDENT = 13
"""Columns in front of a fact."""
PATIENCE = 5.0
"""Seconds to wait for an answer without `--wait`: as long as LMQL's client does."""


async def info(
    common: Common,
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="One of several served models.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("--model", "-m", metavar="NAME", help="The same, as with the other commands.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what the server says as JSON.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait while the model loads.")] = False,
    timeout: Annotated[  # noqa: ASYNC109  # an option's name
        float | None,
        typer.Option(metavar="SECONDS", help=f"Give up after this time; default: {PATIENCE:g}, never with --wait."),
    ] = None,
) -> None:
    """Ask a server what it serves and how it speaks; of many models it lists what is known without loading them."""
    import json as codec

    from lmtool.cli.output import Output
    from lmtool.errors import UsageError
    from lmtool.lmtp.model_info import entry_to_wire

    if None not in (model, name) and model != name:
        raise UsageError(f"{model} and -m {name} are two models", "name one of them")
    limit = timeout if timeout is not None or wait else PATIENCE
    out = Output.of(common)
    found = await _ask(common, model or name, wait=wait, limit=limit, out=out)
    if isinstance(found, list):
        if json:
            out.line(codec.dumps({"endpoint": common.url, "models": [entry_to_wire(entry) for entry in found]}))
        else:
            out.write("".join(f"{line}\n" for line in listing(found, endpoint(common.url))))
        return
    told, seconds = found
    if json:
        answer = told if isinstance(told, str) else dict(told)
        out.line(codec.dumps({"endpoint": common.url, "round_trip_ms": round(seconds * 1000, 2), "model_info": answer}))
        return
    columns = shutil.get_terminal_size().columns if out.terminal else None
    for line in describe(told, model or name, endpoint(common.url), seconds, columns):
        out.line(line)


async def _ask(
    common: Common, model: str | None, *, wait: bool, limit: float | None, out: Output
) -> list[ModelEntry] | tuple[Mapping[str, object] | str, float]:
    """The server's `model_info` as it is, and the seconds that a round trip takes; or the list of many models.

    limit: seconds for an answer. A model that nobody named is not loaded in order to be described.
    """
    import time

    from lmtool.cli.talking.peer import Waiting
    from lmtool.cli.wiring import connect
    from lmtool.errors import ConnectError, TimeLimitError

    waiting = Waiting(out)
    client = connect(
        common.address,
        api_key=common.api_key,
        open_timeout=10.0 if limit is None else limit,
        on_progress=waiting.progress,
    )
    try:
        async with client:
            entries = await client.models(model, timeout=limit)
            named = [entry for entry in entries if model in (None, entry.name, *entry.aliases)]
            if model is None and (len(named) != 1 or named[0].phase == "unloaded"):
                return entries
            if wait:
                waiting.begin()
            else:
                _check_loaded(named)
            await client.model_info(model, timeout=limit)
            waiting.answered()
            began = time.perf_counter()
            told = await client.model_info(model, timeout=limit)
            return told, time.perf_counter() - began
    except ConnectError as error:
        if not error.hints:
            error.hints = ("start one:      lmtool serve", "or point here:  lmtool info --endpoint ws://HOST:PORT")
        raise
    except TimeLimitError as error:
        error.hints = error.hints or ("allow more:  lmtool info --timeout SECONDS", "or wait:  lmtool info --wait")
        raise
    finally:
        waiting.close()


def _check_loaded(entries: Sequence[ModelEntry]) -> None:
    from lmtool.errors import TimeLimitError

    for entry in entries[:1]:
        if entry.phase in {"queued", "loading"}:
            raise TimeLimitError(f"the model {entry.name} is still loading", "wait for it:  lmtool info --wait")


def listing(models: Sequence[ModelEntry], url: str) -> list[str]:
    """Lines for people: each model of a list, with what is known of it."""
    if not models:
        return [f"{url} has no model in memory", "  it loads what is named:  lmtool info NAME"]
    rows = [
        (e.name, e.phase, size(e.size_bytes), f"{e.context_length} tokens" if e.context_length else "") for e in models
    ]
    head = f"{len(models)} models at {url}" if len(models) > 1 else f"1 model at {url}, not in memory"
    return [head, *(f"  {row}" for row in columns_of(rows)), "more of one:  lmtool info NAME"]


def endpoint(url: str) -> str:
    """An endpoint in full."""
    from lmtool.lmtp.endpoint import SocketEndpoint, parse

    parsed = parse(url)
    return parsed.url if isinstance(parsed, SocketEndpoint) else url


def describe(
    told: Mapping[str, object] | str, model: str | None, url: str, seconds: float, columns: int | None
) -> list[str]:
    """Lines for people: the model, where it is, what is known about it, how the server speaks.

    columns: where longer lines are broken; None breaks none.
    """
    from lmtool.cli.serving.status import milliseconds, model_line
    from lmtool.lmtp.model_info import from_wire

    info = from_wire(told, model)
    name = model_line(info) if info.model else "(a model without a name)"
    facts = [("at", f"{url}   round trip {milliseconds(seconds)}"), *_facts(info), ("protocol", _protocol(told))]
    return [name, *(line for label, text in facts if text for line in _fact(label, text, columns))]


def _fact(label: str, text: str, columns: int | None) -> list[str]:
    parts = textwrap.wrap(text, max(20, columns - INDENT - 1), break_on_hyphens=False) if columns else [text]
    return [f"  {label if i == 0 else '':<{INDENT - 2}}{part}" for i, part in enumerate(parts)]


def _facts(info: ModelInfo) -> list[tuple[str, str]]:
    versions = ", ".join(f"{library} {version}" for library, version in info.versions.items())
    return [
        ("runs on", ", ".join(part for part in (info.backend, info.architecture, versions) if part)),
        ("made by", info.constructor),
        ("context", "" if info.context_length is None else f"{info.context_length} tokens"),
        ("vocabulary", _vocabulary(info)),
        ("tokenizer", _tokenizer(info)),
        ("streams", "" if info.running is None else f"{info.running} running, {info.waiting or 0} waiting"),
    ]


def _vocabulary(info: ModelInfo) -> str:
    if info.vocab_size is None:
        return ""
    ends = ", ".join(map(str, info.eos_token_ids))
    return f"{info.vocab_size} tokens" + (f", ends with {ends}" if ends else "")


def _tokenizer(info: ModelInfo) -> str:
    if info.tokenizer is None:
        return "none: the server takes token ids only"
    template = "with" if info.chat_template else "without"
    return f"{info.tokenizer.name}, {template} a chat template, sha256 {info.tokenizer.sha256[:12]}"


def _protocol(told: Mapping[str, object] | str) -> str:
    if isinstance(told, str) or "lmtp" not in told:
        return "LMTP as LMQL speaks it: token ids, no cancelling, no text"
    extensions = told.get("extensions")
    names = ", ".join(map(str, extensions)) if isinstance(extensions, list | tuple) else "none"
    return f"LMTP {told['lmtp']} with extensions: {names}"
