"""A model in this process, to chat with where nobody has started a server."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from lmtool.core.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from typing import Any

    from lmtool.core.types import LoadProgress
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.settings.terminal import Output

PROBE_SECONDS = 1.0
"""How long whoever listens at the default address may take to accept a connection."""

T = TypeVar("T")


@asynccontextmanager
async def reachable(endpoint: Endpoint, out: Output, model: str | None) -> AsyncIterator[Endpoint]:
    """The endpoint; where nothing listens there, that of a server in this process, which ends with the block.

    It has `model`, or the embedded model, and listens on a Unix socket that nobody else may use. Says so in a line of
    stderr once that is loaded: before, nobody knows whether there is such a model. Raises `ResourceError` without the
    packages that serving needs, and the errors of loading a model.
    """
    if await _listens(endpoint.url):
        yield endpoint
        return
    _check(endpoint.url)
    from lmtool import api
    from lmtool.protocol.lmtp.endpoint import parse
    from lmtool.serving.model_names import served, threads_for

    name = served(model).names[0]
    async with AsyncExitStack() as stack:
        path, folder = None, None
        if os.name == "posix":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lmtool-"))
            path = str(Path(folder) / "socket")
        with _load_shown(out) as on_progress:
            serving = api.serve(model, unix=path, on_progress=on_progress, threads=threads_for(model))
            server = await _unless_interrupted(stack.enter_async_context(serving), folder)
        out.note(f"no server is running: {name} answers in this process  (lmtool serve keeps it loaded)")
        yield parse(server.url)


def _check(url: str) -> None:
    """Raise `ResourceError` where no model can run here."""
    from lmtool.serving.composition import need_serve_packages

    try:
        need_serve_packages()
    except ResourceError as missing:
        raise ResourceError(
            f"no server at {url}, and no model can run in this process: {missing.message}",
            *missing.hints,
            "or use a server elsewhere:  lmtool chat --endpoint ws://HOST:PORT ...",
        ) from None


async def _listens(url: str) -> bool:
    """True if anything accepts connections there; what it speaks is found by the attempt in earnest."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except ConnectionRefusedError:
        return False
    except (OSError, TimeoutError):
        return True
    writer.close()
    return True


@contextmanager
def _load_shown(out: Output) -> Iterator[Callable[[LoadProgress], None]]:
    """Shows on stderr how a load proceeds, as long as it does: a bar on a terminal, an occasional line elsewhere."""
    from lmtool.serving.console import CLEAR, Console, unbuffered
    from lmtool.serving.events import Loading

    began, put, terminal = time.monotonic(), unbuffered(sys.stderr), sys.stderr.isatty()
    console = Console(put, color=out.note_color, terminal=terminal, quiet=out.quiet)

    def on_progress(progress: LoadProgress) -> None:
        if progress.phase not in {"ready", "failed"}:
            console.emit(Loading(progress, time.monotonic() - began))

    try:
        yield on_progress
    finally:
        console.close()
        if terminal and not out.quiet:
            put(CLEAR)


async def _unless_interrupted(entering: Coroutine[Any, Any, T], folder: str | None) -> T:
    """Await a load, which cannot be stopped: Ctrl-C ends the process at once. folder: to be removed then."""
    from lmtool.net.subprocesses.exit import exit_now
    from lmtool.serving.interrupts import watch
    from lmtool.serving.run import first

    loading = asyncio.create_task(entering)
    with watch() as interrupts:
        await first(loading, interrupts.first.wait())
        if not loading.done():
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            exit_now(interrupts.exit_status)
    return loading.result()
