"""`/metrics` of a server whose streams come over every wire."""

from __future__ import annotations

import re
from pathlib import Path

from lmtool.protocol.lmtp.client import LmtpClient
from tests.protocol.lmtp.harness import until
from tests.serving.keyed_wires import MODEL, POOL, WIRES, http, keyed_server, lmtp
from tests.serving.test_api_keys import KEY, key

SAMPLE = re.compile(
    r'([a-z_][a-z0-9_]*)(\{[a-z_]+="(?:[^"\\\n]|\\["\\n])*"(?:,[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*\})? (\S+)'
)
"""Of Prometheus' text format: a name, labels, a number."""
LATENCIES = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_queue_time_seconds",
    "e2e_request_latency_seconds",
)


def samples(text: str) -> dict[str, float]:
    """Values by name and labels; every line is a comment or a sample, and no sample comes twice."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1].startswith(("lmtool_", "process_")), line
            name = match[1] + (match[2] or "")
            assert name not in found, name
            found[name] = float(match[3])
    return found


async def test_streams_of_every_wire_are_counted_once_by_model_and_key(tmp_path: Path) -> None:
    """Ten wires, one place: LMTP, Unix socket, every HTTP API, the gateway's own, Evergreen twice; no key anywhere."""
    async with keyed_server(key("alice", "admin = true") + key("bob"), tmp_path) as server:
        for name, wire in WIRES.items():
            assert (await wire(server, f"{KEY}-alice", MODEL)).status == 200, name
        assert (await lmtp(server.url, f"{KEY}-bob", MODEL)).status == 200
        assert (await lmtp(server.url, f"{KEY}-bob", f"{KEY}-no-such-model")).status == 404
        async with LmtpClient(server.url, api_key=f"{KEY}-bob") as client:
            await client.change_buffer("b", [(1, 2, 3)], model=MODEL)
            text = (await http(server, f"{KEY}-alice", "/metrics")).text
        await until(lambda: not server.service.streams)
    assert KEY not in text
    found = samples(text)

    def count(metric: str, model: str, name: str) -> float:
        return found.get(f'lmtool_{metric}_count{{model_name="{model}",key="{name}"}}', 0)

    unified = sum("unified" in name for name in WIRES)
    assert unified == 2
    for metric in LATENCIES[:1] + LATENCIES[3:]:
        assert count(metric, POOL, "alice") == unified, metric
        assert count(metric, MODEL, "alice") == len(WIRES) - unified, metric
        assert count(metric, MODEL, "bob") == 1, metric
    assert count("request_queue_time_seconds", MODEL, "alice") == len(WIRES) - unified
    assert count("inter_token_latency_seconds", MODEL, "bob") == 1  # two tokens
    assert found['lmtool_generation_tokens_total{model_name="lmtool-tiny",key="bob"}'] == 2
    assert found['lmtool_prefix_cache_queries_total{model_name="lmtool-tiny",key="bob"}'] == 3
    assert found['lmtool_requests_finished_total{model_name="unknown",key="bob",finished_reason="error"}'] == 1
    assert found["lmtool_buffer_bytes"] == 12
    assert found["lmtool_send_queue_bytes"] == 0
    assert found['lmtool_key_streams_waiting{key="alice"}'] == 0
    own = f'{{model_name="{MODEL}"}}'
    assert 1e6 < found[f"lmtool_model_weights_bytes{own}"] < 1e8
    assert 0 < found[f"lmtool_prefix_cache_bytes{own}"] < found[f"lmtool_kv_cache_bytes{own}"]
    assert (found[f"lmtool_kv_cache_used_bytes{own}"], found[f"lmtool_num_requests_waiting{own}"]) == (0, 0)
    assert found["process_resident_memory_bytes"] > 1e7
