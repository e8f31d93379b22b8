"""`/health` and `/metrics`."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from lmtool.core.metrics import as_text
from lmtool.net.telemetry.request_log import RequestLog
from lmtool.serving.health import STATUS, Health, routes

if TYPE_CHECKING:
    from lmtool.serving.health import State

SAMPLE = re.compile(r'lmtool_[a-z_]+(\{command="[A-Za-z_]+",ending="[a-z]+"\})? [0-9]+(\.[0-9]+)?')
LABEL = r'[a-z_]+="[^"\\]*"'
PROMETHEUS = re.compile(rf"(lmtool|process)_[a-z0-9_]+(\{{{LABEL}(,{LABEL})*\}})? [0-9]+(\.[0-9]+)?(e-?[0-9]+)?")


def ask(health: Health, path: str) -> tuple[int, str]:
    answer = TestClient(Starlette(routes=routes(health, health.metrics))).get(path)
    return answer.status_code, answer.text


@pytest.mark.parametrize(("state", "status"), list(STATUS.items()))
def test_the_status_code_tells_probes_what_they_need(state: State, status: int) -> None:
    """200 when requests are answered at once, 503 while loading or draining, 500 when the load failed; no names."""
    code, body = ask(Health(state=state, model="gpt2"), "/health")
    assert (code, json.loads(body)) == (status, {"status": state})


@pytest.mark.parametrize(
    ("state", "can_answer", "live", "ready"),
    [
        ("loading", True, 200, 503),
        ("ready", True, 200, 200),
        ("ready", False, 200, 503),
        ("draining", True, 200, 503),
        ("failed", True, 503, 503),
    ],
)
def test_probes_of_an_orchestrator(state: State, can_answer: bool, live: int, ready: int) -> None:
    """Ready only while a model can answer; live until nothing but a new start can help. Neither names anything."""
    health = Health(state=state, model="secret-model")
    client = TestClient(Starlette(routes=routes(health, health.metrics, lambda: can_answer)))
    answers = [client.get("/health/live"), client.get("/health/ready")]
    assert [answer.status_code for answer in answers] == [live, ready]
    assert {answer.text for answer in answers} <= {"ok\n", "unavailable\n"}
    assert all(answer.headers["cache-control"] == "no-store" for answer in answers)
    assert [client.head("/health/live").status_code, client.post("/health/live").status_code] == [live, 405]


def test_metrics_count_what_ended() -> None:
    """Requests by command and ending, tokens in and out."""
    health = Health(state="ready")
    health.count(RequestLog(1, "1", "GENERATE", None, 2, 5, 0.1, 0.2, "length"))
    health.count(RequestLog(1, "2", "GENERATE", error="bad id"))
    health.count(RequestLog(1, "5", "GENERATE", error="not valid", error_code="invalid_answer"))
    health.count(RequestLog(1, "3", "MODEL_INFO", end="stop"))
    health.count(RequestLog(1, "4", "GENERATE", None, 100, 1, 0.1, 0.2, "stop", cached_tokens=64))
    lines = as_text(health.metrics()).splitlines()
    assert 'lmtool_requests_total{command="GENERATE",ending="length"} 1' in lines
    assert 'lmtool_requests_total{command="GENERATE",ending="error"} 2' in lines
    assert 'lmtool_requests_total{command="MODEL_INFO",ending="stop"} 1' in lines
    assert {"lmtool_prompt_tokens_total 102", "lmtool_output_tokens_total 6", "lmtool_ready 1"} <= set(lines)
    assert {"lmtool_prompt_tokens_cached_total 64", "lmtool_invalid_answers_total 1"} <= set(lines)


def test_every_line_of_metrics_is_a_comment_or_a_sample() -> None:
    """The Prometheus text format: comments, or a name, labels and a number."""
    health = Health()
    health.count(RequestLog(1, "1", 'EVIL"\n', error="unknown command"))
    for line in as_text(health.metrics()).splitlines():
        assert line.startswith("# ") or SAMPLE.fullmatch(line), line


def test_commands_that_nobody_knows_are_counted_together() -> None:
    """A stranger must not be able to make as many counters as there are words."""
    health = Health()
    for word in ("A", "B", "C"):
        health.count(RequestLog(1, "1", word, error="unknown command"))
    assert health.requests == {("other", "error"): 3}


def test_a_real_server_answers_both(served: str) -> None:
    """Both are on the server's one port."""
    base = served.replace("ws://", "http://")
    with urllib.request.urlopen(f"{base}health", timeout=30) as answer:
        assert json.load(answer) == {"status": "ready"}
    with urllib.request.urlopen(f"{base}metrics", timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.read().decode().splitlines()
    names = {line.partition(" ")[0] for line in lines}
    assert "lmtool_ready 1" in lines
    assert {"lmtool_connections", "lmtool_http_requests_running", "lmtool_guide_cached_bytes"} <= names  # of faces
    assert {"lmtool_streams_running", "lmtool_streams_waiting", "lmtool_guide_compiles_total"} <= names  # of models
    assert [line for line in lines if not line.startswith("# ") and not PROMETHEUS.fullmatch(line)] == []
