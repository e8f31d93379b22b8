"""Events of a running server, formatted as text lines or as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from lmtool.core.logprobs.numbers import duration
from lmtool.core.sampling_defaults import described
from lmtool.net.telemetry.request_log import without_content

if TYPE_CHECKING:
    from lmtool.core.types import LoadProgress, ModelInfo
    from lmtool.net.telemetry.refusals import RefusalLog
    from lmtool.net.telemetry.request_log import HttpLog, RequestLog

BAR = "━"
BAR_WIDTH = 27
"""Columns of a full bar on a wide terminal."""


@dataclass(frozen=True, slots=True)
class Started:
    """The process has started; no port is open yet."""

    event: ClassVar[str] = "started"
    version: str
    transport: str
    """`LMTP over WebSocket`, `LMTP over stdio`, or the service of a gateway."""


@dataclass(frozen=True, slots=True)
class Listening:
    """The port is open; requests get progress until a model is loaded."""

    event: ClassVar[str] = "listening"
    url: str
    everywhere: bool
    """True if other machines can connect."""
    attempt: str
    """An example command that connects to the server."""
    grpc: str | None = None
    """Address of Evergreen over gRPC, as HOST:PORT."""


@dataclass(frozen=True, slots=True)
class Loading:
    """A model is being loaded."""

    event: ClassVar[str] = "loading"
    progress: LoadProgress
    seconds: float
    """Seconds since the load began."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The server answers requests."""

    event: ClassVar[str] = "ready"
    model: ModelInfo | None
    """The first model; None if models are loaded on demand."""
    seconds: float
    """Seconds since the process began."""
    further: tuple[ModelInfo, ...] | None = None
    """Other models loaded at the start; None without others."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A request was finished or refused."""

    event: ClassVar[str] = "finished"
    request: RequestLog


@dataclass(frozen=True, slots=True)
class Answered:
    """An HTTP request was answered."""

    event: ClassVar[str] = "answered"
    request: HttpLog


@dataclass(frozen=True, slots=True)
class Refused:
    """Requests were rejected (authentication, origin, limits)."""

    event: ClassVar[str] = "refused"
    requests: RefusalLog


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A file was reloaded; exactly one field is set."""

    event: ClassVar[str] = "reloaded"
    pools: tuple[str, ...] | None = None
    """Names of the pools."""
    keys: tuple[str, ...] | None = None
    """Names of the keys."""
    certificate: str | None = None
    """File of the certificate."""


@dataclass(frozen=True, slots=True)
class LoggedWarning:
    """A problem that does not stop the server."""

    event: ClassVar[str] = "warning"
    message: str


@dataclass(frozen=True, slots=True)
class Draining:
    """The server refuses new streams and exits when the running ones have finished."""

    event: ClassVar[str] = "draining"
    streams: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The port is closed."""

    event: ClassVar[str] = "stopped"


Event: TypeAlias = (
    "Started | Listening | Loading | Ready | Finished | Answered | Refused | Reloaded | LoggedWarning | Draining"
    " | Stopped"
)


def as_json(event: Event, time: str) -> str:
    """One line of JSON: the time (ISO 8601, UTC), the event's name, its fields."""
    import json

    if isinstance(event, Finished | Answered):
        known = without_content(event.request)
    else:
        about = event.requests if isinstance(event, Refused) else event
        known = {name: value for name, value in asdict(about).items() if value is not None}
    return json.dumps({"time": time, "event": event.event, **known}, ensure_ascii=False)


def as_lines(event: Event, clock: str, columns: int) -> list[str]:
    """Text lines. clock: time of day, shown with requests. columns: of the terminal; lines may be longer."""
    match event:
        case Started():
            return [f"lmtool {event.version}  ·  {event.transport}"]
        case Listening():
            where = f"  listen   {event.url}" + ("  (every interface)" if event.everywhere else "")
            both = f"{where}     try: {event.attempt}"
            more = [] if event.grpc is None else [f"  gRPC     {event.grpc}"]
            return [both, *more] if len(both) <= columns else [where, f"  try      {event.attempt}", *more]
        case Loading():
            return [f"loading {event.progress.model}" + _amount(event.progress)]
        case Ready():
            return [
                *(line for info in (event.model, *(event.further or ())) for line in _model_lines(info, columns)),
                f"ready in {event.seconds:.1f} s     Ctrl-C stops (again: at once)",
            ]
        case Finished() | Answered() | Refused():
            return [f"{clock}  {_log_line(event)}"]
        case Reloaded():
            return [f"reloaded: {_reloaded(event)}"]
        case LoggedWarning():
            return [f"warning: {event.message}"]
        case Draining():
            streams = "1 stream" if event.streams == 1 else f"{event.streams} streams"
            return [f"draining: {streams} left, Ctrl-C again stops at once"]
        case Stopped():
            return ["stopped"]


def _reloaded(event: Reloaded) -> str:
    if event.certificate is not None:
        return f"certificate {event.certificate}"
    return f"keys {', '.join(event.keys)}" if event.keys is not None else f"pools {', '.join(event.pools or ())}"


def _model_lines(info: ModelInfo | None, columns: int) -> list[str]:
    if info is None:
        return []
    bare = model_line(replace(info, kernels=None))
    kernels = " · ".join(part for part in (info.kernels, batch_invariance(info)) if part)
    lines = [f"  model    {bare}" + (f" · {kernels}" if kernels else "")]
    if kernels and len(lines[0]) > columns:
        lines = [f"  model    {bare}", f"  kernels  {kernels}"]
    return [*lines, f"  sampling {sampling_line(info)}"] if info.sampling_defaults else lines


def batch_invariance(info: ModelInfo) -> str:
    """`batch invariant: yes` if results do not depend on other streams; empty if unknown."""
    return "" if info.batch_invariant is None else f"batch invariant: {'yes' if info.batch_invariant else 'no'}"


def sampling_line(info: ModelInfo) -> str:
    """Sampling defaults of a model for HTTP requests that omit them; empty without defaults."""
    if not info.sampling_defaults:
        return ""
    return f"{described(info.sampling_defaults)}, where an HTTP request leaves them out"


def model_line(info: ModelInfo) -> str:
    """`gpt2 · 124 M · bfloat16 · cpu · oneDNN`, without unknown parts."""
    parts = (info.model, count(info.parameters), info.dtype, info.device, info.kernels)
    return " · ".join(part for part in parts if part)


def count(number: int | None) -> str:
    """A number of parameters in at most three digits and a unit."""
    if number is None:
        return ""
    value, unit = float(number), ""
    for bigger in (" K", " M", " B", " T"):
        if value < 999.5:
            break
        value, unit = value / 1000, bigger
    return f"{value:.1f}{unit}" if value < 9.95 and unit else f"{value:.0f}{unit}"


def bar(event: Loading, columns: int) -> str:
    """`loading gpt2 ━━━━━━━━━ 120/548 MB  2.1 s` in at most this many columns; no bar while the size is unknown."""
    progress = event.progress
    tail = f"{_amount(progress)}  {event.seconds:.1f} s"
    room = columns - 1 - len(tail) - len("loading ") - 1
    name = progress.model if len(progress.model) <= room else "…" + progress.model[-max(room - 1, 1) :]
    width = min(BAR_WIDTH, room - len(name))
    if not progress.total_bytes or width < 4:
        return f"loading {name}{tail}"
    done = round(width * min(1.0, progress.done_bytes / progress.total_bytes))
    return f"loading {name} {BAR * done}{' ' * (width - done)}{tail}"


def _amount(progress: LoadProgress) -> str:
    if not progress.total_bytes:
        return f" ({progress.message})" if progress.message else ""
    unit, name = (1e9, "GB") if progress.total_bytes >= 1e10 else (1e6, "MB")
    digits = 1 if progress.total_bytes < 10 * unit else 0
    return f" {progress.done_bytes / unit:.{digits}f}/{progress.total_bytes / unit:.{digits}f} {name}"


def _log_line(event: Finished | Answered | Refused) -> str:
    if isinstance(event, Refused):
        return refused_line(event.requests)
    return request_line(event.request) if isinstance(event, Finished) else http_line(event.request)


def http_line(entry: HttpLog) -> str:
    """`POST /v1/completions 200  2 tok in → 5 out  ttft 9.0 ms  12.3 ms`: token counts only if it ran streams."""
    parts = [f"{entry.method} {entry.path} {entry.status or 'left'}"]
    if entry.streams:
        parts.append(f"{entry.prompt_tokens} tok in → {entry.output_tokens} out")
    if entry.ttft is not None:
        parts.append(f"ttft {duration(entry.ttft)}")
    return "  ".join([*parts, duration(entry.seconds)])


def refused_line(entry: RefusalLog) -> str:
    """`refused 401 invalid_api_key  http from 10.0.0.1  3 requests`: the reason, the last peer, the count."""
    parts = [f"refused {entry.status} {entry.reason}", f"{entry.protocol} from {entry.address or 'a Unix socket'}"]
    parts += [f"key {entry.key}"] if entry.key is not None else []
    return "  ".join([*parts, f"{entry.count} request{'s' * (entry.count > 1)}"])


def request_line(entry: RequestLog) -> str:
    """`#1/3 GENERATE 2 tok in → 5 out  ttft 9.0 ms  412 tok/s  length`: connection/stream, counts, times, ending.

    Numbers of protocols other than LMTP begin with the protocol's name: `evergreen#1/"out"`.
    """
    head = f"{entry.protocol or ''}#{entry.connection}/{entry.stream_id} {entry.command}"
    if entry.error is not None:
        return f"{head} ✗ {entry.error}"
    if entry.command == "MODELS" and entry.model is not None:
        return f"{head} {entry.end} {entry.model}  {duration(entry.seconds)}"
    if entry.command not in {"GENERATE", "SCORE"}:
        return f"{head}  {duration(entry.seconds)}"
    prompt = "?" if entry.prompt_tokens is None else entry.prompt_tokens
    cached = f" ({entry.cached_tokens} cached)" if entry.cached_tokens else ""
    parts = [f"{head} {prompt} tok in{cached} → {entry.output_tokens} out"]
    if entry.ttft is not None:
        parts.append(f"ttft {duration(entry.ttft)}")
    if entry.tokens_per_second is not None:
        parts.append(f"{entry.tokens_per_second:.0f} tok/s")
    parts.append(entry.end or "")
    if entry.ignored:
        parts.append(f"ignored {', '.join(entry.ignored)}")
    return "  ".join(part for part in parts if part)
