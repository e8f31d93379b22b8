"""`lmtool trace verify`: recordings as tests, in both directions."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lmtool.cli.common_options import PANEL, Common
from lmtool.settings.option import option
from lmtool.settings.terminal import PassingNote

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from lmtool.settings.terminal import Output
    from lmtool.trace.verification import Plan, RecordingOutcome, Server


@dataclass(frozen=True, slots=True, repr=False)
class VerifyCommon(Common):
    """With the key for the servers that it sends recordings to."""

    api_key: str | None = option(
        None, "API key to send to the servers of --to; prefer LMTOOL_API_KEY.", PANEL, metavar="KEY"
    )


async def verify(
    common: VerifyCommon,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Traces, and folders that hold some.")],
    to: list[str] | None = option(None, "A server to send recordings to; repeatable.", metavar="URL"),
    serve: list[str] | None = option(None, "Serve this model here and send them to it; repeatable.", metavar="MODEL"),
    only: list[str] | None = option(None, "NAME, or NAME[drive]; repeatable.", metavar="GLOB"),
    listing: bool = option(False, "List the checks without running them.", flag="--list"),
    level: Literal["shape", "ids", "numbers", "time"] | None = option(
        None, "What must be equal.", shown_default="as each recording says, or numbers"
    ),
    known_failing: Path | None = option(None, "Checks that must fail: PATTERN  # reason, one a line.", metavar="FILE"),
    known_flaky: Path | None = option(None, "Checks that may fail, in the same format.", metavar="FILE"),
    update: bool = option(False, "Replace recordings that the server no longer agrees with; not in CI."),
    report: Path | None = option(None, "Write junit.xml, report.json and report.md there.", metavar="FOLDER"),
    jobs: int = option(1, "Checks at once.", short="-j", metavar="N", minimum=1),
    timeout_s: float = option(60.0, "Longest wait for an answer.", flag="--timeout", metavar="S", minimum=0),
) -> None:
    """Check each recording twice: played to our client by the mock server, and sent to a real server.

    Status 1 where a check does not hold; then the replay is kept beside the report.
    """
    from lmtool.core.errors import UsageError
    from lmtool.trace import verification
    from lmtool.trace.outcomes import KnownFailures

    out, recordings = common.output(), verification.find(paths)
    cases = verification.select(list(recordings), only or ())
    if listing:
        for case in cases:
            out.line(case.id)
        return
    if update and os.environ.get("CI"):
        raise UsageError("--update is refused in CI: recordings are replaced by people, who look at what changed")
    known = KnownFailures.read(known_failing, known_flaky)
    progress = PassingNote(out)
    async with contextlib.AsyncExitStack() as servers:
        servers.callback(progress.clear)
        progress.show(f"{len(cases)} checks: getting the servers ready")
        under_test = [await running_server(url, common.api_key) for url in to or ()]
        under_test += [await servers.enter_async_context(local_server(model)) for model in serve or ()]
        plan = verification.Plan(tuple(under_test), known, level, timeout_s, report or Path("report"), update)
        located = [(case, recordings[case.name]) for case in cases]
        left = len(located)
        progress.show(f"{left} checks left")

        def finished(one: RecordingOutcome) -> None:
            nonlocal left
            left -= 1
            progress.clear()
            for line in one.lines:
                out.line(line)
            if one.trace:
                out.line(f"    lmtool inspect {one.recorded} {one.trace}")
                out.line(f"    lmtool trace diff {one.recorded} {one.trace}")
            progress.show(f"{left} checks left")

        outcomes = await verification.run(plan, located, jobs, finished)
    _finish(out, outcomes, plan, written=report is not None)


def _finish(out: Output, outcomes: Sequence[RecordingOutcome], plan: Plan, *, written: bool) -> None:
    from lmtool.core.errors import FileError
    from lmtool.trace.outcomes import summary, unmatched
    from lmtool.trace.verification import REPORTS
    from lmtool.trace.writer import write_text

    if written:
        try:
            plan.report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot write into {plan.report}: {error.strerror}") from None
        for name, write in REPORTS.items():
            write_text(plan.report / name, write(outcomes))
    out.note(summary(outcomes, "checks"), "")
    for pattern in unmatched(plan.known.failing, [one.case for one in outcomes]):
        out.warn(f"known-failing lists {pattern}, which matches no check")
    if any(one.bad for one in outcomes):
        raise typer.Exit(1)


async def running_server(url: str, api_key: str | None) -> Server:
    """A running server. Raises `ConnectError`, `ServerError`, `TimeLimitError`."""
    from lmtool.core.errors import ConnectError
    from lmtool.protocol.lmtp.client import LmtpClient
    from lmtool.trace.proxy import parse_target
    from lmtool.trace.verification import Server

    target = parse_target(url, api_key)
    if target.url.startswith("http"):
        return Server(target, None)
    async with LmtpClient(url, api_key=api_key) as client:
        try:
            models = await client.models(timeout=30.0)
        except ConnectError:
            return Server(target, None)  # it runs: LMQL's server drops a connection that asks without a model name
        return Server(target, models[0].name if len(models) == 1 else None)


@contextlib.asynccontextmanager
async def local_server(model: str) -> AsyncIterator[Server]:
    """A server of this model in this process, in float32 on the CPU as for recordings. Raises `ModelLoadError`."""
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.serving.composition import need_serve_packages
    from lmtool.serving.config import ListenConfig, ModelsConfig, ServiceConfig
    from lmtool.serving.listening import bind, url
    from lmtool.serving.model_names import threads_for
    from lmtool.serving.service import Service
    from lmtool.trace.proxy import parse_target
    from lmtool.trace.verification import Server

    need_serve_packages()
    engine = EngineConfig(device="cpu", dtype="float32", threads=threads_for(model))
    models = ModelsConfig(model)
    service, place = Service(ServiceConfig(models, engine)), ListenConfig(port=0)
    try:
        sockets = bind(place)
        service.listen(sockets)
        await service.ready(lambda _progress: None)
        yield Server(parse_target(url(place, sockets)), models.main, any_protocol=True)
    finally:
        await service.close()
