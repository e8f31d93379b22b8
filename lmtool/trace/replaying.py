"""Replay a recording to a server and compare the answers, or let the mock server answer it to two clients."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError, UsageError
from lmtool.core.logprobs.mode import logprobs_mode
from lmtool.net.access.credentials import LEFT_OUT
from lmtool.protocol.lmtp import codec, frames
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.messages import (
    BufferRequest,
    Generate,
    ModelInfoRequest,
    ModelsRequest,
    Score,
    Watched,
    WatchRequest,
)
from lmtool.trace.comparison import LEVELS, Comparison, Finding, Tolerance, compare_replay, is_sampled
from lmtool.trace.driver import Driver, client_actions
from lmtool.trace.events import Close, Drop, Frame, JsonText, Message, Open, Request, Vocab
from lmtool.trace.exchanges import LmtpExchange, exchanges, recorded_requests
from lmtool.trace.matching import Matcher, Pace
from lmtool.trace.player import Player
from lmtool.trace.proxy import parse_target
from lmtool.trace.recorder import Recorder
from lmtool.trace.redaction import Redaction, is_left_out
from lmtool.trace.writer import TraceWriter, in_place_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from lmtool.core.types import TokenOutput
    from lmtool.protocol.lmtp.messages import ClientMessage
    from lmtool.trace.codec import Header
    from lmtool.trace.comparison import Level
    from lmtool.trace.events import Event
    from lmtool.trace.exchanges import Exchange, RecordedRequest
    from lmtool.trace.matching import MatchMode
    from lmtool.trace.proxy import Target

LIMITS = ("ttft_ms", "gap_p99_ms", "tokens_per_second")
"""Names in a header's `verify`: milliseconds to the first token and in the 99th percentile of gaps between frames, at
most; tokens per second, at least."""
_PROMPTS = ("prompt", "messages")


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """Comparison level, limits and timeouts of a replay."""

    level: Level = "numbers"
    tolerance: Tolerance = field(default_factory=Tolerance)
    limits: Mapping[str, object] = field(default_factory=dict)
    """Limits by a name of `LIMITS`; applied at level `time` only."""
    timeout: float = 60.0
    """Seconds to wait for a missing answer."""
    score: bool = True
    """Let the server score streams that were sampled without a seed."""
    speed: float | None = None
    """Also wait for the recorded times, this many times as fast; None to send as soon as possible."""
    redacted: tuple[str, ...] = ()
    """Parts that were removed from the recording, from its header."""

    @classmethod
    def of(
        cls,
        header: Header,
        *,
        level: Level | None = None,
        tol_logprob: float | None = None,
        tie_eps: float | None = None,
        timeout: float = 60.0,
        speed: float | None = None,
    ) -> ReplayOptions:
        """Options from a header's `verify`; arguments override it. Does not score if `sampled` is `shape`."""
        verify, standard = header.verify, Tolerance()
        recorded: Level = next((one for one in LEVELS if one == verify.get("level")), "numbers")
        tolerance = Tolerance(
            _number(tol_logprob, verify.get("tol_logprob"), standard.logprob),
            _number(tie_eps, verify.get("tie_eps"), standard.tie),
            is_redacted=bool(header.redacted),
        )
        score = verify.get("sampled") != "shape"
        return cls(level or recorded, tolerance, verify, timeout, score, speed, header.redacted)


def _number(argument: float | None, recorded: object, standard: float) -> float:
    if argument is not None:
        return argument
    return float(recorded) if isinstance(recorded, int | float) else standard


async def replay(
    events: Sequence[Event], target: Target, options: ReplayOptions
) -> tuple[list[Comparison], list[Event]]:
    """Send a recording to a server, compare the answers, and let it score sampled streams.

    events: without references to large values. Returns the comparisons, and all traffic except for the scoring. Raises
    `ConnectError`, and `UsageError` for a recording without its prompts, or above level `shape` without its answers.
    """
    if "text" in options.redacted and options.level != "shape":
        raise UsageError("the answers of this recording were redacted", "--level shape compares only their form")
    refuse_redacted(events, options.redacted)
    replayed, comparisons = await _drive(events, target, options)
    if options.level == "time":
        late = judge_speed(exchanges(replayed), options.limits)
        comparisons += [Comparison(finding.stream, "time", (finding,)) for finding in late]
    if options.level in ("numbers", "time") and options.score:
        comparisons += await _score(events, target, options)
    return comparisons, replayed


async def _drive(
    events: Sequence[Event], target: Target, options: ReplayOptions
) -> tuple[list[Event], list[Comparison]]:
    replayed: list[Event] = []
    driver = Driver(target, replayed.append, timeout=options.timeout, speed=options.speed)
    trouble = await driver.run(client_actions(events))
    comparisons = compare_replay(events, replayed, options.level, options.tolerance)
    if trouble:
        comparisons.append(Comparison.note(f"{trouble} within {options.timeout:g} s"))
    return replayed, comparisons


async def _score(events: Sequence[Event], target: Target, options: ReplayOptions) -> list[Comparison]:
    recorded = exchanges(events)
    comparisons = [
        Comparison.note(f"sampled stream {stream.name} is not scored: {reason}", "info")
        for stream, reason in unscored(recorded)
    ]
    if requests := as_scores(recorded):
        _, scores = await _drive(requests, target, replace(options, level="numbers", speed=None))
        comparisons += [one if one.kind == "-" else replace(one, kind="SCORE of a sampled stream") for one in scores]
    return comparisons


def refuse_redacted(events: Sequence[Event], parts: Sequence[str] = ()) -> None:
    """Raise `UsageError` naming the first request whose prompt was redacted. parts: those redacted."""
    for event in events:
        members = (_payload(event) or {}).values()
        is_marked = any(isinstance(one, dict) and "$redacted" in one for one in members)
        if isinstance(event, Message) and event.direction == ">":
            is_marked = '"$redacted"' in json.dumps(event.value)
        if is_marked or is_left_out(event, parts):
            raise UsageError(
                f"the request at {event.time:.3f} s on connection {event.connection} has a redacted prompt",
                "it can be answered (lmtool trace serve --match prompt), not sent again",
            )


def _payload(event: Event) -> dict[str, object] | None:
    content = event.content if isinstance(event, Frame) else event.body if isinstance(event, Request) else None
    return content.value if isinstance(content, JsonText) and isinstance(content.value, dict) else None


def with_model(events: Sequence[Event], model: str) -> list[Event]:
    """The recording with requests to another model."""
    return [_with_model(event, model) for event in events]


def _with_model(event: Event, model: str) -> Event:
    value = _payload(event)
    if value is None or "model" not in value:
        return event
    if isinstance(event, Frame) and isinstance(event.content, JsonText) and event.direction == ">":
        return replace(event, content=replace(event.content, value={**value, "model": model}))
    if isinstance(event, Request) and isinstance(event.body, JsonText):
        return replace(event, body=replace(event.body, value={**value, "model": model}))
    return event


# Scoring: sampled streams made checkable by asking the server under test for the logprobs of their recorded tokens.


def as_scores(recorded: Sequence[Exchange]) -> list[Event]:
    """A recording that asks SCORE for each sampled stream's tokens, with the recorded logprobs as expected answers.

    Leaves out streams that `unscored` names. Empty if nothing remains.
    """
    streams = [one for one in recorded if isinstance(one, LmtpExchange) and is_sampled(one) and not _why_not(one)]
    events: list[Event] = [Open(0.0, 1)] if streams else []
    for number, stream in enumerate(streams, 1):
        events += _as_score(number, stream)
    return events


def unscored(recorded: Iterable[Exchange]) -> Iterator[tuple[LmtpExchange, str]]:
    """Sampled streams that `as_scores` leaves out, each with the reason.

    Their logprobs are not of the model's own distribution (LMTP, LOG-3), or their prompt is not in the recording.
    """
    for one in recorded:
        if isinstance(one, LmtpExchange) and is_sampled(one) and (reason := _why_not(one)):
            yield one, reason


def _why_not(stream: LmtpExchange) -> str:
    payload = stream.payload
    mode = logprobs_mode(payload, biased=bool(payload.get("logit_bias")))
    if mode != "raw":
        return f"its logprobs are those of a {mode} distribution"
    if any(isinstance(payload.get(name), dict) for name in _PROMPTS):
        return "its prompt was redacted"
    if payload.get("prompt") == []:
        return "its prompt is empty: SCORE does not begin it with the bos token that GENERATE puts there"
    return "" if stream.tokens else "it has no tokens"


def _as_score(number: int, stream: LmtpExchange) -> Iterator[Event]:
    entries = stream.tokens
    payload: dict[str, object] = {name: value for name, value in stream.payload.items() if name in ("model", *_PROMPTS)}
    text_mode = (
        {} if isinstance(payload.get("prompt"), list) else {"text": False}
    )  # servers that accept only ids may not know it
    scored = [entry["token"] for entry in entries]
    yield Frame(0.0, ">", 1, JsonText("SCORE", {**payload, "scored": scored, "stream_id": number, **text_mode}, "py"))
    for entry in entries:
        expected = {
            "token": entry["token"],
            "stream_id": number,
            "logprob": entry.get("logprob"),
            "finish_reason": "stop" if entry is entries[-1] else None,
        }
        yield Frame(0.0, "<", 1, JsonText("TOKEN", [expected], "py"))


# Timing: the speed of answers, judged by the limits that a recording sets.


def judge_speed(replayed: Iterable[Exchange], limits: Mapping[str, object]) -> Iterator[Finding]:
    """One finding per limit that a stream misses."""
    for exchange in replayed:
        if isinstance(exchange, LmtpExchange):
            for name, value in speed_figures(exchange).items():
                limit = limits.get(name)
                if not isinstance(limit, int | float):
                    continue
                if (value < limit) if name == "tokens_per_second" else (value > limit):
                    message = f"expected {name} {limit:g}, got {value:.1f}"
                    yield Finding("fail", "time", exchange.name, None, message)


def speed_figures(exchange: LmtpExchange) -> dict[str, float]:
    """Measured speed of a stream, by the names of `LIMITS`."""
    times = [reply.offset for reply in exchange.replies if any("token" in entry for entry in reply.entries)]
    figures = {"ttft_ms": times[0] * 1000} if times else {}
    gaps = sorted(later - earlier for earlier, later in pairwise(times))
    if gaps:
        figures["gap_p99_ms"] = gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))] * 1000
        if times[-1] > 0:
            figures["tokens_per_second"] = len(exchange.tokens) / times[-1]
    return figures


def save_replay(path: Path, header: Header, recorded: Iterable[Event], replayed: Sequence[Event]) -> None:
    """Save a replay as a trace with the recording's header and vocabulary; replaces the file when complete.

    Raises `FileError`.
    """
    words: dict[int, bytes] = {}
    for event in recorded:
        if isinstance(event, Vocab):
            words |= {i: text if isinstance(text, bytes) else text.encode() for i, text in event.tokens.items()}
    with in_place_of(path, overwrite=True) as new:
        writer = TraceWriter(new, replace(header, redacted=()), overwrite=True)
        recorder = Recorder(writer, Redaction((), b""), (lambda i: words.get(i, b"")) if words else None)
        try:
            recorder.record(replayed)
            writer.close(replayed[-1].time if replayed else 0.0)  # `Recorder.close` would delete a trace without events
        finally:
            recorder.abandon()


async def replay_to_mock(
    events: Sequence[Event], *, timeout_s: float = 60.0, redacted: Sequence[str] = ()
) -> tuple[list[Comparison], list[Event]]:
    """Replay a recording from the mock server to both clients. Returns comparisons and the first client's events.

    timeout_s: seconds to wait for an answer. redacted: parts removed from the recording; connections that cannot be
    played for this reason are skipped, with a comparison of verdict `info` each.
    """
    lost = sorted({event.connection for event in events if is_left_out(event, redacted)})
    notes = [Comparison.note("not verified: what its client sent was redacted", "info", str(one)) for one in lost]
    events = [event for event in events if event.connection not in lost]
    exact = Tolerance(0.0, 0.0, is_redacted=bool(redacted))
    # The mock server never closes first, except for aborted sessions.
    sessions = {event.connection for event in events if isinstance(event, Message)}
    events = [event for event in events if event.connection in sessions or not _left_by_server(event)]
    recorded = recorded_requests(events)
    replayed: list[Event] = []
    async with mock_server(recorded) as port:
        driver = Driver(parse_target(f"ws://127.0.0.1:{port}/"), replayed.append, timeout=timeout_s)
        trouble = await driver.run(client_actions(events))
    # Mistakes in the recorded answers are repeated; they are no findings.
    own = {finding for one in compare_replay(events, events, "numbers", exact) for finding in one.findings}
    comparisons = [
        replace(one, findings=tuple(finding for finding in one.findings if finding not in own))
        for one in compare_replay(events, replayed, "numbers", exact)
    ]
    if trouble:
        comparisons.append(Comparison.note(f"{trouble} within {timeout_s:g} s"))
    return [*notes, *comparisons, *await _ask_with_our_client(recorded, timeout_s)], replayed


def _left_by_server(event: Event) -> bool:
    by = event.by if isinstance(event, Close) else event.facts.get("by") if isinstance(event, Drop) else None
    return by == "server"


@asynccontextmanager
async def mock_server(recorded: Sequence[RecordedRequest], mode: MatchMode = "exact") -> AsyncIterator[int]:
    """Run a mock server of these exchanges on a free port, which is yielded."""
    player = Player(Matcher(recorded, mode, once=True), Pace(None), "error", lambda _warning: None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await player.listen([listening])
        try:
            yield listening.getsockname()[1]
        finally:
            await player.close()


async def _ask_with_our_client(recorded: Sequence[RecordedRequest], timeout_s: float) -> list[Comparison]:
    """Send all requests that `LmtpClient` supports at once and compare the outputs that it delivers."""
    requests = [(one, message) for one in recorded if isinstance(one, LmtpExchange) and (message := _message(one))]
    if not requests:
        return []
    async with mock_server([one for one, _ in requests], "order") as port:
        client = LmtpClient(f"127.0.0.1:{port}", on_progress=lambda _: None, extended=True)  # as recorded
        calls = []
        async with client:
            for exchange, message in requests:
                calls.append(_Call(exchange, message, client))
                await asyncio.sleep(0)  # a MODEL_INFO is sent by its task
            for call in calls:
                await call.wait(timeout_s)
        for call in calls:
            await call.client_closed()
    return [call.compare() for call in calls]


def _message(exchange: LmtpExchange) -> ClientMessage | None:
    with suppress(codec.RefusedFrameError):
        return codec.decode_request(exchange.text)
    return None


class _Call:
    """One request of our client, with its expected and actual outputs."""

    def __init__(self, exchange: LmtpExchange, message: ClientMessage, client: LmtpClient) -> None:
        self._exchange = exchange
        self._expected = list(_expected(exchange))
        self._actual: list[Mapping[str, object]] = []
        self._complete = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if isinstance(message, Generate | Score):
            client.submit(message.request, lambda outputs: self._add(*map(_output_facts, outputs)))
        elif isinstance(message, ModelInfoRequest | ModelsRequest | BufferRequest | WatchRequest):
            self._task = asyncio.create_task(self._ask(client, message))

    def _add(self, *outputs: Mapping[str, object]) -> None:
        self._actual += outputs
        if len(self._actual) >= len(self._expected):
            self._complete.set()

    def _watched(self, watched: Watched) -> None:
        if not self._actual:  # only the first is compared
            self._add({"watch": {"time": watched.time, "events": watched.events, "lost": watched.lost}})

    async def _ask(
        self, client: LmtpClient, message: ModelInfoRequest | ModelsRequest | BufferRequest | WatchRequest
    ) -> None:
        try:
            if isinstance(message, WatchRequest):
                await client.watch(self._watched)
                return
            if isinstance(message, BufferRequest):
                length = await client.change_buffer(
                    message.name, message.append, drop=message.drop, ttl=message.ttl, model=message.model
                )
                self._add({"buffer": {"name": message.name, "length": length}})
            elif isinstance(message, ModelsRequest):
                listed = await client.manage(load=message.load, unload=message.unload)
                self._add({"models": [entry.name for entry in listed]})
            elif message.listing:
                self._add({"models": [entry.name for entry in await client.models(message.model)]})
            else:
                self._add({"model_info": await client.model_info(message.model)})
        except LmtoolError as error:
            self._add({"error": error.message})

    async def wait(self, timeout_s: float) -> None:
        """Wait for as many outputs as were recorded; `compare` reports missing ones."""
        if self._expected:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._complete.wait(), timeout_s)

    async def client_closed(self) -> None:
        """Expect the error that the closed client delivers as last output of a request without an end."""
        if self._task is not None:
            await self._task
        if not self._exchange.ended:
            self._expected.append({"error": ...})

    def compare(self) -> Comparison:
        """Compare expected and actual outputs, one by one."""
        name, kind = self._exchange.name, f"{self._exchange.command} by lmtool"
        for place, (expected, actual) in enumerate(zip(self._expected, self._actual, strict=False)):
            for member, value in expected.items():
                if actual.get(member) != value and not (value is ... and member in actual):
                    message = f"expected {member} {value!r}, got {actual.get(member)!r}"
                    return Comparison(name, kind, (Finding("fail", "ids", name, place, message),))
        if len(self._expected) != len(self._actual):
            message = f"expected {len(self._expected)} outputs, got {len(self._actual)}"
            return Comparison.note(message, "fail", name, kind)
        return Comparison(name, kind)


def _expected(exchange: LmtpExchange) -> Iterator[dict[str, object]]:
    """Outputs that a client must deliver for the recorded entries, up to the end."""
    for reply in exchange.replies:
        for entry in reply.entries:
            last = frames.ends(reply.command, entry)
            if reply.command == "TOKEN" or (reply.command == "MSG" and last):
                yield _entry_facts(entry)
            if last:
                return


def _entry_facts(entry: Mapping[str, object]) -> dict[str, object]:
    if entry.get("error") is not None:
        return {"error": ...}
    if "model_info" in entry:
        return {"model_info": entry["model_info"]}
    if "watch" in entry:
        return {"watch": entry["watch"]}
    if isinstance(buffer := entry.get("buffer"), dict):
        return {"buffer": ... if buffer.get("name") == LEFT_OUT else buffer}
    if isinstance(models := entry.get("models"), list):
        return {"models": [one["name"] for one in models]}
    facts = {name: entry.get(name) for name in ("token", "logprob", "text", "finish_reason")}
    top = entry.get("top_logprobs")
    if isinstance(top, dict):
        facts["top_logprobs"] = {token: value for token, value in top.items() if math.isfinite(value)}
    logprob = facts["logprob"]
    if isinstance(logprob, float) and not math.isfinite(logprob):
        del facts["logprob"]  # LMTP, LOG-5: the client delivers another number
    return facts


def _output_facts(output: TokenOutput) -> Mapping[str, object]:
    if output.error is not None:
        return {"error": output.error}
    top = output.top_logprobs
    return {
        "token": output.token,
        "logprob": output.logprob,
        "text": output.text,
        "finish_reason": output.finish_reason,
        "top_logprobs": None if top is None else {str(token): value for token, value in top},
    }
