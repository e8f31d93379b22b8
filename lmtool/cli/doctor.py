"""`lmtool doctor`: checks that this machine can serve and chat, with advice for what is broken."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

import typer

from lmtool.cli.common_options import ClientCommon
from lmtool.core.logprobs.numbers import size
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.settings.terminal import Output

Verdict: TypeAlias = Literal["ok", "note", "bad"]
MARKS: dict[Verdict, tuple[str, str, str]] = {
    "ok": ("✓", "ok  ", "32"),
    "note": ("!", "note", "33"),
    "bad": ("✗", "bad ", "31"),
}
"""Verdict to its sign, its sign without Unicode, and its colour."""
CLIENT = ("typer", "rich", "websockets", "tokenizers", "jinja2", "msgspec", "aiohttp")
UNTRIED_GPU = (
    "lmtool was tested on an NVIDIA H200 only: measure yours with python -m tests.lab gpu; lmtool docs install"
)
SEE_TORCH = "see https://pytorch.org/get-started for this machine's build"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    verdict: Verdict
    """`note`: works with limits. `bad`: broken; the command exits with 1."""
    name: str
    detail: str
    advice: str = ""
    """Advice for fixing it; empty if nothing is wrong."""


async def doctor(
    common: ClientCommon,
    json: bool = option(False, "Print a JSON list."),
) -> None:
    """Check that this machine can serve and chat: versions, devices, port, folders. Exits with 1 if not."""
    out = common.output()
    findings = []
    for finding in [*quick_checks(common), await _endpoint(common), *_devices()]:
        findings.append(finding)
        if not json:
            _print(out, finding)
    if json:
        import json as codec

        rows = [{"verdict": f.verdict, "name": f.name, "found": f.detail, "advice": f.advice} for f in findings]
        out.line(codec.dumps(rows, ensure_ascii=False))
    if any(finding.verdict == "bad" for finding in findings):
        raise typer.Exit(1)


def _print(out: Output, finding: Finding) -> None:
    sign, plain, color = MARKS[finding.verdict]
    out.write_styled(sign if _unicode() else plain, color)
    out.line(f" {finding.name:<9} {finding.detail}")
    if finding.advice:
        out.line(f"{'':<11} {finding.advice}")


def _unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def quick_checks(common: ClientCommon) -> Iterator[Finding]:
    """Checks without network and torch."""
    from lmtool.cli.settings import load
    from lmtool.serving.composition import INSTALL_SERVE, SERVE_PACKAGES

    system = f"{platform.system()} {platform.machine()}"
    yield Finding("ok", "python", f"{platform.python_version()} on {system}, {sys.executable}")
    yield _packages("client", CLIENT, "bad", "pip install --force-reinstall lmtool")
    yield _packages("serve", SERVE_PACKAGES, "note", f"only clients work; to serve models:  {INSTALL_SERVE}")
    yield _embedded()
    yield _memory()
    yield _cache()
    files = load(common.settings).files
    yield Finding("ok", "settings", ", ".join(map(str, files)) or "no lmtool.toml; defaults apply")
    yield _terminal()


def _packages(name: str, packages: tuple[str, ...], verdict: Verdict, advice: str) -> Finding:
    from lmtool.serving.composition import is_installed

    missing = [p for p in packages if not is_installed(p)]
    if missing:
        return Finding(verdict, name, f"not installed: {', '.join(missing)}", advice)
    names = [p.rpartition(".")[2] for p in packages]  # google.protobuf belongs to the distribution protobuf
    return Finding("ok", name, ", ".join(f"{p} {importlib.metadata.version(p)}" for p in names))


def _embedded() -> Finding:
    from lmtool.inference.tiny.path import MODEL_DIR

    weights = sum(f.stat().st_size for f in MODEL_DIR.glob("*.safetensors"))
    if not weights or not (MODEL_DIR / "tokenizer.json").is_file():
        return Finding("bad", "embedded", f"no model in {MODEL_DIR}", "pip install --force-reinstall lmtool")
    return Finding("ok", "embedded", f"{size(weights)} of weights in {MODEL_DIR}")


def _memory() -> Finding:
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return Finding("ok", "memory", "unknown on this system")
    return Finding("ok", "memory", f"{size(total)}, {size(free)} free")


def _cache() -> Finding:
    from lmtool.cli.models import downloaded_models
    from lmtool.inference.text.files import hub_cache

    folder = hub_cache()
    existing = next(p for p in (folder, *folder.parents) if p.exists())
    if not os.access(existing, os.W_OK):
        return Finding("note", "cache", f"{folder} cannot be written", "point HF_HOME to a folder of your own")
    free, models = shutil.disk_usage(existing).free, len(downloaded_models(folder))
    return Finding("ok", "cache", f"{folder}: {models} model{'s' * (models != 1)}, {size(free)} free")


def _terminal() -> Finding:
    if not sys.stdout.isatty():
        return Finding("ok", "terminal", "none: output goes to a pipe or file")
    columns, rows = shutil.get_terminal_size()
    detail = f"{os.environ.get('TERM', 'unknown')}, {columns}x{rows}, {sys.stdout.encoding}"
    if not _unicode():
        return Finding("note", "terminal", detail, "set LANG=C.UTF-8 (or PYTHONUTF8=1) to see every character")
    return Finding("ok", "terminal", detail)


async def _endpoint(common: ClientCommon) -> Finding:
    import asyncio

    from lmtool.core.errors import AccessDeniedError, ConnectError, LmtoolError
    from lmtool.protocol.lmtp.client import LmtpClient

    try:
        async with asyncio.timeout(3), LmtpClient(common.address, api_key=common.api_key) as client:
            info = await client.info()
    except ConnectError:
        return Finding("ok", "endpoint", f"no server at {common.url}: the port is free")
    except AccessDeniedError as denied:
        return Finding("note", "endpoint", denied.message, "; ".join(denied.hints))
    except (LmtoolError, TimeoutError) as error:
        reason = getattr(error, "message", "no answer within 3 s")
        return Finding(
            "note", "endpoint", f"{common.url} does not answer MODEL_INFO: {reason}", "serve with another --port"
        )
    return Finding("ok", "endpoint", f"{common.url} serves {info.model}")


def _devices() -> Iterator[Finding]:
    """Devices of torch; the slowest check, because it imports torch, so it runs last."""
    if importlib.util.find_spec("torch") is None:
        return
    try:
        from lmtool.inference.engine.hardware import describe_auto_dtype, describe_devices

        described = [*describe_devices(), ("dtype", f"on the CPU, {describe_auto_dtype()}")]
    except (ImportError, OSError) as error:  # installed, but a library it needs is missing
        yield Finding(
            "bad", "torch", f"cannot be imported: {error}", f"pip install --force-reinstall torch; {SEE_TORCH}"
        )
        return
    for name, detail in described:
        untried = name.startswith("cuda") and "H200" not in detail
        yield Finding("note", name, detail, UNTRIED_GPU) if untried else Finding("ok", name, detail)
    yield _kernels()


def _kernels() -> Finding:
    from lmtool.core.errors import ResourceError
    from lmtool.inference.engine.hardware import describe_kernels

    try:
        return Finding("ok", "kernels", describe_kernels())
    except ResourceError as problem:
        slower = f"{problem.message}: models are about 1.5 times slower on the CPU"
        return Finding("note", "kernels", slower, problem.hints[0])
