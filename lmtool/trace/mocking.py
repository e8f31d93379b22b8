"""A recording answered by the mock server: to a client that sends the recorded frames, and to our own."""

from __future__ import annotations

import asyncio
import math
import socket
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.lmtp import codec, frames
from lmtool.lmtp.client import LmtpClient
from lmtool.lmtp.messages import Generate, ModelInfoRequest, Score
from lmtool.trace.comparison import Comparison, compare_again
from lmtool.trace.diff import Tolerance
from lmtool.trace.driver import Driver
from lmtool.trace.events import Close, Drop
from lmtool.trace.exchanges import LmtpExchange, exchanges
from lmtool.trace.findings import Finding
from lmtool.trace.matching import Matcher
from lmtool.trace.player import Pace, Player
from lmtool.trace.proxy import parse_target
from lmtool.trace.script import acts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from lmtool.lmtp.messages import ClientMessage
    from lmtool.trace.events import Event
    from lmtool.trace.exchanges import Exchange
    from lmtool.types import LoadProgress, TokenOutput

_EXACT = Tolerance(0.0, 0.0)


async def mock(events: Sequence[Event], *, patience: float = 60.0) -> tuple[list[Comparison], list[Event]]:
    """Play a recording to both clients; return the comparisons and what went over the wire of the first one."""
    events = [event for event in events if not _left_by_server(event)]  # the mock server stays as long as clients do
    recorded = exchanges(events)
    came: list[Event] = []
    async with playing(recorded, "exact") as port:
        driver = Driver(parse_target(f"ws://127.0.0.1:{port}/"), came.append, patience=patience)
        trouble = await driver.run(acts(events))
    # What is wrong with the recorded answers themselves is repeated.
    own = {finding for one in compare_again(events, events, "numbers", _EXACT) for finding in one.findings}
    compared = compare_again(events, came, "numbers", _EXACT)
    made = [replace(one, findings=tuple(f for f in one.findings if f not in own)) for one in compared]
    if trouble:
        made.append(_failed("-", "-", f"{trouble} within {patience:g} s"))
    return made + await _our_client(recorded, patience), came


def _left_by_server(event: Event) -> bool:
    by = event.by if isinstance(event, Close) else event.facts.get("by") if isinstance(event, Drop) else None
    return by == "server"


@asynccontextmanager
async def playing(recorded: Sequence[Exchange], how: str) -> AsyncIterator[int]:
    """A mock server of these exchanges on a free port."""
    warnings: list[str] = []
    matcher = Matcher(recorded, "order" if how == "order" else "exact")
    player = Player(matcher, Pace(None), "error", warnings.append)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await player.listen([listening])
        try:
            yield listening.getsockname()[1]
        finally:
            await player.close()


async def _our_client(recorded: Sequence[Exchange], patience: float) -> list[Comparison]:
    """Everything that `LmtpClient` can ask, asked in one go, each with what it handed over."""
    asked = [(one, message) for one in recorded if isinstance(one, LmtpExchange) and (message := _message(one))]
    if not asked:
        return []
    async with playing([one for one, _ in asked], "order") as port:
        client = LmtpClient(f"127.0.0.1:{port}", on_progress=_unheard)
        calls = []
        async with client:
            for exchange, message in asked:
                calls.append(_Call(exchange, message, client))
                await asyncio.sleep(0)  # a MODEL_INFO is sent by its task
            for call in calls:
                await call.done(patience)
        for call in calls:
            await call.over()
    return [call.judged() for call in calls]


def _unheard(_progress: LoadProgress) -> None:
    """Ask for progress; the outputs are what is looked at."""


def _message(exchange: LmtpExchange) -> ClientMessage | None:
    try:
        message = codec.decode_request(exchange.text)
    except codec.RefusedFrameError:
        return None
    return message


class _Call:
    """One request of ours, and what came of it."""

    def __init__(self, exchange: LmtpExchange, message: ClientMessage, client: LmtpClient) -> None:
        self._exchange = exchange
        self._wanted = list(_expected(exchange))
        self._got: list[Mapping[str, object]] = []
        self._enough = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        if isinstance(message, Generate | Score):
            client.submit(message.request, self._take)
        elif isinstance(message, ModelInfoRequest):
            self._asking = asyncio.create_task(self._ask(client, message.model))

    def _take(self, outputs: Sequence[TokenOutput]) -> None:
        self._got += [_told(output) for output in outputs]
        self._look()

    async def _ask(self, client: LmtpClient, model: str | None) -> None:
        try:
            self._got.append({"model_info": await client.model_info(model)})
        except LmtoolError as error:
            self._got.append({"error": error.message})
        self._look()

    def _look(self) -> None:
        if len(self._got) >= len(self._wanted):
            self._enough.set()

    async def done(self, patience: float) -> None:
        """Wait for as many outputs as were recorded; what does not come is found by `judged`."""
        if self._wanted:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._enough.wait(), patience)

    async def over(self) -> None:
        """The client has been closed: what it says then about a request without an end is its last output."""
        if self._asking is not None:
            await self._asking
        if not self._exchange.ended:
            self._wanted.append({"error": ...})

    def judged(self) -> Comparison:
        """Wanted and got, one by one."""
        name, kind = f"{self._exchange.connection}/{self._exchange.stream_id}", f"{self._exchange.command} by lmtool"
        for place, (wanted, got) in enumerate(zip(self._wanted, self._got, strict=False)):
            for member, value in wanted.items():
                if got.get(member) != value and not (value is ... and member in got):
                    message = f"expected {member} {value!r}, got {got.get(member)!r}"
                    return Comparison(name, kind, (Finding("fail", "ids", name, place, message),))
        if len(self._wanted) != len(self._got):
            return _failed(name, kind, f"expected {len(self._wanted)} outputs, got {len(self._got)}")
        return Comparison(name, kind, ())


def _failed(name: str, kind: str, message: str) -> Comparison:
    return Comparison(name, kind, (Finding("fail", "shape", name, None, message),))


def _expected(exchange: LmtpExchange) -> Iterator[dict[str, object]]:
    """What a client hands over for each recorded entry, up to the end."""
    for reply in exchange.replies:
        for entry in reply.entries:
            last = frames.ends(reply.command, entry)
            if reply.command == "TOKEN" or (reply.command == "MSG" and last):
                yield _facts(entry)
            if last:
                return


def _facts(entry: Mapping[str, object]) -> dict[str, object]:
    if entry.get("error") is not None:
        return {"error": ...}
    if "model_info" in entry:
        return {"model_info": entry["model_info"]}
    facts = {name: entry.get(name) for name in ("token", "logprob", "text", "finish_reason")}
    top = entry.get("top_logprobs")
    if isinstance(top, dict):
        facts["top_logprobs"] = {token: value for token, value in top.items() if math.isfinite(value)}
    logprob = facts["logprob"]
    if isinstance(logprob, float) and not math.isfinite(logprob):
        del facts["logprob"]  # LMTP, LOG-5: told as another number
    return facts


def _told(output: TokenOutput) -> Mapping[str, object]:
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
