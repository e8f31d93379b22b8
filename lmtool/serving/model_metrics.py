"""Metrics of what a server serves: streams, memory and compiled constraints of its models, the state of its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lmtool.core.metrics import MetricFamily, labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lmtool.core.model_usage import ModelUsage
    from lmtool.gateway.balance.balancer import Balancer
    from lmtool.serving.composition import Loader, Models

GUIDE_METRICS: tuple[tuple[str, str, Literal["counter", "gauge"], str], ...] = (
    ("compiles", "compiles_total", "counter", "Constraints that were compiled, or could not be."),
    ("hits", "hits_total", "counter", "Constraints that were known already."),
    ("failures", "failures_total", "counter", "Constraints that were refused."),
    ("seconds", "seconds_total", "counter", "Time spent compiling."),
    ("waiting", "waiting", "gauge", "Constraints being compiled, or waiting to be."),
    ("cached", "cached", "gauge", "Compiled constraints in the cache."),
    ("cached_bytes", "cached_bytes", "gauge", "Their estimated size."),
)
"""Field of the compiler's counts, and its metric after `lmtool_guide_`."""


USAGE_METRICS = (
    ("running", "num_requests_running", "Streams being computed by a model of this process."),
    ("waiting", "num_requests_waiting", "Streams not yet started, those that wait for the model's load among them."),
    ("weights_bytes", "model_weights_bytes", "Weights in memory."),
    ("kv_cache_bytes", "kv_cache_bytes", "Room for keys and values, all of it."),
    ("kv_cache_used_bytes", "kv_cache_used_bytes", "What streams use of it."),
    ("prefix_cache_bytes", "prefix_cache_bytes", "What beginnings of prompts take of it, in use by a stream or not."),
)
"""Field of `ModelUsage`, name and meaning."""


def model_metrics(models: Models | None, loader: Loader) -> list[MetricFamily]:
    """Streams of all models or workers, the memory of models, and what compiling constraints has taken."""
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
            MetricFamily(f"guide_{name}", kind, meaning, (("", sum(getattr(each, field) for each in counts)),))
            for field, name, kind, meaning in GUIDE_METRICS
        ),
        *families,
    ]


def usage_metrics(models: Mapping[str, ModelUsage]) -> Iterable[MetricFamily]:
    """What each model in this process does and holds, by the name that clients are shown."""
    for field, name, sentence in USAGE_METRICS:
        known = [(labels(model_name=model), getattr(usage, field)) for model, usage in models.items()]
        yield MetricFamily(name, "gauge", sentence, [(label, value) for label, value in known if value is not None])
    parts = [
        (labels(model_name=model), round(usage.kv_cache_used_bytes / usage.kv_cache_bytes, 6))
        for model, usage in models.items()
        if usage.kv_cache_bytes and usage.kv_cache_used_bytes is not None
    ]
    yield MetricFamily("kv_cache_usage_perc", "gauge", "The part of it that streams use; 1 is all.", parts)


def worker_metrics(balancer: Balancer) -> Iterable[MetricFamily]:
    """The workers of a balancer, by their numbers."""
    workers = [(labels(worker=str(worker.number + 1)), worker) for worker in balancer.workers]
    yield MetricFamily.gauge("workers_up", "Workers that answer.", len(balancer.up))
    up = "Whether a worker answers."
    yield MetricFamily("worker_up", "gauge", up, [(label, int(worker.up)) for label, worker in workers])
    streams = "Streams on a worker, of which some may wait there."
    yield MetricFamily("worker_streams", "gauge", streams, [(label, worker.running) for label, worker in workers])
    sentence = "How often a stream has gone on at another worker, or again."
    yield MetricFamily.counter("streams_resumed_total", sentence, balancer.resumed)
