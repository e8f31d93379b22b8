"""Seeded streams over every wire that must say the same, bit for bit, whatever else the server is asked meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from lmtool.core.errors import LmtoolError
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams
from lmtool.measure.bench.record import Record
from lmtool.protocol.providers.answer_events import AnswerFailed, ChoiceFinished, TextDelta, TokenUsage
from lmtool.protocol.providers.answer_reader import AnswerReader
from lmtool.protocol.providers.body_parts import form_of
from tests.lab.soak.attacks import GRPC, ROUTES, request_body
from tests.lab.soak.connection import Connection, ConnectionEnded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from lmtool.protocol.lmtp.client import LmtpClient
    from lmtool.protocol.providers.answer_events import AnswerEvent, Api
    from tests.lab.soak.connection import Address
    from tests.lab.soak.wires import SoakTarget

Answer: TypeAlias = "tuple[object, ...]"
"""All that a stream says, compared as it is."""
PROMPTS = ("Once upon a time", "The sun is", "One day a small cat", "My friend said")
SILENCE = 300.0
"""Seconds without a token after which a stream counts as lost."""


@dataclass
class GoodStream:
    """One stream, asked for again and again."""

    number: int
    wire: str
    first: Answer | None = None
    """Its answer on the quiet server."""
    equal: int = 0
    """How often the same came again."""
    differs: bool = False
    """True if it has ever said something else than at first."""
    unsteady: bool = False
    """True if it said two things on the quiet server, as pools of other providers do."""

    @property
    def prompt(self) -> str:
        """Its prompt, which no other stream has."""
        return f"{PROMPTS[self.number % len(PROMPTS)]} {self.number}"


@dataclass
class Breach(Exception):  # noqa: N818  # what the report calls it
    """A good stream failed, or said something else."""

    sentence: str


@dataclass
class GoodStreams:
    """All of them, with the times of their tokens."""

    address: Address
    target: SoakTarget
    count: int
    tokens: int
    records: list[Record] = field(default_factory=list)
    """Of the streams that ended since the last `take`."""
    failures: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    streams: list[GoodStream] = field(init=False)
    _client: LmtpClient | None = None

    def __post_init__(self) -> None:
        wires = [wire for wire in self.target.wires if wire != "chatStream"]
        chosen = [(number, wires[number % len(wires)]) for number in range(self.count)]
        # The unified API has neither seeds nor temperatures of a request: what a pool says, nobody can ask for again.
        self.streams = [GoodStream(number, wire, unsteady=wire == "unified") for number, wire in chosen]

    @property
    def breaches(self) -> list[str]:
        """Everything that may not happen to a good stream."""
        return self.failures + self.differences

    async def once(self) -> None:
        """Run each stream once, all at once."""
        await asyncio.gather(*(self._run(each) for each in self.streams))

    async def endless(self) -> None:
        """Run all of them anew for ever."""

        async def again(each: GoodStream) -> None:
            while True:
                if not await self._run(each):
                    await asyncio.sleep(1.0)  # a server that is gone answers at once

        await asyncio.gather(*(again(each) for each in self.streams))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def take(self) -> list[Record]:
        """The records since the last call."""
        taken, self.records = self.records, []
        return taken

    async def _run(self, each: GoodStream) -> bool:
        record = Record(time.perf_counter())
        try:
            answer = await _WAYS[_kind(each.wire)](self, each, record)
        except (LmtoolError, ConnectionEnded, TimeoutError, Breach) as error:
            what = getattr(error, "sentence", None) or str(error) or type(error).__name__
            self.failures.append(f"good stream {each.number} over {each.wire} failed: {what}")
            return False
        record.tokens = len(record.stamps)
        self.records.append(record)
        if each.first is None:
            each.first = answer
        elif answer == each.first:
            each.equal += 1
        elif not each.unsteady:
            each.differs = True
            self.differences.append(
                f"good stream {each.number} over {each.wire} differs from its first run: {_difference(each, answer)}"
            )
        return True

    def settle(self) -> list[str]:
        """After the quiet runs: streams that differ there are only watched for their ends. Their sentences."""
        found = []
        for each in (one for one in self.streams if one.differs):
            each.unsteady = True
            found.append(f"stream {each.number} over {each.wire} says something else each time: only its end is judged")
        self.differences = []
        return found

    async def lmtp(self, each: GoodStream, record: Record) -> Answer:
        """Ids, logprobs and alternatives."""
        if self._client is None:
            from lmtool.protocol.lmtp.client import LmtpClient
            from lmtool.protocol.lmtp.endpoint import SocketEndpoint

            place = SocketEndpoint(self.address.lmtp, loopback=True, authorization=self.address.authorization)
            self._client = LmtpClient(place)
        sampling = SamplingParams(
            max_tokens=self.tokens, temperature=1.0, seed=each.number, ignore_eos=True, top_logprobs=3
        )
        answer: list[object] = []
        request = GenerateRequest(f"good {each.number}", each.prompt, sampling, self.target.model or None)
        async with asyncio.timeout(SILENCE) as limit:
            async for output in stream(self._client, request):
                _prolong(limit)
                if output.error is not None:
                    raise Breach(output.error)
                if output.token is not None or output.text:
                    record.stamps.append(time.perf_counter())
                answer.append((output.token, output.text, output.logprob, output.top_logprobs, output.finish_reason))
        return tuple(answer)

    async def evergreen(self, each: GoodStream, record: Record) -> Answer:
        """Text, ids and logprobs of a session."""
        import lmtool

        url = self.address.evergreen if each.wire != GRPC else f"grpc://{self.target.grpc}"
        key = None if self.address.authorization is None else self.address.authorization.rpartition(" ")[2]
        options = {"max_tokens": self.tokens, "temperature": 1.0, "seed": each.number, "ignore_eos": True}
        wanted = ["response", "tokens", "logprobs"]
        async with asyncio.timeout(SILENCE), lmtool.session(url, api_key=key) as session:
            nodes = await session.call("GENERATE", {"prompt": each.prompt}, wanted, target=self.target.model, **options)
            pieces = []
            async for piece in session.pieces(nodes["response"]):
                record.stamps.append(time.perf_counter())
                pieces.append(piece)
            rest = [await nodes[name].value() for name in wanted[1:]]
        return ("".join(pieces), *rest)

    async def http(self, each: GoodStream, record: Record) -> Answer:
        """Text, tokens with logprobs where the API has them, and the ending."""
        body = good_body(each, self.target.model, self.tokens)
        path = ROUTES[each.wire].format(pool=self.target.pool)
        connection = await Connection.open(self.address)
        try:
            data = json.dumps(body).encode()
            async with asyncio.timeout(SILENCE) as limit:
                await connection.send(self.address.request("POST", path, data, {"Connection": "close"}))
                head = await connection.head()
                if head.status != 200:
                    text = (await connection.body(head))[:300].decode("utf-8", "replace")
                    raise Breach(f"status {head.status}: {text}")
                form = form_of(head.headers.get("content-type", ""))
                reader, folded = AnswerReader(cast("Api", each.wire), form), _Folded(record)
                async for piece in connection.pieces(head):
                    _prolong(limit)
                    folded.add(reader.feed(piece))
                folded.add(reader.end())
            return folded.answer()
        finally:
            connection.abort()


class _Folded:
    """An answer over HTTP, independent of where its pieces are cut."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._text: dict[int, list[str]] = {}
        self._tokens: list[object] = []
        self._endings: list[object] = []
        self._usage: object = None

    def add(self, events: Iterable[AnswerEvent]) -> None:
        for event in events:
            if isinstance(event, AnswerFailed):
                raise Breach(event.message)
            if isinstance(event, TextDelta):
                self._text.setdefault(event.choice, []).append(event.text)
                self._tokens += [(one.piece, one.logprob, one.alternatives) for one in event.tokens]
                self._record.stamps += [time.perf_counter()] * max(1, len(event.tokens))
            elif isinstance(event, ChoiceFinished):
                self._endings.append((event.choice, event.reason, event.stop))
            elif isinstance(event, TokenUsage):
                self._usage = event.completion_tokens

    def answer(self) -> Answer:
        if not self._endings:
            raise Breach("the answer broke off before its end")
        texts = tuple((choice, "".join(parts)) for choice, parts in sorted(self._text.items()))
        return (texts, tuple(self._tokens), tuple(self._endings), self._usage)


def good_body(each: GoodStream, model: str, tokens: int) -> dict[str, Any]:
    """The request of a good stream: seeded where the API has seeds, else greedy."""
    body = request_body(each.wire, model, each.prompt, tokens)
    seeded = {"temperature": 1, "seed": each.number}
    more: dict[str, dict[str, Any]] = {
        "completions": {**seeded, "logprobs": 2, "ignore_eos": True},
        "chat": {**seeded, "logprobs": True, "top_logprobs": 2, "ignore_eos": True},
    }
    streamed = {} if each.wire == "unified" else {"stream": True}
    return {**body, **more.get(each.wire, {}), **streamed}


def _kind(wire: str) -> str:
    return "evergreen" if wire in {"Evergreen", GRPC} else "lmtp" if wire == "LMTP" else "http"


_Way: TypeAlias = "Callable[[GoodStreams, GoodStream, Record], Awaitable[Answer]]"
_WAYS: dict[str, _Way] = {"lmtp": GoodStreams.lmtp, "evergreen": GoodStreams.evergreen, "http": GoodStreams.http}


def _prolong(limit: asyncio.Timeout) -> None:
    limit.reschedule(asyncio.get_running_loop().time() + SILENCE)


def _difference(each: GoodStream, answer: Answer) -> str:
    """Where two answers part."""
    assert each.first is not None
    for place, (before, now) in enumerate(zip(each.first, answer, strict=False)):
        if before != now:
            return f"at {place}: {str(before)[:150]} became {str(now)[:150]}"
    return f"{len(each.first)} parts became {len(answer)}"
