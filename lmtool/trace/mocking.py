"""A recording answered by the mock server, to a client that sends the recorded frames and to our own client."""

from __future__ import annotations

import asyncio
import math
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
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
from lmtool.trace.comparison import Comparison, compare_replay
from lmtool.trace.diff import Finding, Tolerance
from lmtool.trace.driver import Driver, client_actions
from lmtool.trace.events import Close, Drop, Message
from lmtool.trace.exchanges import LmtpExchange, recorded_requests
from lmtool.trace.matching import Matcher
from lmtool.trace.pace import Pace
from lmtool.trace.player import Player
from lmtool.trace.proxy import parse_target
from lmtool.trace.redacted_values import LEFT_OUT
from lmtool.trace.redaction import is_left_out

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from lmtool.core.types import TokenOutput
    from lmtool.protocol.lmtp.messages import ClientMessage
    from lmtool.trace.events import Event
    from lmtool.trace.exchanges import RecordedRequest
    from lmtool.trace.matching import MatchMode


async def replay_to_mock(
    events: Sequence[Event], *, timeout_s: float = 60.0, redacted: Sequence[str] = ()
) -> tuple[list[Comparison], list[Event]]:
    """Play a recording to both clients; return the comparisons and what went over the wire of the first one.

    timeout_s: seconds to wait for an answer. redacted: parts left out of the recording; connections of which too little
    is left to play are not played, and named by comparisons of verdict `info`.
    """
    lost = sorted({event.connection for event in events if is_left_out(event, redacted)})
    notes = [Comparison.note("not verified: what its client sent was redacted", "info", str(one)) for one in lost]
    events = [event for event in events if event.connection not in lost]
    exact = Tolerance(0.0, 0.0, is_redacted=bool(redacted))
    # The mock server stays as long as clients do, but for sessions that were aborted.
    sessions = {event.connection for event in events if isinstance(event, Message)}
    events = [event for event in events if event.connection in sessions or not _left_by_server(event)]
    recorded = recorded_requests(events)
    replayed: list[Event] = []
    async with mock_server(recorded) as port:
        driver = Driver(parse_target(f"ws://127.0.0.1:{port}/"), replayed.append, timeout=timeout_s)
        trouble = await driver.run(client_actions(events))
    # What is wrong with the recorded answers themselves is repeated.
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
    """A mock server of these exchanges on a free port, which is the value."""
    player = Player(Matcher(recorded, mode, once=True), Pace(None), "error", lambda _warning: None)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await player.listen([listening])
        try:
            yield listening.getsockname()[1]
        finally:
            await player.close()


async def _ask_with_our_client(recorded: Sequence[RecordedRequest], timeout_s: float) -> list[Comparison]:
    """Everything that `LmtpClient` can ask, asked at once, each with the outputs it handed over."""
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
    """One request of our client, its expected outputs and the actual ones."""

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

    def _watched(self, told: Watched) -> None:
        if not self._actual:  # others are expected no more
            self._add({"watch": {"time": told.time, "events": told.events, "lost": told.lost}})

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
        """Wait for as many outputs as were recorded; `compare` finds what does not come."""
        if self._expected:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._complete.wait(), timeout_s)

    async def client_closed(self) -> None:
        """Expect the error that the client then makes the last output of a request without an end."""
        if self._task is not None:
            await self._task
        if not self._exchange.ended:
            self._expected.append({"error": ...})

    def compare(self) -> Comparison:
        """Expected and actual outputs, one by one."""
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
    """The output that a client hands over for each recorded entry, up to the end."""
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
        del facts["logprob"]  # LMTP, LOG-5: handed over as another number
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
