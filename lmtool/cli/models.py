"""`lmtool models`: lists served, included and downloaded models; loads and unloads models of a server."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.cli.common_options import ClientCommon
from lmtool.core.logprobs.numbers import size
from lmtool.inference.text.files import hub_cache
from lmtool.serving.hub_cache import snapshots, weight_files
from lmtool.settings.option import option

if TYPE_CHECKING:
    from rich.console import Group

    from lmtool.core.model_entry import ModelEntry
    from lmtool.settings.terminal import Output

Where: TypeAlias = Literal["served", "embedded", "cache"]
LIST_SECONDS = 3.0
"""Seconds to wait for a server's list; without an answer only models on this machine are listed."""
WIDE = 80
"""Narrower tables omit the architecture and the context."""


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model that is or could be served."""

    where: Where
    """`served` by the endpoint, `embedded` in this package, or in the hub's download `cache`."""
    name: str
    """The argument of `lmtool serve`."""
    architecture: str | None = None
    size_bytes: int | None = None
    """Size of the weight files on disk."""
    note: str = ""
    """Phase and further facts of a served model."""
    phase: str | None = None
    """Phase of a served model: LMTP, INF-6."""
    context_length: int | None = None
    idle_seconds: float | None = None
    """Seconds since a served model's last stream ended."""
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    error: str | None = None
    """Reason a served model failed to load."""


async def models(
    common: ClientCommon,
    load: str | None = option(None, "Load this model on the server.", metavar="NAME"),
    unload: str | None = option(None, "Unload this model on the server.", metavar="NAME"),
    json: bool = option(False, "Print a JSON list."),
) -> None:
    """List models: served at the endpoint, included in lmtool, downloaded from the hub.

    With --load or --unload, list the server's models after that; with both, the server unloads first.
    """
    from lmtool.core.errors import UsageError

    if load is not None and load == unload:
        raise UsageError(f"--load {load} and --unload {unload} contradict each other", "give one of them")
    out = common.output()
    if load is None and unload is None:
        available = [*await _served(common), *_embedded(), *downloaded_models(hub_cache())]
    else:
        available = await _manage(common, out, load, unload)
    if json:
        import json as codec

        out.line(codec.dumps([asdict(model) for model in available], ensure_ascii=False))
    elif out.terminal:
        _print_table(out, available, common.url)
    else:
        for line in align_columns([_row(model) for model in available]):
            out.line(line)
    local = load is None and unload is None and not json
    if local and not any(model.where == "cache" for model in available):
        out.note(f"no downloaded models in {hub_cache()}")


def _row(model: AvailableModel) -> tuple[str, ...]:
    known = "" if model.size_bytes is None else size(model.size_bytes)
    return (model.where, model.name, model.architecture or "", known, model.note)


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _print_table(out: Output, available: Sequence[AvailableModel], url: str) -> None:
    from rich.console import Console

    columns = shutil.get_terminal_size().columns
    console = Console(
        file=sys.stdout, width=columns, no_color=not out.color, force_terminal=out.color, highlight=False, emoji=False
    )
    served = [model for model in available if model.where == "served"]
    if served:
        console.print(model_table(served, f"served at {url}", columns))
    if local := [model for model in available if model.where != "served"]:
        console.print(model_table(local, "on this machine", columns))


def model_table(models: Sequence[AvailableModel], title: str, columns: int) -> Group:
    """A table of this width, and below it the errors of models that failed to load.

    Names are folded; narrow tables omit less important columns.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from lmtool.settings.terminal import visible

    wide = columns >= WIDE
    table = Table(title=Text(visible(title)), title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("name", overflow="fold", min_width=8)
    table.add_column("state", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    if wide:
        table.add_column("context", justify="right", no_wrap=True)
        table.add_column("architecture", overflow="ellipsis", no_wrap=True)
    table.add_column("used", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for model in models:
        cells = [model.name, model.phase or model.where, "" if model.size_bytes is None else size(model.size_bytes)]
        if wide:
            cells += ["" if model.context_length is None else str(model.context_length), model.architecture or ""]
        cells += [_used(model), "; ".join(_remarks(model))]
        style = {"ready": "", "failed": "red", "loading": "yellow", "queued": "yellow"}.get(model.phase or "", "dim")
        table.add_row(*(Text(visible(cell)) for cell in cells), style=style if model.where == "served" else "")
    errors = [Text(visible(f"\n{model.name}: {model.error}")) for model in models if model.error]
    return Group(table, *errors)


def _used(model: AvailableModel) -> str:
    if model.idle_seconds is None:
        return "now" if model.phase == "ready" else ""
    return f"{ago(model.idle_seconds)} ago"


def _remarks(model: AvailableModel) -> list[str]:
    pinned = ["pinned"] if model.pinned else []
    return [*pinned, f"also {', '.join(model.aliases)}"] if model.aliases else pinned


def ago(seconds: float) -> str:
    """A time span in one unit: `12 s`, `5 min`, `3 h`, `2 d`."""
    for unit, length, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds // 86_400)} d"


async def _manage(common: ClientCommon, out: Output, load: str | None, unload: str | None) -> list[AvailableModel]:
    """Load or unload models of the server, and list its models. Shows load progress on stderr."""
    from lmtool.protocol.lmtp.client import LmtpClient
    from lmtool.terminal.chat.peer import Waiting

    waiting = Waiting(out)
    try:
        async with LmtpClient(common.address, api_key=common.api_key, on_progress=waiting.progress) as client:
            if unload is not None:
                entries = await client.unload(unload)
            if load is not None:
                waiting.begin()
                entries = await client.load(load)
                waiting.answered()
            return [_described(entry) for entry in entries]
    finally:
        waiting.close()


async def _served(common: ClientCommon) -> list[AvailableModel]:
    """Models of the server at the endpoint; empty without a server."""
    import asyncio

    from lmtool.core.errors import AccessDeniedError, LmtoolError
    from lmtool.protocol.lmtp.client import LmtpClient

    try:
        async with asyncio.timeout(LIST_SECONDS), LmtpClient(common.address, api_key=common.api_key) as client:
            return [_described(entry) for entry in await client.models()]
    except AccessDeniedError as denied:
        common.output().warn(denied.message)
        return []
    except (LmtoolError, TimeoutError):
        return []


def _described(entry: ModelEntry) -> AvailableModel:
    model = AvailableModel(
        "served",
        entry.name,
        entry.architecture,
        entry.size_bytes,
        phase=entry.phase,
        context_length=entry.context_length,
        idle_seconds=entry.idle_seconds,
        aliases=entry.aliases,
        pinned=entry.pinned,
        error=entry.error,
    )
    used = f"used {_used(model)}" if _used(model) else ""
    return replace(model, note="; ".join(part for part in (entry.phase, used, *_remarks(model), model.error) if part))


def _embedded() -> list[AvailableModel]:
    from lmtool.inference.tiny.path import EMBEDDED_NAME, MODEL_DIR

    model = _in_folder("embedded", EMBEDDED_NAME, MODEL_DIR)
    return [model] if model else []


def downloaded_models(folder: Path) -> list[AvailableModel]:
    """The models in a hub cache that have weights, by name."""
    models = []
    for repository in sorted(folder.glob("models--*")):
        name = repository.name.removeprefix("models--").replace("--", "/")
        found = (_in_folder("cache", name, snapshot) for snapshot in snapshots(repository))
        models += [model for model in found if model][:1]
    return models


def _in_folder(where: Where, name: str, folder: Path) -> AvailableModel | None:
    """The model in a folder, or None without configuration or weights."""
    import json as codec

    weights = weight_files(folder)
    if not weights:
        return None
    try:
        config = codec.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    names = config.get("architectures") if isinstance(config, dict) else None
    architecture = str(names[0]) if isinstance(names, list) and names else None
    return AvailableModel(where, name, architecture, sum(f.stat().st_size for f in weights))
