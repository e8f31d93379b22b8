"""`lmtool models`: the models that this machine could serve, and those that a server serves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from lmtool.cli.common_options import Common
from lmtool.logprobs.numbers import size
from lmtool.option import option

Where: TypeAlias = Literal["served", "embedded", "cache"]
WEIGHTS = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True, slots=True)
class AvailableModel:
    """A model that is served, or could be."""

    where: Where
    """`served` by the endpoint now, `embedded` in this package, or in the hub's download `cache`."""
    name: str
    """The argument of `lmtool serve`."""
    architecture: str | None = None
    size_bytes: int | None = None
    """Size of the weight files on disk."""
    note: str = ""


async def models(
    common: Common,
    json: bool = option(False, "Print a JSON list."),
) -> None:
    """List the available models: served at the endpoint, embedded in lmtool, downloaded from the hub."""
    available = [*await _served(common), *_embedded(), *downloaded_models(hub_cache())]
    out = common.output()
    if json:
        import json as codec

        out.line(codec.dumps([asdict(model) for model in available], ensure_ascii=False))
        return
    sizes = ["" if m.size_bytes is None else size(m.size_bytes) for m in available]
    rows = [(m.where, m.name, m.architecture or "", text, m.note) for m, text in zip(available, sizes, strict=True)]
    for line in align_columns(rows):
        out.line(line)
    if not any(model.where == "cache" for model in available):
        out.note(f"no downloaded models in {hub_cache()}")


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


async def _served(common: Common) -> list[AvailableModel]:
    import asyncio

    from lmtool.errors import AccessDeniedError, LmtoolError
    from lmtool.lmtp.client import LmtpClient

    try:
        async with asyncio.timeout(3), LmtpClient(common.address, api_key=common.api_key) as client:
            entries = await client.models()
            ready = {entry.name: await client.info(entry.name) for entry in entries if entry.phase == "ready"}
    except AccessDeniedError as denied:
        common.output().warn(denied.message)
        return []
    except (LmtoolError, TimeoutError):
        return []
    served = []
    for entry in entries:
        phase = "" if entry.name in ready else f", {entry.phase}"
        architecture = ready[entry.name].architecture if entry.name in ready else None
        note = f"at {common.url}{phase}"
        served.append(AvailableModel("served", entry.name, architecture, entry.size_bytes, note))
    return served


def _embedded() -> list[AvailableModel]:
    from lmtool.serving.model_names import EMBEDDED_NAME
    from lmtool.tiny.path import MODEL_DIR

    model = _in_folder("embedded", EMBEDDED_NAME, MODEL_DIR)
    return [model] if model else []


def hub_cache() -> Path:
    """The download folder of the hub's library, by its own environment variables."""
    if explicit := os.environ.get("HF_HUB_CACHE"):
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{base}/huggingface"
    return Path(home).expanduser() / "hub"


def downloaded_models(folder: Path) -> list[AvailableModel]:
    """The models in a hub cache that have weights, by name."""
    models = []
    for repository in sorted(folder.glob("models--*")):
        name = repository.name.removeprefix("models--").replace("--", "/")
        snapshots = (_in_folder("cache", name, snapshot) for snapshot in _snapshots(repository))
        models += [model for model in snapshots if model][:1]
    return models


def _snapshots(repository: Path) -> Iterator[Path]:
    """The snapshot that `main` points to, then the others."""
    main = repository / "refs/main"
    revision = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    snapshots = sorted(p for p in (repository / "snapshots").glob("*") if p.is_dir())
    yield from sorted(snapshots, key=lambda p: p.name != revision)


def _in_folder(where: Where, name: str, folder: Path) -> AvailableModel | None:
    """The model in a folder; None without a configuration or weights."""
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
    return AvailableModel(where, name, architecture, sum(f.stat().st_size for f in weights))
