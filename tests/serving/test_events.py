"""A server's events as lines and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lmtool.core.types import LoadProgress, ModelInfo
from lmtool.net.telemetry.request_log import RequestLog
from lmtool.serving.events import (
    Draining,
    Finished,
    Listening,
    Loading,
    Ready,
    Started,
    Stopped,
    as_json,
    as_lines,
    bar,
    count,
    request_line,
)

GPT2 = ModelInfo(
    model="gpt2", constructor="", backend="transformers", parameters=124_439_808, dtype="bfloat16", device="cpu"
)
DONE = Finished(RequestLog(1, "3", "GENERATE", "gpt2", 2, 5, 0.009, 0.0187, "length"))
HALF = Loading(LoadProgress("gpt2", "loading", 274_000_000, 548_000_000), 2.13)


def test_a_finished_stream_shows_tokens_latency_rate_and_reason() -> None:
    """The rate counts the tokens after the first: the time before it is the prompt's."""
    assert as_lines(DONE, "12:01:07", 80) == [
        "12:01:07  #1/3 GENERATE 2 tok in → 5 out  ttft 9.0 ms  412 tok/s  length"
    ]


def test_a_failed_request_shows_its_error() -> None:
    """A failed request shows its error instead of figures."""
    failed = Finished(RequestLog(1, "4", "GENERATE", error="id 99999 is not in the vocabulary (50257)"))
    assert as_lines(failed, "12:01:09", 80) == ["12:01:09  #1/4 GENERATE ✗ id 99999 is not in the vocabulary (50257)"]


def test_a_question_shows_its_duration_only() -> None:
    """MODEL_INFO has no tokens to count."""
    assert request_line(RequestLog(2, "1", "MODEL_INFO", seconds=0.0004, end="stop")) == "#2/1 MODEL_INFO  0.4 ms"


def test_ignored_fields_are_named() -> None:
    """Fields of a request that had no effect are named: somebody expects one of them."""
    entry = RequestLog(1, "1", "GENERATE", None, 1, 1, 0.5, 0.5, "stop", ignored=("topp",))
    assert request_line(entry) == "#1/1 GENERATE 1 tok in → 1 out  ttft 500 ms  stop  ignored topp"
    entry = RequestLog(1, "1", "SCORE", None, 100, 1, 0.5, 0.6, "stop", cached_tokens=64)
    assert request_line(entry) == "#1/1 SCORE 100 tok in (64 cached) → 1 out  ttft 500 ms  stop"


def test_the_listen_line_tells_what_to_try() -> None:
    """The listen line tells what to try, in a line of its own where the terminal is narrow."""
    event = Listening("ws://127.0.0.1:8080/", False, 'lmtool chat "Hello there max_tokens=5"')
    assert as_lines(event, "", 80) == [
        '  listen   ws://127.0.0.1:8080/     try: lmtool chat "Hello there max_tokens=5"'
    ]
    assert as_lines(event, "", 60) == [
        "  listen   ws://127.0.0.1:8080/",
        '  try      lmtool chat "Hello there max_tokens=5"',
    ]


def test_the_port_of_grpc_is_told() -> None:
    """Where Evergreen is spoken over gRPC stands below where the server listens, for people and for machines."""
    event = Listening("ws://127.0.0.1:8080/", False, "lmtool chat", "127.0.0.1:50051")
    assert as_lines(event, "", 80) == [
        "  listen   ws://127.0.0.1:8080/     try: lmtool chat",
        "  gRPC     127.0.0.1:50051",
    ]
    assert json.loads(as_json(event, "now"))["grpc"] == "127.0.0.1:50051"


def test_ready_shows_the_model_in_one_line_and_how_to_stop() -> None:
    """Ready: the model in one line, the seconds, and how to stop."""
    assert as_lines(Ready(GPT2, 3.42), "", 80) == [
        "  model    gpt2 · 124 M · bfloat16 · cpu",
        "ready in 3.4 s     Ctrl-C stops (again: at once)",
    ]
    kernels = replace(GPT2, kernels="C kernels (AVX512)")
    assert as_lines(Ready(kernels, 3.42), "", 63)[0] == "  model    gpt2 · 124 M · bfloat16 · cpu · C kernels (AVX512)"
    assert as_lines(Ready(kernels, 3.42), "", 60)[:2] == [
        "  model    gpt2 · 124 M · bfloat16 · cpu",
        "  kernels  C kernels (AVX512)",
    ]


@pytest.mark.parametrize(("left", "words"), [(1, "1 stream left"), (3, "3 streams left")])
def test_draining_counts_the_streams_left(left: int, words: str) -> None:
    """Draining tells how many streams are left."""
    assert as_lines(Draining(left), "", 80) == [f"draining: {words}, Ctrl-C again stops at once"]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_the_loading_bar_never_wraps(columns: int) -> None:
    """A line that reaches the last column would leave its remains on the screen at each redraw."""
    long = Loading(LoadProgress("an-organisation/a-model-with-a-long-name", "loading", 1, 8_000_000_000), 12.0)
    for event in (HALF, long):
        assert len(bar(event, columns)) < max(columns, 40)


def test_the_loading_bar_shows_bytes_and_seconds() -> None:
    """The bar shows bytes and seconds."""
    assert bar(HALF, 80) == "loading gpt2 " + "━" * 14 + " " * 13 + " 274/548 MB  2.1 s"


def test_the_bar_waits_until_the_size_is_known() -> None:
    """While the size is unknown there is no bar, but what is being done."""
    assert bar(Loading(LoadProgress("gpt2", "loading", message="importing torch"), 0.5), 80) == (
        "loading gpt2 (importing torch)  0.5 s"
    )


@pytest.mark.parametrize(
    "event",
    [
        Started("0.1", "LMTP over WebSocket"),
        Listening("ws://x/", False, ""),
        HALF,
        Ready(GPT2, 1.0),
        DONE,
        Draining(2),
        Stopped(),
    ],
    ids=lambda event: event.event,
)
def test_every_event_is_one_line_of_json_with_its_time_and_name(event: object) -> None:
    """As JSON, every event is one line with its time and its name."""
    line = as_json(event, "2026-11-20T12:01:07.123+00:00")
    told = json.loads(line)
    assert "\n" not in line
    assert (told["time"], told["event"]) == ("2026-11-20T12:01:07.123+00:00", event.event)


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, ""), (512, "512"), (260_032, "260 K"), (1_300_000, "1.3 M"), (124_439_808, "124 M"), (7.2e9, "7.2 B")],
)
def test_counts_have_three_digits_at_most(number: int | None, text: str) -> None:
    """Numbers of weights have three digits at most."""
    assert count(number) == text


def test_numbers_of_connections_say_whose_they_are() -> None:
    """LMTP's connections and Evergreen's sessions are counted apart; a line, and its JSON, tell which it is."""
    session = Finished(replace(DONE.request, protocol="evergreen", stream_id='"out"'))
    assert request_line(session.request).startswith('evergreen#1/"out" GENERATE')
    assert json.loads(as_json(session, "now"))["protocol"] == "evergreen"
    assert "protocol" not in json.loads(as_json(DONE, "now"))


def test_the_start_says_what_holds_for_the_model() -> None:
    """Whether streams depend on each other, and the sampling defaults; below the model where its line is too long."""
    told = replace(GPT2, kernels="torch", batch_invariant=False, sampling_defaults={"temperature": 0.6, "top_k": 20})
    sampling = "  sampling temperature 0.6, top_k 20, where an HTTP request leaves them out"
    model = "  model    gpt2 · 124 M · bfloat16 · cpu"
    assert as_lines(Ready(told, 1.0), "", 80)[:-1] == [f"{model} · torch · batch invariant: no", sampling]
    assert as_lines(Ready(told, 1.0), "", 60)[:-1] == [model, "  kernels  torch · batch invariant: no", sampling]
    sure = replace(told, kernels=None, batch_invariant=True, sampling_defaults={})
    assert as_lines(Ready(sure, 1.0), "", 80)[:-1] == [f"{model} · batch invariant: yes"]
    assert json.loads(as_json(Ready(told, 1.0), ""))["model"]["batch_invariant"] is False
