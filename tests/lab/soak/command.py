"""`lab soak`: a server under churn, faults, slow readers and hostile frames; what leaked and what broke."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.bench import Report
from lmtool.cli.common_options import ClientCommon
from lmtool.settings.option import option
from tests.lab.soak.settings import LOAD, SoakBench

if TYPE_CHECKING:
    from lmtool.settings.terminal import Output

INTERRUPTED = 130
LINE_SECONDS = 10.0
"""Between two lines of progress where there is no terminal."""


async def soak(
    common: ClientCommon,
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            help="ws://, http://, HOST:PORT or unix:PATH; every protocol of that port is used.",
            show_default=False,
        ),
    ] = None,
    *,
    model: str | None = option(None, "Which served model.", LOAD, short="-m", metavar="NAME"),
    grpc: str | None = option(None, "Its gRPC port too, HOST:PORT.", LOAD, metavar="ADDRESS"),
    pid: int | None = option(
        None, "The server's process, whose memory is watched.", LOAD, shown_default="the one that listens", metavar="N"
    ),
    bench: SoakBench,
    report: Report,
) -> None:
    """Put a server under everything that clients do wrong at once, beside streams that must not change by one bit.

    Shows what was sent and how it was answered, memory, descriptors, what stayed open, and times of tokens. Ctrl-C ends
    the load and shows what was found so far. Exits with 1 where something broke.
    """
    from lmtool.core.errors import UsageError
    from tests.lab.soak.connection import Address
    from tests.lab.soak.report import as_outcome, finding_card, finding_outcome, soak_card
    from tests.lab.soak.run import run
    from tests.lab.soak.scenarios import SCENARIOS
    from tests.lab.soak.watch import Watch, process_behind
    from tests.lab.soak.wires import find_wires

    out = common.output()
    bench.check()
    before = report.before("soak")
    address = Address.of(url or common.address, common.api_key)
    out.note(f"asking {address.url} what it speaks")
    target = await find_wires(address, model, grpc)
    for reason in target.left_out:
        out.note(f"left out, because a plain request fails there: {reason}")
    process = pid if pid is not None else process_behind(address)
    out.note(f"it speaks {', '.join(target.wires)}; its process is {process or 'not known'}")
    if bench.max_rss is not None and process is None:
        raise UsageError("--max-rss: the server's process is not known", "run this on its machine, with  --pid N")
    if bench.scenario != "mixed":
        with stop_on_signal(at_once=True):
            finding = await SCENARIOS[bench.scenario](bench, address, target, Watch(address, process), out.note)
        result = finding_outcome(finding, bench, address, target)
        report.finish(out, lambda _columns: finding_card(finding, address, target), result, before)
        raise typer.Exit(1 if finding.breaches else 0)
    progress = _Progress(out)
    with stop_on_signal() as stop:
        found = await run(bench, address, target, process, progress.note, progress.show, stop)
    progress.clear()
    report.finish(out, lambda _columns: soak_card(found), as_outcome(found), before)
    if found.breaches:
        raise typer.Exit(1)
    if found.interrupted:
        raise typer.Exit(INTERRUPTED)


class _Progress:
    """Notes, and a line that changes: behind the cursor of a terminal, else every few seconds."""

    def __init__(self, out: Output) -> None:
        import sys

        from lmtool.settings.terminal import PassingNote

        self._out = out
        self._passing = PassingNote(out)
        self._lines = not sys.stderr.isatty()
        self._next = 0.0

    def note(self, text: str) -> None:
        """A line that stays."""
        self._passing.clear()
        self._out.note(text)

    def show(self, text: str) -> None:
        """A line that the next one replaces."""
        if not self._lines:
            self._passing.show(text)
            return
        now = asyncio.get_running_loop().time()
        if now >= self._next:
            self._next = now + LINE_SECONDS
            self._out.note(text)

    def clear(self) -> None:
        """Take the changing line away."""
        self._passing.clear()


@contextlib.contextmanager
def stop_on_signal(*, at_once: bool = False) -> Iterator[asyncio.Event]:
    """An event that the first Ctrl-C or SIGTERM sets; the second one ends the block. at_once: the first one does."""
    loop, stop, task = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
    assert task is not None

    def on_signal() -> None:
        if stop.is_set() or at_once:
            task.cancel()
        stop.set()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    except asyncio.CancelledError:
        if stop.is_set():
            raise typer.Exit(INTERRUPTED) from None
        raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
