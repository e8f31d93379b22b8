"""An audit from its beginning to its end: which wires a server has, their interviews, their findings, their proofs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lmtool.core.errors import ServerError, UsageError
from lmtool.measure.audit.checks import NAMES, TOLERANCE, judge, parts_of
from lmtool.measure.audit.exchange_log import ExchangeLog
from lmtool.measure.audit.http_transport import HttpTransport
from lmtool.measure.audit.http_wire import HttpWire
from lmtool.measure.audit.interview import PARTS, Interview, Pace
from lmtool.measure.audit.lmtp_wire import LmtpWire
from lmtool.net.access.outgoing import authorization
from lmtool.protocol.lmtp.endpoint import SocketEndpoint, parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.measure.audit.evidence import Evidence, Finding, Kind
    from lmtool.measure.audit.wire import WireFacts


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """What to audit, and how strictly."""

    model: str | None = None
    """None: the only one, or the first one of a list."""
    prompts: tuple[str, ...] = ()
    """In place of the usual ones."""
    claim: Kind | None = None
    """What logprobs must be of; None: anything that is one thing throughout."""
    tolerance: float = TOLERANCE
    """Nats between two computations of one number."""
    timeout: float = 30.0
    """Seconds without anything from the server."""
    pace: Pace = field(default_factory=Pace)
    only: tuple[str, ...] = NAMES
    """Checks to make."""


@dataclass(frozen=True, slots=True)
class WireReport:
    """What was found of one wire."""

    facts: WireFacts
    findings: Mapping[str, Finding]
    """By check; empty where the wire could not be audited."""
    exchanges: int
    seconds: float
    reason: str = ""
    """Why it could not be audited."""
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was found of a server."""

    url: str
    """Without credentials."""
    model: str
    wires: tuple[WireReport, ...]
    log: ExchangeLog

    @property
    def breaches(self) -> int:
        """How many checks failed."""
        return sum(one.verdict == "breach" for wire in self.wires for one in wire.findings.values())

    @property
    def audited(self) -> bool:
        """True if any wire has logprobs at all."""
        return any(wire.findings and not wire.facts.no_logprobs for wire in self.wires)


def is_http(address: str) -> bool:
    """True if an address is that of HTTP APIs; LMTP has all others."""
    return address.startswith(("http://", "https://"))


async def audit(address: str, api_key: str | None, config: AuditConfig, note: Callable[[str], None]) -> AuditReport:
    """Audit a server: both HTTP routes of `http://...`, LMTP of any other endpoint. note: called with what is asked.

    Raises `UsageError`, `ConnectError`, `AccessDeniedError`, `ServerError` where there is no such server.
    """
    log = ExchangeLog()
    if is_http(address):
        return await _audit_http(address, api_key, config, log, note)
    endpoint = parse(address, api_key)
    if not isinstance(endpoint, SocketEndpoint):
        raise UsageError("an audit needs many connections, a command has one", "serve on a port and give its URL")
    wire = LmtpWire(endpoint, log, config.timeout, config.model, config.prompts)
    report = await _audit_wire(wire, config, log, note)
    return AuditReport(endpoint.url, wire.model or "", (report,), log)


async def _audit_http(
    address: str, api_key: str | None, config: AuditConfig, log: ExchangeLog, note: Callable[[str], None]
) -> AuditReport:
    url, header = authorization(address, api_key)
    transport = HttpTransport(_base(url), header, log, config.timeout)
    try:
        model = config.model or next(iter(await transport.models()), "")
        if not model:
            raise ServerError(f"{transport.url} lists no model", "name one:  --model NAME")
        wires = [HttpWire(transport, route, model, config.prompts) for route in ("completions", "chat")]
        share = replace(config, pace=replace(config.pace, seconds=config.pace.seconds / len(wires)))
        reports = [await _audit_wire(wire, share, log, note) for wire in wires]
        return AuditReport(transport.url, model, tuple(reports), log)
    finally:
        await transport.close()


def _base(url: str) -> str:
    """The base URL of the routes: `/v1` where none is given."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host:
        raise UsageError(f"{url} is no URL of a server", "write http://HOST:PORT/v1")
    path = parts.path.rstrip("/") or "/v1"
    for end in ("/chat/completions", "/completions", "/models"):
        path = path.removesuffix(end)
    return f"{parts.scheme}://{parts.netloc}{path}"


async def _audit_wire(
    wire: HttpWire | LmtpWire, config: AuditConfig, log: ExchangeLog, note: Callable[[str], None]
) -> WireReport:
    start, before = time.monotonic(), log.exchanges
    if reason := await wire.find_out():
        return WireReport(wire.facts, {}, log.exchanges - before, time.monotonic() - start, reason)
    parts = [part for part in PARTS if part in parts_of(config.only)]
    evidence = await Interview(wire, config.pace, note).run(parts)
    findings = judge(evidence, config.tolerance, config.claim, config.only)
    seconds = time.monotonic() - start
    return WireReport(wire.facts, findings, log.exchanges - before, seconds, evidence=evidence)
