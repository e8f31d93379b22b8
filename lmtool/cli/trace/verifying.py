"""One run of `lmtool trace verify`: servers found or started, recordings checked, what came kept."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lmtool.errors import ConnectError, FileError, LmtoolError, UsageError
from lmtool.trace.verification import SUFFIXES, Case, Known, Outcome, judge, name_of

if TYPE_CHECKING:
    from lmtool.trace.comparison import Comparison
    from lmtool.trace.events import Event
    from lmtool.trace.findings import Level
    from lmtool.trace.header import Header
    from lmtool.trace.proxy import Target


@dataclass(frozen=True, slots=True)
class Server:
    """One server under test."""

    target: Target
    model: str | None
    """The name of the model that it serves; None where it does not tell: then it is asked for everything."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How recordings are checked."""

    servers: tuple[Server, ...] = ()
    known: Known = field(default_factory=Known)
    level: Level | None = None
    patience: float = 60.0
    report: Path = Path("report")
    """Folder for what came where it is not as recorded."""
    update: bool = False
    """Put what came in the place of a recording that it does not agree with."""


def find(paths: Sequence[Path]) -> dict[str, Path]:
    """The recordings in these files and folders, by name. Raises `FileError` for a path that is not there."""
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.name.endswith(SUFFIXES))
            found.update({name_of(one.relative_to(path).as_posix()): one for one in inside})
        elif path.exists():
            found[name_of(path.name)] = path
        else:
            raise FileError(f"there is no {path}", "name trace files, or folders that hold them")
    return found


async def ask(url: str, api_key: str | None = None) -> Server:
    """A running server. Raises `ConnectError`, `ServerError`, `TimeLimitError`."""
    from lmtool.cli.wiring import connect
    from lmtool.trace.proxy import parse_target

    target = parse_target(url, api_key)
    if target.url.startswith("http"):
        return Server(target, None)
    async with connect(url, api_key=api_key) as client:
        try:
            models = await client.models(timeout=30.0)
        except ConnectError:
            return Server(target, None)  # it is there: LMQL's drops a connection over a question without a name
        return Server(target, models[0].name if len(models) == 1 else None)


@contextlib.asynccontextmanager
async def started(model: str) -> AsyncIterator[Server]:
    """A server of this model in this process, in float32 on the CPU as for recordings. Raises `ModelLoadError`."""
    from lmtool.cli.serving.listening import ListenConfig, bind, url
    from lmtool.cli.serving.service import Service, ServiceConfig
    from lmtool.cli.wiring import ModelsConfig, need_serve_packages, threads_for
    from lmtool.engine.config import EngineConfig
    from lmtool.trace.proxy import parse_target

    need_serve_packages()
    engine = EngineConfig(device="cpu", dtype="float32", threads=threads_for(model))
    models = ModelsConfig(model)
    service, place = Service(ServiceConfig(models, engine)), ListenConfig(port=0)
    try:
        sockets = bind(place)
        service.listen(sockets)
        await service.ready(lambda _progress: None)
        yield Server(parse_target(url(place, sockets)), models.main)
    finally:
        await service.close()


async def run(
    plan: Plan, cases: Sequence[tuple[Case, Path]], jobs: int, told: Callable[[Outcome], None]
) -> list[Outcome]:
    """Check these, so many at once; `told` gets each outcome as it comes. Returns them in the order of the cases."""
    room = asyncio.Semaphore(jobs)

    async def one(case: Case, path: Path) -> Outcome:
        async with room:
            outcome = await check(plan, case, path)
        told(outcome)
        return outcome

    return list(await asyncio.gather(*(one(case, path) for case, path in cases)))


async def check(plan: Plan, case: Case, path: Path) -> Outcome:
    """The outcome of one case; a file that cannot be read, or a lost connection, is one as well.

    Raises `FileError` where what came cannot be kept.
    """
    began = time.perf_counter()
    try:
        header, events = _read(path)
    except FileError as error:
        return _failed(plan, case, path, error, 0.0)
    try:
        reason, server = _server_for(plan, case, header)
        if reason:
            return Outcome(case, "skipped", reason, recorded=str(path))
        comparisons, came = await _check(plan, case, header, events, server)
    except UsageError as refusal:
        return Outcome(case, "skipped", refusal.message, recorded=str(path))
    except LmtoolError as error:
        return _failed(plan, case, path, error, time.perf_counter() - began)
    return _judged(plan, case, (path, header, events), (comparisons, came), time.perf_counter() - began)


def _failed(plan: Plan, case: Case, path: Path, error: LmtoolError, seconds: float) -> Outcome:
    from lmtool.trace.comparison import Comparison
    from lmtool.trace.findings import Finding

    judgement, reason = judge(case, "fail", plan.known)
    comparison = Comparison("-", "-", (Finding("fail", "shape", "-", None, error.message),))
    return Outcome(case, judgement, reason, (comparison,), seconds, recorded=str(path))


def _read(path: Path) -> tuple[Header, list[Event]]:
    from lmtool.trace.reader import TraceReader

    reader = TraceReader(path)
    events = [event for _, event in reader.located(whole=True)]
    if reader.ending is not None and reader.ending.state == "altered":
        raise FileError(f"{path} is altered: {reader.ending.reason}", "record it again")
    return reader.header, events


def _server_for(plan: Plan, case: Case, header: Header) -> tuple[str, Server | None]:
    """Why a case is not checked, empty where it is; and against which server."""
    directions = header.verify.get("directions")
    if isinstance(directions, list) and case.direction not in directions:
        return str(header.verify.get("why", f"the recording says: {', '.join(map(str, directions))} only")), None
    if case.direction == "mock":
        return "", None
    if not plan.servers:
        return "no server was named", None
    http = header.transport.get("kind") == "http"
    kind = [one for one in plan.servers if one.target.url.startswith("http") == http]
    name = header.model.get("name")
    fitting = [one for one in kind if name is None or one.model in (None, name)]
    if not fitting:
        return f"it is of {name or 'another protocol'}, which no server under test has", None
    return "", fitting[0]


async def _check(
    plan: Plan, case: Case, header: Header, events: Sequence[Event], server: Server | None
) -> tuple[tuple[Comparison, ...], Sequence[Event]]:
    if case.direction == "mock" or server is None:
        from lmtool.trace.mocking import mock

        made, came = await mock(events, patience=plan.patience)
        return tuple(made), came
    from lmtool.trace.replaying import demand_of, replay

    replayed = await replay(events, server.target, demand_of(header, level=plan.level, patience=plan.patience))
    return replayed.comparisons, replayed.events


def _judged(
    plan: Plan,
    case: Case,
    recorded: tuple[Path, Header, Sequence[Event]],
    found: tuple[tuple[Comparison, ...], Sequence[Event]],
    seconds: float,
) -> Outcome:
    from lmtool.trace.findings import worst

    path, header, events = recorded
    comparisons, came = found
    verdict = worst([finding for one in comparisons for finding in one.findings])
    judgement, reason = judge(case, verdict, plan.known)
    outcome = Outcome(case, judgement, reason, comparisons, seconds, recorded=str(path))
    if verdict != "fail":
        return outcome
    if plan.update and case.direction == "drive" and judgement == "fail":
        _keep(path, header, events, came)
        return replace(outcome, judgement="info", reason="recorded again")
    name = case.name.replace("/", "_") + (".actual" if case.direction == "drive" else ".mock")
    actual = plan.report / f"{name}.lmtp.jsonl"
    _keep(actual, header, events, came)
    return replace(outcome, actual=str(actual))


def _keep(path: Path, header: Header, recorded: Sequence[Event], came: Sequence[Event]) -> None:
    from lmtool.trace.keeping import keep

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot make the folder {path.parent}: {error.strerror}") from None
    keep(path, header, recorded, came)
