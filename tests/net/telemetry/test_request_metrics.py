"""The histograms and counters of streams."""

from __future__ import annotations

from lmtool.core.metrics import as_text
from lmtool.core.types import Usage
from lmtool.net.telemetry.request_metrics import MAX_SERIES, OTHER, RequestMetrics


def lines(metrics: RequestMetrics) -> list[str]:
    return as_text(metrics.families()).splitlines()


def test_models_and_keys_have_numbers_of_their_own() -> None:
    """By the name of the model and of the key; without keys there is no such label."""
    metrics = RequestMetrics()
    metrics.series("gpt2", "alice").end("stop", 0.5, Usage(7, 3, 5))
    metrics.series("gpt2", "alice").end("error", 0.5, Usage(0, 0))
    metrics.series("gpt2", "").end("length", 0.5, Usage(1, 2))
    found = lines(metrics)
    assert {
        'lmtool_prefix_cache_queries_total{model_name="gpt2",key="alice"} 7',
        'lmtool_prefix_cache_hits_total{model_name="gpt2",key="alice"} 5',
        'lmtool_generation_tokens_total{model_name="gpt2",key="alice"} 3',
        'lmtool_generation_tokens_total{model_name="gpt2"} 2',
        'lmtool_requests_finished_total{model_name="gpt2",key="alice",finished_reason="error"} 1',
        'lmtool_requests_finished_total{model_name="gpt2",finished_reason="length"} 1',
        'lmtool_e2e_request_latency_seconds_count{model_name="gpt2",key="alice"} 2',
    } <= set(found)


def test_there_are_only_that_many() -> None:
    """Models and keys beyond the limit are counted together: a dashboard's memory is bounded."""
    metrics = RequestMetrics()
    for number in range(MAX_SERIES + 100):
        metrics.series(f"model-{number}", "alice").end("stop", 0.1, Usage(1, 1))
    assert metrics.series("another", "bob") is metrics.series(OTHER, OTHER)
    assert len([line for line in lines(metrics) if line.startswith("lmtool_generation_tokens_total")]) <= MAX_SERIES + 2
    assert f'lmtool_generation_tokens_total{{model_name="{OTHER}",key="{OTHER}"}} 100' in lines(metrics)
