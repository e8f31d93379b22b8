"""`/health`, `/health/live`, `/health/ready` and `/metrics`: the state of a server for probes and dashboards."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.errors import InvalidAnswerError
from lmtool.core.metrics import MetricFamily, as_text
from lmtool.core.types import Usage
from lmtool.net.access.caller import is_admin
from lmtool.net.telemetry.process_memory import process_metrics
from lmtool.net.telemetry.request_log import COMMANDS, RequestLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from lmtool.core.types import TokenOutput

State: TypeAlias = Literal["loading", "ready", "failed", "draining"]
STATUS: dict[State, int] = {"ready": 200, "loading": 503, "draining": 503, "failed": 500}
UNRECORDED = ("/health", "/health/live", "/health/ready", "/metrics")
"""What probes and dashboards ask for again and again, which is no part of what a server's users said."""
_LATER = {"retry-after": "1"}
_FRESH = {"cache-control": "no-store"}
"""Of a probe's answer, which is true for a moment only."""


@dataclass
class Health:
    """The state of a server and what it has done since its start."""

    state: State = "loading"
    model: str | None = None
    """The model it was started with; None where models are loaded on demand."""
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

    def count_answer(self, last: TokenOutput | None, tokens: int) -> None:
        """Count a stream of an HTTP request by its last output, None where the client left before that."""
        if last is None:
            self.count(RequestLog(0, "null", "GENERATE", output_tokens=tokens, end="left"))
            return
        used = last.usage or Usage(0, tokens)
        self.count(
            RequestLog(
                0,
                "null",
                "GENERATE",
                prompt_tokens=used.prompt_tokens,
                output_tokens=used.completion_tokens,
                end=last.finish_reason,
                error=last.error,
                error_code=last.error_code,
                cached_tokens=used.cached_tokens,
            )
        )

    def metrics(self) -> list[MetricFamily]:
        """Whether it is ready, and what it has done since its start."""
        counts = sorted(self.requests.items())
        by_ending = [(f'{{command="{command}",ending="{ending}"}}', count) for (command, ending), count in counts]
        counter = MetricFamily.counter
        return [
            MetricFamily.gauge("ready", "Whether requests are answered at once.", int(self.state == "ready")),
            MetricFamily("requests_total", "counter", "Ended requests by command and ending.", by_ending),
            counter("prompt_tokens_total", "Tokens of the prompts of ended requests.", self.prompt_tokens),
            counter(
                "prompt_tokens_cached_total", "Those of them whose keys and values were reused.", self.cached_tokens
            ),
            counter("output_tokens_total", "Tokens generated or scored by ended requests.", self.output_tokens),
            counter(
                "invalid_answers_total",
                "Strict answers that were not valid under their schema once finished: a fault of the server.",
                self.invalid_answers,
            ),
        ]

    def report(self) -> dict[str, str]:
        """The body of `/health`, which anybody may ask: nothing about models, loads or clients."""
        return {"status": self.state}


def routes(
    health: Health, families: Callable[[], Iterable[MetricFamily]], can_answer: Callable[[], bool] = lambda: True
) -> list[BaseRoute]:
    """`/health`, what is below it, and `/metrics` for a starlette application.

    families: the metrics beside those of the process, collected at each request. can_answer: whether there is a model
    for a request.
    """
    from starlette.responses import JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    async def answer_health(_request: Request) -> Response:
        status = STATUS[health.state]
        return JSONResponse(health.report(), status, _LATER if status == 503 else None)

    async def answer_live(_request: Request) -> Response:
        return _probed(ok=health.state != "failed")

    async def answer_ready(_request: Request) -> Response:
        return _probed(ok=health.state == "ready" and can_answer())

    def _probed(*, ok: bool) -> Response:
        """The answer to a probe, which anybody may ask: its status, and nothing about the server."""
        if ok:
            return PlainTextResponse("ok\n", headers=_FRESH)
        return PlainTextResponse("unavailable\n", 503, _FRESH | _LATER)

    async def answer_metrics(_request: Request) -> Response:
        if not is_admin():
            return PlainTextResponse("this key may not read metrics; that needs  admin = true  in its file\n", 403)
        process = await asyncio.to_thread(process_metrics)  # looks at every process of the machine
        return PlainTextResponse(as_text([*families(), *process]), media_type="text/plain; version=0.0.4")

    return [
        Route("/health", answer_health),
        Route("/health/live", answer_live),
        Route("/health/ready", answer_ready),
        Route("/metrics", answer_metrics),
    ]
