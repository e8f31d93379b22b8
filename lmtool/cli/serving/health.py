"""What probes and dashboards ask a server over HTTP: `/health` and `/metrics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lmtool.errors import InvalidAnswerError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from starlette.routing import BaseRoute

    from lmtool.lmtp.request_log import RequestLog
    from lmtool.types import LoadProgress

State: TypeAlias = Literal["loading", "ready", "failed", "draining"]
COMMANDS = frozenset({"GENERATE", "SCORE", "MODEL_INFO", "CANCEL"})
STATUS: dict[State, int] = {"ready": 200, "loading": 503, "draining": 503, "failed": 500}


@dataclass
class Health:
    """The state of a server and what it has done since its start."""

    state: State = "loading"
    model: str | None = None
    """The model it was started with; None where models are loaded on demand."""
    progress: LoadProgress | None = None
    """How far the load is."""
    message: str = ""
    """Why the state is `failed`."""
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Ended requests by command and ending: a finish reason, `left`, or `error`."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    invalid_answers: int = 0
    """Finished strict answers that were not valid, and did not reach `stop`."""

    def count(self, entry: RequestLog) -> None:
        """Count one ended request."""
        command = entry.command if entry.command in COMMANDS else "other"  # a client may send anything
        self.requests[command, "error" if entry.error is not None else entry.end or "stop"] += 1
        self.prompt_tokens += entry.prompt_tokens or 0
        self.cached_tokens += entry.cached_tokens
        self.output_tokens += entry.output_tokens
        self.invalid_answers += entry.error_code == InvalidAnswerError.code

    def report(self) -> dict[str, Any]:
        """What `/health` says."""
        told: dict[str, Any] = {"status": self.state, "model": self.model}
        if self.state == "failed":
            told["error"] = self.message
        if self.state == "loading" and self.progress is not None:
            told["progress"] = {
                "phase": self.progress.phase,
                "done_bytes": self.progress.done_bytes,
                "total_bytes": self.progress.total_bytes,
                "message": self.progress.message,
            }
        return told


GUIDES = {
    "compiles_total": ("counter", "Constraints that were compiled, or could not be."),
    "hits_total": ("counter", "Constraints that were known already."),
    "failures_total": ("counter", "Constraints that were refused."),
    "seconds_total": ("counter", "Time spent compiling."),
    "waiting": ("gauge", "Constraints being compiled, or waiting to be."),
    "cached": ("gauge", "Compiled constraints that are kept."),
    "cached_bytes": ("gauge", "Their estimated size."),
}
"""What is told of constraints: metric, without `lmtool_guide_`, to kind and meaning."""


def metrics(
    health: Health,
    *,
    connections: int,
    running: int,
    waiting: int,
    workers_up: int | None = None,
    guides: Mapping[str, float] | None = None,
) -> str:
    """What `/metrics` says, in the Prometheus text format, version 0.0.4.

    workers_up: of a balancer. guides: a number for each of `GUIDES`, of a server that holds streams to constraints.
    """
    families: list[tuple[str, str, str, Sequence[tuple[str, float]]]] = [
        ("ready", "gauge", "Whether requests are answered at once.", [("", int(health.state == "ready"))]),
        ("connections", "gauge", "Open connections.", [("", connections)]),
        ("streams_running", "gauge", "Streams being computed.", [("", running)]),
        ("streams_waiting", "gauge", "Streams not yet started.", [("", waiting)]),
        ("requests_total", "counter", "Ended requests by command and ending.", _by_ending(health)),
        ("prompt_tokens_total", "counter", "Tokens of the prompts of ended requests.", [("", health.prompt_tokens)]),
        (
            "prompt_tokens_cached_total",
            "counter",
            "Those of them whose keys and values were reused.",
            [("", health.cached_tokens)],
        ),
        (
            "output_tokens_total",
            "counter",
            "Tokens generated or scored by ended requests.",
            [("", health.output_tokens)],
        ),
        (
            "invalid_answers_total",
            "counter",
            "Strict answers that were not valid under their schema once finished: a fault of the server.",
            [("", health.invalid_answers)],
        ),
    ]
    if workers_up is not None:
        families.append(("workers_up", "gauge", "Workers that answer.", [("", workers_up)]))
    families += [(f"guide_{name}", *GUIDES[name], [("", count)]) for name, count in (guides or {}).items()]
    lines = []
    for name, kind, meaning, samples in families:
        lines += [f"# HELP lmtool_{name} {meaning}", f"# TYPE lmtool_{name} {kind}"]
        lines += [f"lmtool_{name}{labels} {value}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def _by_ending(health: Health) -> list[tuple[str, int]]:
    counts = sorted(health.requests.items())
    return [(f'{{command="{command}",ending="{ending}"}}', count) for (command, ending), count in counts]


def routes(health: Health, numbers: Callable[[], dict[str, Any]]) -> list[BaseRoute]:
    """Routes for a starlette application. numbers: the keyword arguments of `metrics`."""
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    async def tell_health(_request: Request) -> Response:
        return JSONResponse(health.report(), STATUS[health.state])

    async def tell_metrics(_request: Request) -> Response:
        return PlainTextResponse(metrics(health, **numbers()), media_type="text/plain; version=0.0.4")

    return [Route("/health", tell_health), Route("/metrics", tell_metrics)]
