"""An audit over real HTTP and its reports: card, JSON, JUnit, the trace of the proof."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lmtool.core.errors import ConnectError, ServerError, UsageError
from lmtool.measure.audit import card
from lmtool.measure.audit.auditing import AuditConfig, AuditReport, audit
from lmtool.measure.audit.exchange_log import ExchangeLog
from lmtool.measure.audit.http_transport import HttpTransport
from lmtool.trace.events import Piece, Remark, Request
from lmtool.trace.reader import TraceReader
from tests.measure.audit.faults import FAULTS
from tests.measure.audit.toy_model import ToyModel
from tests.measure.audit.toy_server import application, listening

CONFIG = AuditConfig(model="toy", only=("sums", "stream", "echo", "seed"))


async def audited(url: str, config: AuditConfig = CONFIG, key: str | None = None) -> AuditReport:
    """The report, without notes."""
    return await audit(url, key, config, lambda _: None)


async def test_reports_and_proof(tmp_path: Path) -> None:
    """A breach over real HTTP is in every report, with the trace of just the exchanges that show it."""
    async with listening(FAULTS["a stream with other numbers"].application()) as url:
        report = await audited(f"{url}/v1/", replace(CONFIG, model=None))
    assert (report.model, report.breaches, [wire.facts.name for wire in report.wires]) == (
        "toy",
        2,
        ["completions", "chat"],
    )
    proofs = card.save_proofs(report, tmp_path / "kept")
    reader = TraceReader(proofs["completions-stream"])
    events = list(reader)
    bodies = [json.loads(event.wire_body()) for event in events if isinstance(event, Request)]
    assert [body.get("stream", False) for body in bodies] == [False, True]
    assert sum(isinstance(event, Piece) for event in events) > 20
    assert "logprobs differ by 0.3000 nats" in next(event.text for event in events if isinstance(event, Remark))
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    card.save_whole(report, tmp_path / "all.lmtp.jsonl")
    count = sum(isinstance(event, Request) for event in TraceReader(tmp_path / "all.lmtp.jsonl"))
    assert count == report.log.exchanges
    _check_reports(report, proofs)


def _check_reports(report: AuditReport, proofs: dict[str, Path] | object) -> None:
    assert isinstance(proofs, dict)
    value = json.loads(card.as_json(report, proofs))
    checks = {one["name"]: one for one in value["wires"][0]["checks"]}
    assert (value["breaches"], checks["stream"]["verdict"], checks["sums"]["verdict"]) == (2, "breach", "pass")
    assert checks["stream"]["off"] == pytest.approx(0.3)
    assert checks["stream"]["trace"] == str(proofs["completions-stream"])
    suite = ET.fromstring(card.junit(report, proofs))
    assert (suite.get("failures"), suite.get("skipped")) == ("2", "1")
    for columns in (60, 120):
        rows = [text for text, _ in card.lines(report, proofs, columns)]
        assert not [row for row in rows if len(row) > columns and "lmtool inspect" not in row]
        assert "breach" in " ".join(rows)
        assert rows[-1] == "8 checks · 5 pass · 1 not offered · 2 breach"
    [wire, _] = report.wires
    wire.findings["calibration_sharpened"] = wire.findings["sums"]
    found = [re.match(r"  (?:pass|breach|not offered) +(\S+)", row) for row, _ in card.lines(report, proofs, 120)]
    named = [one[1] for one in found if one]
    assert len(named) == 9
    assert set(named) <= set(card.RULES)  # the longest one, too, stands apart from what was found


async def test_no_server_and_wrong_addresses() -> None:
    """What is wrong, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectError, match="no server at") as raised:
        await audited(f"http://127.0.0.1:{port}")
    assert "lmtool serve" in raised.value.hints[0]
    with pytest.raises(ConnectError):
        await audited(f"ws://127.0.0.1:{port}")
    with pytest.raises(UsageError, match="no URL of a server"):
        await audited("http://:x/")
    with pytest.raises(UsageError, match="a command has one"):
        await audited("stdio:lmtool serve --stdio")
    async with listening(application(ToyModel())) as url:
        with pytest.raises(ServerError, match="no OpenAI-compatible server"):
            await audited(f"{url}/elsewhere", replace(CONFIG, model=None))


async def test_a_server_without_logprobs() -> None:
    """It is audited in what it has, and each route says why there is no more."""

    def without(answer: dict[str, object], request: dict[str, object]) -> dict[str, object]:
        for choice in answer["choices"]:  # type: ignore[attr-defined]
            choice["logprobs"] = None
        return answer

    async with listening(application(ToyModel(), without)) as url:
        report = await audited(url)
    assert not report.audited
    assert {wire.facts.no_logprobs for wire in report.wires} == {"they are asked for, and none come"}
    verdicts = {name: one.verdict for name, one in report.wires[0].findings.items()}
    assert verdicts == {"sums": "not offered", "stream": "pass", "echo": "not offered", "seed": "pass"}
    assert "no logprobs: they are asked for, and none come" in report.wires[0].findings["echo"].sentence


async def test_time_is_limited() -> None:
    """Once the time is over nothing more is asked, and the card says so."""
    async with listening(application(ToyModel())) as url:
        report = await audited(url, replace(CONFIG, only=("echo",), pace=replace(CONFIG.pace, seconds=0.0)))
    assert report.wires[0].findings["echo"].sentence == "0 s were over before it could be asked"


async def test_a_busy_server_is_asked_again() -> None:
    """Three times, after as long as it says; then it is what it answers."""
    asked: list[str] = []

    async def busy(scope: dict[str, object], receive: object, send: Callable[..., Awaitable[None]]) -> None:
        asked.append(str(scope["path"]))
        status = 200 if len(asked) == 3 else 429
        await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", b"0")]})
        await send({"type": "http.response.body", "body": b"{}"})

    async with listening(busy) as url:
        transport = HttpTransport(url, None, ExchangeLog(), 10.0)
        try:
            assert (await transport.post("/completions", {})).status == 200
            assert (await transport.post("/completions", {})).status == 429
        finally:
            await transport.close()
    assert len(asked) == 6


@pytest.mark.parametrize(
    ("header", "value", "least", "most"),
    [
        ("retry-after", "2.5", 2.5, 2.5),
        ("retry-after", "0", 0, 0),
        ("retry-after", formatdate(time.time() + 3000, usegmt=True), 2000, 3000),
        ("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT", 0, 0),
        ("retry-after-ms", "1500", 1.5, 1.5),
        ("retry-after", "soon", 1, 1),
        ("server", "x", 1, 1),
    ],
    ids=["decimal", "zero", "date", "past", "milliseconds", "unreadable", "missing"],
)
async def test_retry_after(header: str, value: str, least: float, most: float) -> None:
    """`Retry-After` is a number of seconds, with decimals too, or a date; a second where it cannot be read."""

    async def busy(scope: dict[str, object], receive: object, send: Callable[..., Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": 429, "headers": [(header.encode(), value.encode())]})
        await send({"type": "http.response.body", "body": b"{}"})

    async with listening(busy) as url:
        transport = HttpTransport(url, None, ExchangeLog(), 10.0)
        try:
            reply = await transport._send("POST", "/completions", b"{}")
        finally:
            await transport.close()
    assert least <= reply.retry_after <= most


def test_base_urls() -> None:
    """`/v1` where no path is given; a route's own address is as good."""
    from lmtool.measure.audit.auditing import _base

    assert _base("http://h:1") == _base("http://h:1/v1/chat/completions") == "http://h:1/v1"
    assert _base("https://h/api/v3/") == "https://h/api/v3"
