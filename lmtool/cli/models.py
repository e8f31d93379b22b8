"""`lmtool models`: what could be served from this machine, and what is being served."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from lmtool.cli.invocation import Common

Where: TypeAlias = Literal["served", "embedded", "cache"]
WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True, slots=True)
class Found:
    """One model somebody could talk to."""

    where: Where
    """`served` by the endpoint now, `embedded` in this package, or in the hub's download `cache`."""
    name: str
    """What to type after `lmtool serve`."""
    architecture: str | None = None
    size_bytes: int | None = None
    """Size of the weight files on disk."""
    note: str = ""


async def models(
    common: Common,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """List the models at hand: served at the endpoint, embedded in lmtool, downloaded from the hub."""
    from lmtool.cli.output import Output

    found = [*await _served(common), *_embedded(), *cached(hub_cache())]
    out = Output.of(common)
    if json:
        import json as codec

        out.line(codec.dumps([asdict(model) for model in found], ensure_ascii=False))
        return
    for line in table(found):
        out.line(line)
    if not any(model.where == "cache" for model in found):
        out.note(f"no downloaded models in {hub_cache()}")


def table(found: list[Found]) -> list[str]:
    """Lay the models out in columns."""
    rows = [(m.where, m.name, m.architecture or "", size(m.size_bytes), m.note) for m in found]
    return columns_of(rows)


def columns_of(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose cells stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def size(count: int | None) -> str:
    """A number of bytes for people: three digits at most, decimal units."""
    if count is None:
        return ""
    value, unit = float(count), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, bigger
    return f"{value:.1f} {unit}" if value < 9.95 and unit != "B" else f"{value:.0f} {unit}"


async def _served(common: Common) -> list[Found]:
    import asyncio

    from lmtool.cli.output import Output
    from lmtool.cli.wiring import connect
    from lmtool.errors import AccessDeniedError, LmtoolError

    try:
        async with asyncio.timeout(3), connect(common.address, api_key=common.api_key) as client:
            entries = await client.models()
            ready = {entry.name: await client.info(entry.name) for entry in entries if entry.phase == "ready"}
    except AccessDeniedError as denied:
        Output.of(common).warn(denied.message)
        return []
    except (LmtoolError, TimeoutError):
        return []
    return [
        Found("served", entry.name, ready[entry.name].architecture, entry.size_bytes, f"at {common.url}")
        if entry.name in ready
        else Found("served", entry.name, None, entry.size_bytes, f"at {common.url}, {entry.phase}")
        for entry in entries
    ]


def _embedded() -> list[Found]:
    from lmtool.cli.wiring import EMBEDDED_NAME
    from lmtool.tiny.path import MODEL_DIR

    model = _in_folder("embedded", EMBEDDED_NAME, MODEL_DIR)
    return [model] if model else []


def hub_cache() -> Path:
    """The folder into which the hub's library downloads, by its own environment variables."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{base}/huggingface"
    return Path(home).expanduser() / "hub"


def cached(folder: Path) -> list[Found]:
    """Find the models in a hub cache that have weights, by name."""
    found = []
    for repository in sorted(folder.glob("models--*")):
        name = repository.name.removeprefix("models--").replace("--", "/")
        models = (_in_folder("cache", name, snapshot) for snapshot in _snapshots(repository))
        found += [model for model in models if model][:1]
    return found


def _snapshots(repository: Path) -> Iterator[Path]:
    """Yield the snapshot that `main` points to, then the others."""
    main = repository / "refs/main"
    revision = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    snapshots = sorted(p for p in (repository / "snapshots").glob("*") if p.is_dir())
    yield from sorted(snapshots, key=lambda p: p.name != revision)


def _in_folder(where: Where, name: str, folder: Path) -> Found | None:
    """Describe the model in a folder; None where there is no configuration or no weights."""
    import json as codec

    weights = [f for f in folder.glob("*") if f.suffix in WEIGHTS and f.is_file()]
    if not weights:
        return None
    try:
        config = codec.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    names = config.get("architectures") if isinstance(config, dict) else None
    architecture = str(names[0]) if isinstance(names, list) and names else None
    return Found(where, name, architecture, sum(f.stat().st_size for f in weights))
