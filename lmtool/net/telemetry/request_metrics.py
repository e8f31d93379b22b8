"""Histograms and counters of streams, by model and by the name of the key; the one place where streams are counted.

Names and meanings are vLLM's, with `lmtool_` for its prefix `vllm:`, because colons belong to recording rules. Buckets
are those of OpenTelemetry's GenAI conventions, with finer ones below and longer ones above.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lmtool.core.metrics import Histogram, MetricFamily, labels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.core.types import Usage

FIRST_TOKEN_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0),
)
"""Seconds."""
GAP_BOUNDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0),
)
"""Seconds."""
REQUEST_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64),
    *(1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36),
)
"""Seconds."""
MAX_SERIES = 256
"""Pairs of a model and a key with numbers of their own; what comes later is counted together, as `other`."""
OTHER = "other"
_GAP = "From a token to the next one of the same stream, where a reader may have paused it."
_QUEUE = "From a request's arrival to its first step, the load of its model included."


class Series:
    """What the streams of one model and one key have done."""

    __slots__ = ("cached_tokens", "endings", "first_tokens", "gaps", "output_tokens", "prompt_tokens", "queue", "total")

    def __init__(self) -> None:
        self.queue = Histogram(REQUEST_BOUNDS)
        self.first_tokens = Histogram(FIRST_TOKEN_BOUNDS)
        self.gaps = Histogram(GAP_BOUNDS)
        self.total = Histogram(REQUEST_BOUNDS)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.endings: Counter[str] = Counter()
        """Ended streams by finish reason, or `error`."""

    def end(self, reason: str, seconds: float, usage: Usage) -> None:
        """Count a stream that has ended."""
        self.total.observe(seconds)
        self.endings[reason] += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.output_tokens += usage.completion_tokens


class RequestMetrics:
    """The series of a server. Belongs to one event loop."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str], Series] = {}

    def series(self, model: str, key: str) -> Series:
        """The series of a model, as clients are shown it, and of a key's name, empty where there are no keys."""
        found = self._series.get((model, key))
        if found is None:
            if len(self._series) >= MAX_SERIES:
                model, key = OTHER, OTHER if key else ""
            found = self._series.setdefault((model, key), Series())
        return found

    def families(self) -> Iterable[MetricFamily]:
        """All of it in the terms of Prometheus."""
        known = [(labels(model_name=model, key=key), one) for (model, key), one in sorted(self._series.items())]
        for name, sentence, field in (
            ("time_to_first_token_seconds", "From a request's arrival to its first token.", "first_tokens"),
            ("inter_token_latency_seconds", _GAP, "gaps"),
            ("request_queue_time_seconds", _QUEUE, "queue"),
            ("e2e_request_latency_seconds", "From a request's arrival to its end.", "total"),
        ):
            yield MetricFamily.histogram(name, sentence, [(label, getattr(one, field)) for label, one in known])
        for name, sentence, field in (
            ("prefix_cache_queries_total", "Tokens of prompts of ended requests.", "prompt_tokens"),
            ("prefix_cache_hits_total", "Those of them whose keys and values were reused.", "cached_tokens"),
            ("generation_tokens_total", "Tokens generated or scored by ended requests.", "output_tokens"),
        ):
            yield MetricFamily(name, "counter", sentence, [(label, getattr(one, field)) for label, one in known])
        yield MetricFamily(
            "requests_finished_total",
            "counter",
            "Ended requests by finish reason; error: they had none.",
            [
                (labels(model_name=model, key=key, finished_reason=reason), count)
                for (model, key), one in sorted(self._series.items())
                for reason, count in sorted(one.endings.items())
            ],
        )
