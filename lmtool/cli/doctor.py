"""`lmtool doctor`: whether this machine can serve and talk, and what to do where it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from lmtool.cli.invocation import Common

if TYPE_CHECKING:
    from lmtool.cli.output import Output

Verdict: TypeAlias = Literal["ok", "note", "bad"]
MARKS: dict[Verdict, tuple[str, str, str]] = {
    "ok": ("✓", "ok  ", "32"),
    "note": ("!", "note", "33"),
    "bad": ("✗", "bad ", "31"),
}
"""Sign, the same for terminals without Unicode, and colour of each verdict."""
CLIENT = ("typer", "rich", "websockets", "tokenizers", "jinja2", "msgspec")
SEE_TORCH = "see https://pytorch.org/get-started for this machine's build"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    verdict: Verdict
    """`note`: works, but not everything or not at its best. `bad`: broken, and the command exits with 1."""
    name: str
    found: str
    advice: str = ""
    """What to do about it; empty when nothing need be done."""


async def doctor(
    common: Common,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,
) -> None:
    """Check what serving and talking need: versions, devices, port, folders. Exits with 1 if something is broken."""
    from lmtool.cli.output import Output

    out = Output.of(common)
    findings = []
    for finding in [*quick(common), await _endpoint(common), *_devices()]:
        findings.append(finding)
        if not json:
            _print(out, finding)
    if json:
        import json as codec

        out.line(codec.dumps([asdict(finding) for finding in findings], ensure_ascii=False))
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)


def _print(out: Output, finding: Finding) -> None:
    sign, plain, color = MARKS[finding.verdict]
    out.write_styled(sign if _unicode() else plain, color)
    out.line(f" {finding.name:<9} {finding.found}")
    if finding.advice:
        out.line(f"{'':<11} {finding.advice}")


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def quick(common: Common) -> Iterator[Finding]:
    """Everything that needs neither the network nor torch."""
    from lmtool.cli.wiring import INSTALL_SERVE, SERVE_PACKAGES

    yield _python()
    yield _packages("client", CLIENT, "bad", "pip install --force-reinstall lmtool")
    yield _packages("serve", SERVE_PACKAGES, "note", f"only talking works; to serve models:  {INSTALL_SERVE}")
    yield _embedded()
    yield _memory()
    yield _cache()
    yield _settings(common)
    yield _terminal()


def _python() -> Finding:
    import platform

    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    return Finding("ok", "python", found)


def _packages(name: str, packages: tuple[str, ...], verdict: Verdict, advice: str) -> Finding:
    missing = [p for p in packages if importlib.util.find_spec(p) is None]
    if missing:
        return Finding(verdict, name, f"not installed: {', '.join(missing)}", advice)
    return Finding("ok", name, ", ".join(f"{p} {importlib.metadata.version(p)}" for p in packages))


def _embedded() -> Finding:
    from lmtool.cli.models import size
    from lmtool.tiny.path import MODEL_DIR

    weights = sum(f.stat().st_size for f in MODEL_DIR.glob("*.safetensors"))
    if not weights or not (MODEL_DIR / "tokenizer.json").is_file():
        return Finding("bad", "embedded", f"no model in {MODEL_DIR}", "pip install --force-reinstall lmtool")
    return Finding("ok", "embedded", f"{size(weights)} of weights in {MODEL_DIR}")


def _memory() -> Finding:
    from lmtool.cli.models import size

    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return Finding("ok", "memory", "unknown on this system")
    return Finding("ok", "memory", f"{size(total)}, {size(free)} free")


def _cache() -> Finding:
    from lmtool.cli.models import cached, hub_cache, size

    folder = hub_cache()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(existing, os.W_OK):
        return Finding("note", "cache", f"{folder} cannot be written", "point HF_HOME to a folder of your own")
    free, models = shutil.disk_usage(existing).free, len(cached(folder))
    return Finding("ok", "cache", f"{folder}: {models} model{'s' * (models != 1)}, {size(free)} free")


def _settings(common: Common) -> Finding:
    from lmtool.cli.settings import load

    files = load(common.settings).files
    return Finding("ok", "settings", ", ".join(map(str, files)) or "no lmtool.toml; the defaults hold")


def _terminal() -> Finding:
    if not sys.stdout.isatty():
        return Finding("ok", "terminal", "none: output goes to a pipe or file")
    columns, rows = shutil.get_terminal_size()
    found = f"{os.environ.get('TERM', 'unknown')}, {columns}x{rows}, {sys.stdout.encoding}"
    if not _unicode():
        return Finding("note", "terminal", found, "set LANG=C.UTF-8 (or PYTHONUTF8=1) to see every character")
    return Finding("ok", "terminal", found)


async def _endpoint(common: Common) -> Finding:
    import asyncio

    from lmtool.cli.wiring import connect
    from lmtool.errors import AccessDeniedError, ConnectError, LmtoolError

    try:
        async with asyncio.timeout(3), connect(common.address, api_key=common.api_key) as client:
            info = await client.info()
    except ConnectError:
        return Finding("ok", "endpoint", f"no server at {common.url}: the port is free")
    except AccessDeniedError as denied:
        return Finding("note", "endpoint", denied.message, "; ".join(denied.hints))
    except (LmtoolError, TimeoutError) as error:
        reason = getattr(error, "message", "it does not answer within 3 s")
        return Finding(
            "note", "endpoint", f"{common.url} does not answer MODEL_INFO: {reason}", "serve with another --port"
        )
    return Finding("ok", "endpoint", f"{common.url} serves {info.model}")


def _devices() -> Iterator[Finding]:
    """What torch can compute on; importing it is the slowest check, so it comes last."""
    if importlib.util.find_spec("torch") is None:
        return
    try:
        from lmtool.engine.devices import describe, describe_auto

        described = [*describe(), ("dtype", f"on the CPU, {describe_auto()}")]
    except (ImportError, OSError) as error:  # installed, and a library it needs is not there
        yield Finding(
            "bad", "torch", f"cannot be imported: {error}", f"pip install --force-reinstall torch; {SEE_TORCH}"
        )
        return
    yield from (Finding("ok", name, found) for name, found in described)
    yield _kernels()


def _kernels() -> Finding:
    from lmtool.engine.devices import describe_kernels
    from lmtool.errors import ResourceError

    try:
        return Finding("ok", "kernels", describe_kernels())
    except ResourceError as problem:
        slower = f"{problem.message}: models take about 1.5 times as long on the CPU"
        return Finding("note", "kernels", slower, problem.hints[0])
