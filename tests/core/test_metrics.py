"""Counters, gauges and histograms as Prometheus reads them."""

from __future__ import annotations

from lmtool.core.metrics import Histogram, MetricFamily, as_text, labels


def test_a_metric_without_labels() -> None:
    """One sample, of its kind."""
    assert MetricFamily.gauge("up", "Whether.", 1) == ("up", "gauge", "Whether.", (("", 1),))
    assert MetricFamily.counter("done", "How many.", 2) == ("done", "counter", "How many.", (("", 2),))


def test_a_histogram_counts_up_to_each_bound() -> None:
    """A bucket has what is at most its bound, and all of those before it; the last one has everything."""
    histogram = Histogram((0.1, 0.5, 1.0))
    for value in (0.05, 0.1, 0.2, 0.5, 0.9, 7.0):
        histogram.observe(value)
    family = MetricFamily.histogram("wait_seconds", "How long.", [(labels(model_name="m", key="a"), histogram)])
    assert as_text([family]).splitlines() == [
        "# HELP lmtool_wait_seconds How long.",
        "# TYPE lmtool_wait_seconds histogram",
        'lmtool_wait_seconds_bucket{model_name="m",key="a",le="0.1"} 2',
        'lmtool_wait_seconds_bucket{model_name="m",key="a",le="0.5"} 4',
        'lmtool_wait_seconds_bucket{model_name="m",key="a",le="1.0"} 5',
        'lmtool_wait_seconds_bucket{model_name="m",key="a",le="+Inf"} 6',
        'lmtool_wait_seconds_sum{model_name="m",key="a"} 8.75',
        'lmtool_wait_seconds_count{model_name="m",key="a"} 6',
    ]
    assert histogram.count == 6


def test_a_histogram_without_labels() -> None:
    """Its buckets have their bound alone."""
    [first, *_] = Histogram((2.0,)).samples("")
    assert first == ('_bucket{le="2.0"}', 0)


def test_labels_say_what_they_are_given() -> None:
    """Quotes, line ends and backslashes of names are escaped; a label without a value is left out."""
    assert labels(model_name='a"b\\c\nd', key="") == r'{model_name="a\"b\\c\nd"}'
    assert labels(key="") == ""


def test_names_that_every_program_has() -> None:
    """Metrics of the process bear no prefix: dashboards know them so."""
    lines = as_text([MetricFamily.gauge("process_open_fds", "Descriptors.", 3)]).splitlines()
    assert lines[-1] == "process_open_fds 3"
