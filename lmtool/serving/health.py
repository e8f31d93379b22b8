"""`/health`, `/health/live`, `/health/ready` and `/metrics`: the state of a server for probes and dashboards."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from lmtool.core.errors import InvalidAnswerError
from lmtool.core.metrics import MetricFamily, as_text, labels
from lmtool.core.types import Usage
from lmtool.net.access.caller import is_admin
from lmtool.net.telemetry.process_memory import process_metrics
from lmtool.net.telemetry.request_log import COMMANDS, RequestLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from lmtool.core.model_usage import ModelUsage
    from lmtool.core.types import TokenOutput
    from lmtool.gateway.balance.balancer import Balancer
    from lmtool.serving.composition import Loader, Models

State: TypeAlias = Literal["loading", "ready", "failed", "draining"]
STATUS: dict[State, int] = {"ready": 200, "loading": 503, "draining": 503, "failed": 500}
UNRECORDED = ("/health", "/health/live", "/health/ready", "/metrics")
"""Paths polled by probes and dashboards, which are not recorded."""
_LATER = {"retry-after": "1"}
_FRESH = {"cache-control": "no-store"}
"""Headers of a probe's answer, which must not be cached."""


@dataclass
class Health:
    """State of a server, and its counters since the start."""

    state: State = "loading"
    model: str | None = None
    """Model it was started with; None if models are loaded on demand."""
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Ended requests by command and ending: a finish reason, `left`, or `error`."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    invalid_answers: int = 0
    """Finished strict answers that did not match their schema."""

    def count(self, entry: RequestLog) -> None:
        """Count a finished request."""
        command = entry.command if entry.command in COMMANDS else "other"  # a client may send anything
        self.requests[command, "error" if entry.error is not None else entry.end or "stop"] += 1
        self.prompt_tokens += entry.prompt_tokens or 0
        self.cached_tokens += entry.cached_tokens
        self.output_tokens += entry.output_tokens
        self.invalid_answers += entry.error_code == InvalidAnswerError.code

    def count_answer(self, last: TokenOutput | None, tokens: int) -> None:
        """Count a stream of an HTTP request by its last output; None if the client disconnected first."""
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
        """Metrics of readiness and of the counters."""
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
        """Body of `/health`, which is public: nothing about models, loads or clients."""
        return {"status": self.state}


def routes(
    health: Health, families: Callable[[], Iterable[MetricFamily]], can_answer: Callable[[], bool] = lambda: True
) -> list[BaseRoute]:
    """`/health`, what is below it, and `/metrics` for a starlette application.

    families: metrics other than those of the process, collected at each request. can_answer: whether a model can take a
    request.
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
        """Answer to a probe, which is public: a status and nothing else."""
        if ok:
            return PlainTextResponse("ok\n", headers=_FRESH)
        return PlainTextResponse("unavailable\n", 503, _FRESH | _LATER)

    async def answer_metrics(_request: Request) -> Response:
        if not is_admin():
            return PlainTextResponse("this key may not read metrics; that needs  admin = true  in its file\n", 403)
        process = await asyncio.to_thread(process_metrics)  # scans all processes of the machine
        return PlainTextResponse(as_text([*families(), *process]), media_type="text/plain; version=0.0.4")

    return [
        Route("/health", answer_health),
        Route("/health/live", answer_live),
        Route("/health/ready", answer_ready),
        Route("/metrics", answer_metrics),
    ]


GUIDE_METRICS: tuple[tuple[str, str, Literal["counter", "gauge"], str], ...] = (
    ("compiles", "compiles_total", "counter", "Constraints that were compiled, or could not be."),
    ("hits", "hits_total", "counter", "Constraints that were known already."),
    ("failures", "failures_total", "counter", "Constraints that were refused."),
    ("seconds", "seconds_total", "counter", "Time spent compiling."),
    ("waiting", "waiting", "gauge", "Constraints being compiled, or waiting to be."),
    ("cached", "cached", "gauge", "Compiled constraints in the cache."),
    ("cached_bytes", "cached_bytes", "gauge", "Their estimated size."),
)
"""Field of the compiler's counts; metric name after `lmtool_guide_`, type, help."""


USAGE_METRICS = (
    ("running", "num_requests_running", "Streams being computed by a model of this process."),
    ("waiting", "num_requests_waiting", "Streams not yet started, those that wait for the model's load among them."),
    ("weights_bytes", "model_weights_bytes", "Weights in memory."),
    ("kv_cache_bytes", "kv_cache_bytes", "Room for keys and values, all of it."),
    ("kv_cache_used_bytes", "kv_cache_used_bytes", "What streams use of it."),
    ("prefix_cache_bytes", "prefix_cache_bytes", "What beginnings of prompts take of it, in use by a stream or not."),
)
"""Field of `ModelUsage`; metric name and help."""


def model_metrics(models: Models | None, loader: Loader) -> list[MetricFamily]:
    """Metrics of streams, of the memory of models, and of constraint compilation."""
    gauge, counts = MetricFamily.gauge, [guides.counts for guides in loader.guides]
    running, waiting = loader.streams()
    families: list[MetricFamily] = []
    if models is not None:  # a gateway without models never imports the balancer
        from lmtool.gateway.balance.balancer import Balancer

        if isinstance(models, Balancer):
            running, waiting = models.streams()
            families += worker_metrics(models)
        else:
            families += usage_metrics(models.usage())
    return [
        gauge("streams_running", "Streams being computed.", running),
        gauge("streams_waiting", "Streams not yet started.", waiting),
        *(
            MetricFamily(f"guide_{name}", kind, meaning, (("", sum(getattr(each, attribute) for each in counts)),))
            for attribute, name, kind, meaning in GUIDE_METRICS
        ),
        *families,
    ]


def usage_metrics(models: Mapping[str, ModelUsage]) -> Iterable[MetricFamily]:
    """Metrics of each model in this process, labelled with its public name."""
    for attribute, name, sentence in USAGE_METRICS:
        known = [(labels(model_name=model), getattr(usage, attribute)) for model, usage in models.items()]
        yield MetricFamily(name, "gauge", sentence, [(label, value) for label, value in known if value is not None])
    parts = [
        (labels(model_name=model), round(usage.kv_cache_used_bytes / usage.kv_cache_bytes, 6))
        for model, usage in models.items()
        if usage.kv_cache_bytes and usage.kv_cache_used_bytes is not None
    ]
    yield MetricFamily("kv_cache_usage_perc", "gauge", "The part of it that streams use; 1 is all.", parts)


def worker_metrics(balancer: Balancer) -> Iterable[MetricFamily]:
    """Metrics of a balancer's workers, labelled with their numbers."""
    workers = [(labels(worker=str(worker.number + 1)), worker) for worker in balancer.workers]
    yield MetricFamily.gauge("workers_up", "Workers that answer.", len(balancer.up))
    up = "Whether a worker answers."
    yield MetricFamily("worker_up", "gauge", up, [(label, int(worker.up)) for label, worker in workers])
    streams = "Streams on a worker, of which some may wait there."
    yield MetricFamily("worker_streams", "gauge", streams, [(label, worker.running) for label, worker in workers])
    sentence = "How often a stream has gone on at another worker, or again."
    yield MetricFamily.counter("streams_resumed_total", sentence, balancer.resumed)
