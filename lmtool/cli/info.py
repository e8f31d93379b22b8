"""`lmtool info`: a server's model and protocol."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.common_options import ClientCommon
from lmtool.cli.console import align_columns
from lmtool.core.logprobs.numbers import duration, size
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.core.model_entry import ModelEntry
    from lmtool.core.types import ModelInfo
    from lmtool.settings.terminal import Output

INDENT = 13
"""Columns before a value."""
TIMEOUT = 5.0
"""Seconds to wait for an answer without `--wait`, as in LMQL's client."""


async def info(
    common: ClientCommon,
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Model to describe, if there are several.", show_default=False),
    ] = None,
    name: str | None = option(None, "Same as MODEL.", flag="--model", short="-m", metavar="NAME"),
    json: bool = option(False, "Print the server's answer as JSON."),
    wait: bool = option(False, "Wait while the model loads."),
    timeout: float | None = option(  # noqa: ASYNC109  # an option's name
        None, f"Give up after this time; default: {TIMEOUT:g}, with --wait 60 without a message.", metavar="SECONDS"
    ),
) -> None:
    """Describe a server's model and protocol; several models are listed without loading any."""
    import json as codec

    from lmtool.core.errors import UsageError
    from lmtool.protocol.lmtp.model_info import entry_to_wire

    if None not in (model, name) and model != name:
        raise UsageError(f"{model} and -m {name} are two models", "name one of them")
    limit = timeout if timeout is not None or wait else TIMEOUT
    out = common.output()
    answer = await _request_info(common, model or name, wait=wait, limit=limit, out=out)
    if isinstance(answer, list):
        if json:
            out.line(codec.dumps({"endpoint": common.url, "models": [entry_to_wire(entry) for entry in answer]}))
        else:
            out.write("".join(f"{line}\n" for line in model_list(answer, endpoint(common.url))))
        return
    model_info, seconds = answer
    if json:
        wire = model_info if isinstance(model_info, str) else dict(model_info)
        out.line(codec.dumps({"endpoint": common.url, "round_trip_ms": round(seconds * 1000, 2), "model_info": wire}))
        return
    columns = shutil.get_terminal_size().columns if out.terminal else None
    for line in describe(model_info, model or name, endpoint(common.url), seconds, columns):
        out.line(line)


async def _request_info(
    common: ClientCommon, model: str | None, *, wait: bool, limit: float | None, out: Output
) -> list[ModelEntry] | tuple[Mapping[str, object] | str, float]:
    """The server's unparsed `model_info`, and the seconds of a round trip; or the entries of many models.

    limit: seconds for an answer. Without a name, no model is loaded just to describe it.
    """
    import time

    from lmtool.core.errors import ConnectError, TimeLimitError
    from lmtool.protocol.lmtp.client import LmtpClient
    from lmtool.terminal.chat.peer import Waiting

    waiting = Waiting(out)
    client = LmtpClient(
        common.address,
        api_key=common.api_key,
        open_timeout=10.0 if limit is None else limit,
        on_progress=waiting.progress,
    )
    try:
        async with client:
            entries = await client.models(model, timeout=limit)
            matching = [entry for entry in entries if model in (None, entry.name, *entry.aliases)]
            if model is None and (len(matching) != 1 or matching[0].phase == "unloaded"):
                return entries
            if wait:
                waiting.begin()
            else:
                _check_loaded(matching)
            await client.model_info(model, timeout=limit)
            waiting.answered()
            start = time.perf_counter()
            model_info = await client.model_info(model, timeout=limit)
            return model_info, time.perf_counter() - start
    except ConnectError as error:
        if not error.hints:
            error.hints = ("start one:      lmtool serve", "or point here:  lmtool info --endpoint ws://HOST:PORT")
        raise
    except TimeLimitError as error:
        if not wait:
            error.hints = error.hints or ("allow more:  lmtool info --timeout SECONDS", "or wait:  lmtool info --wait")
        raise
    finally:
        waiting.close()


def _check_loaded(entries: Sequence[ModelEntry]) -> None:
    from lmtool.core.errors import TimeLimitError

    for entry in entries[:1]:
        if entry.phase in {"queued", "loading"}:
            raise TimeLimitError(f"the model {entry.name} is still loading", "wait for it:  lmtool info --wait")


def model_list(models: Sequence[ModelEntry], url: str) -> list[str]:
    """Text lines: each model with its phase, size and context."""
    if not models:
        return [f"{url} has no model in memory", "  load one by name:  lmtool info NAME"]
    rows = [
        (
            e.name,
            e.phase,
            "" if e.size_bytes is None else size(e.size_bytes),
            f"{e.context_length} tokens" if e.context_length else "",
        )
        for e in models
    ]
    head = f"{len(models)} models at {url}" if len(models) > 1 else f"1 model at {url}, not in memory"
    return [head, *(f"  {row}" for row in align_columns(rows)), "details of one:  lmtool info NAME"]


def endpoint(url: str) -> str:
    """The full URL of an endpoint."""
    from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse

    parsed = parse(url)
    return parsed.url if isinstance(parsed, SocketEndpoint) else url


def describe(
    model_info: Mapping[str, object] | str, model: str | None, url: str, seconds: float, columns: int | None
) -> list[str]:
    """Text lines: the model, its address and properties, and the server's protocol.

    columns: the width at which lines are wrapped; None never wraps.
    """
    from lmtool.protocol.lmtp.model_info import from_wire
    from lmtool.serving.events import model_line

    info = from_wire(model_info, model)
    name = model_line(info) if info.model else "(a model without a name)"
    facts = [("at", f"{url}   round trip {duration(seconds)}"), *_facts(info), ("protocol", _protocol(model_info))]
    return [name, *(line for label, text in facts if text for line in _fact(label, text, columns))]


def _fact(label: str, text: str, columns: int | None) -> list[str]:
    parts = textwrap.wrap(text, max(20, columns - INDENT - 1), break_on_hyphens=False) if columns else [text]
    return [f"  {label if i == 0 else '':<{INDENT - 2}}{part}" for i, part in enumerate(parts)]


def _facts(info: ModelInfo) -> list[tuple[str, str]]:
    from lmtool.serving.events import batch_invariance, sampling_line

    versions = ", ".join(f"{library} {version}" for library, version in info.versions.items())
    return [
        ("runs on", ", ".join(part for part in (info.backend, info.architecture, versions) if part)),
        ("made by", info.constructor),
        ("results", batch_invariance(info)),
        ("sampling", sampling_line(info)),
        ("context", "" if info.context_length is None else f"{info.context_length} tokens"),
        ("vocabulary", _vocabulary(info)),
        ("tokenizer", _tokenizer(info)),
        ("streams", "" if info.running is None else f"{info.running} running, {info.waiting or 0} waiting"),
        ("your key", ", ".join(f"{name} {limit}" for name, limit in info.key_limits.items())),
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


def _protocol(model_info: Mapping[str, object] | str) -> str:
    if isinstance(model_info, str) or "lmtp" not in model_info:
        return "LMTP as in LMQL: token ids only, no cancelling, no text"
    extensions = model_info.get("extensions")
    names = ", ".join(map(str, extensions)) if isinstance(extensions, list | tuple) else "none"
    return f"LMTP {model_info['lmtp']} with extensions: {names}"
