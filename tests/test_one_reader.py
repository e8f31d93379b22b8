"""One answer is one answer: whoever reads it, from a recording or from a server, finds the same tokens and endings."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import math
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lmtool.core.logprobs.distribution import Rank
from lmtool.measure.bench.targets import OpenAITarget
from lmtool.measure.bench.workload import Job
from lmtool.measure.conformance.transcript import Message, Transcript
from lmtool.terminal.tui.event_store import EventStore, TraceFile
from lmtool.terminal.tui.measures import Measures, TokenFacts, TokenFilter, load_selection
from lmtool.terminal.tui.plain import PlainLines
from lmtool.trace.answers import Answers
from lmtool.trace.codec import Header
from lmtool.trace.comparison import Tolerance, compare
from lmtool.trace.connection_tap import ResponseRecorder
from lmtool.trace.description import describe, line_of
from lmtool.trace.events import Close, Drop, Frame, JsonText, Open, Piece, Request, Response, Vocab
from lmtool.trace.exchanges import LmtpExchange, exchanges
from lmtool.trace.filter import parse
from lmtool.trace.formats import as_csv
from lmtool.trace.http_stream import Head
from lmtool.trace.reader import TraceReader
from lmtool.trace.statistics import TraceFigures
from lmtool.trace.stream_events import OutputEvent, stream_of
from lmtool.trace.writer import TraceWriter
from tests.protocol.providers.answers import CONTENT_TYPES, LOGPROB, OTHER, Written, written
from tests.trace.conftest import generate, token, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lmtool.trace.events import Event

ids = st.sampled_from([1, 2, "a"])
entries = st.builds(
    lambda stream, number, reason, more: token(number, stream) | {"finish_reason": reason} | more,
    ids,
    st.sampled_from([-1, 5, 7, "odd"]),
    st.sampled_from([None, None, "stop", "other"]),
    st.sampled_from([{}, {"text": "e"}, {"error": "no"}, {"logprob": None}, {"top_logprobs": {"5": -0.1, "7": -2.0}}]),
)
events_of_lmtp = st.one_of(
    st.builds(lambda stream: generate(0.0, stream), ids),
    st.builds(lambda of: Frame(0.0, ">", 1, JsonText("MODEL_INFO", {"stream_id": of}, "py")), ids),
    st.builds(lambda ones, on: tokens(0.0, *ones, connection=on), st.lists(entries, max_size=4), st.integers(1, 2)),
    st.builds(
        lambda of, what: Frame(0.0, "<", 1, JsonText("MSG", [{"stream_id": of, what: "x"}], "py")),
        ids,
        st.sampled_from(["error", "model_info", "progress"]),
    ),
    st.sampled_from([Close(0.0, 1, "client"), Drop(0.0, 2)]),
)
talk = st.lists(events_of_lmtp, max_size=14).map(
    lambda events: [
        Vocab(0.0, 0, {5: " e", 7: b"\xf0\x9f"}),
        *(replace(one, time=i / 10) for i, one in enumerate(events)),
    ]
)

RECORDINGS = sorted(Path(__file__).parent.parent.joinpath("recordings").glob("*.lmtp.jsonl*"))
FILTERS = (
    "p<.5",
    "rank>1",
    "gap>1ms",
    "state:error",
    "state:running",
    "state:stop | state:unfinished",
    "bits>1 !err",
    '"e"',
    "kind:gen",
    "tok:5",
)
OF_THE_MOMENT = ("state:running", "bits>1 !err")
"""Filters that hold while a stream runs and no longer at its end: who tells live tells more by them."""

Tokens = dict[tuple[str, int], list[tuple[object, float | None]]]
"""By label, and number of the stream of this label: id, or text where there is none, and logprob of each token."""


def in_outputs(events: Sequence[Event]) -> Tokens:
    """As `Answers` says it: what all others are held to."""
    answers, found = Answers(stream_of), Tokens()
    counted: Counter[str] = Counter()
    names: dict[int, tuple[str, int]] = {}
    for event in events:
        for step in answers.follow(event):
            stream = step.stream
            if stream.index >= 0 and stream.index not in names:
                names[stream.index] = stream.label, counted[stream.label]
                counted[stream.label] += 1
                found[names[stream.index]] = []
            if isinstance(step, OutputEvent) and step.counts and stream.index >= 0:
                name = step.token if step.token is not None else answers.text_of(step)
                found[names[stream.index]].append((name, step.logprob))
    return found


def in_the_inspector(source: EventStore | TraceFile) -> Tokens:
    """As the tree and the token pane have it."""
    found, counted = Tokens(), Counter[str]()
    state = source.state
    for stream in state.streams:
        tokens = [
            (
                state.tokens.ids[row] if state.tokens.ids[row] >= 0 else state.texts.of_row(row),
                state.tokens.logprob(row),
            )
            for row in stream.rows
        ]
        found[stream.label, counted[stream.label]] = tokens
        counted[stream.label] += 1
    assert sum(map(len, found.values())) == len(state.tokens)
    return found


def phases(source: EventStore | TraceFile) -> Counter[str]:
    """How the streams end, as the tree has it."""
    state = source.state
    return Counter(stream.phase(state.now, len(state.tokens)) for stream in state.streams)


def same(one: Tokens, other: Tokens) -> bool:
    """Whether two readers found the same; a column of logprobs is of float32."""
    if one.keys() != other.keys() or any(len(one[name]) != len(other[name]) for name in one):
        return False
    pairs = [pair for name in one for pair in zip(one[name], other[name], strict=True)]
    return all(
        a[0] == b[0]
        and (a[1] == b[1] or (a[1] is not None and b[1] is not None and math.isclose(a[1], b[1], rel_tol=1e-6)))
        for a, b in pairs
    )


def counts(events: Sequence[Event]) -> dict[str, int]:
    """Tokens by label as `trace stats` counts them."""
    figures = TraceFigures()
    for event in events:
        figures.add(event)
    found = Counter[str]()
    for one in figures.streams:
        found[one.label] += one.tokens
    assert sum(found.values()) == figures.counts["tokens"] + figures.counts["pieces"]
    return {label: number for label, number in found.items() if number}


def by_label(tokens: Tokens) -> dict[str, int]:
    """Tokens by label."""
    found = Counter[str]()
    for (label, _), of in tokens.items():
        found[label] += len(of)
    return {label: number for label, number in found.items() if number}


def token_lines(events: Sequence[Event]) -> list[str]:
    """What `trace show` prints of tokens, in order."""
    answers = Answers(stream_of)
    return [
        line_of(step, answers)
        for event in events
        for step in answers.follow(event)
        if isinstance(step, OutputEvent) and step.counts
    ]


def endings(events: Sequence[Event]) -> list[str]:
    """How the stream of each token ends."""
    answers = Answers(stream_of)
    steps = [step for event in events for step in answers.follow(event)]
    return [
        step.stream.phase_at(math.inf, produced=True) for step in steps if isinstance(step, OutputEvent) and step.counts
    ]


def csv_rows(events: Sequence[Event]) -> dict[str, int]:
    """Rows of the table with a token or text, by label."""
    rows = csv.DictReader(io.StringIO("".join(as_csv(Header(), events)), newline=""))
    found = Counter(row["stream"] for row in rows if row["token"] or row["text"] or row["logprob"])
    return dict(found)


def hold_together(events: Sequence[Event], path: Path) -> Tokens:
    """Every reader of a trace, held to the same answer."""
    truth = in_outputs(events)
    live, file = EventStore(), TraceFile(path)
    sieves = {expression: TokenFilter(parse(expression), Measures(live.state, live)) for expression in FILTERS}
    for part in (events[: len(events) // 2], events[len(events) // 2 :]):
        live.feed(part)
        for sieve in sieves.values():
            while sieve.filter_more():
                pass
    file.load(math.inf)
    assert same(in_the_inspector(live), truth)
    assert same(in_the_inspector(file), truth)
    assert phases(live) == phases(file)
    assert counts(events) == by_label(truth) == csv_rows(events)
    tokens, states = token_lines(events), endings(events)
    for expression in FILTERS:
        chosen = parse(expression)
        measures = Measures(file.state, file)
        rows = [row for row in range(len(file.state.tokens)) if chosen.token(TokenFacts(measures, row))]
        assert sieves[expression].rows(len(live.state.tokens)).tolist() == rows, expression
        if expression.startswith("state:"):
            assert rows == [row for row, state in enumerate(states) if f"state:{state}" in expression], expression
        shown, plain = list(filtered(events, path, expression)), list[str]()
        with load_selection(path, chosen) as selection:
            printer = PlainLines(plain.append, selection=selection)
            printer.feed(events)
        assert plain == shown, expression
        told_live: list[str] = []
        printer = PlainLines(told_live.append, chosen)
        parts = [events] if expression in OF_THE_MOMENT else [(event,) for event in events]
        for some in parts:
            printer.feed(some)
        printer.finish()
        assert sorted(told_live) == sorted(shown), expression
        of_tokens = Counter(shown) & Counter(tokens)
        assert of_tokens == Counter(tokens[row] for row in rows), expression
    file.close()
    live.close()
    return truth


def filtered(events: Sequence[Event], path: Path, expression: str) -> Iterator[str]:
    """What `trace show --filter` prints."""
    answers = Answers(stream_of)
    with load_selection(path, parse(expression)) as selection:
        assert selection is not None
        for event in events:
            yield from describe(event, answers, selection.passes)


def transcript(events: Sequence[Event]) -> dict[str, int]:
    """Tokens by label as conformance cases find them."""
    from lmtool.protocol.lmtp.frames import stream_key, stream_name

    seen, ids = Transcript(), dict[tuple[int, object], object]()
    for event in events:
        if isinstance(event, Frame):
            message = Message.of(event.time, str(event.connection), event.direction, event.wire())
            seen.add(message)
            for entry in message.entries:
                ids[event.connection, stream_key(entry.get("stream_id"))] = entry.get("stream_id")
    found = {}
    for (connection, key), of in ids.items():
        number = len(seen.tokens(of, str(connection)))
        if number:
            found[f"{connection}/{stream_name(key)}"] = number  # type: ignore[arg-type] # a key
    return found


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_every_recording(path: Path) -> None:
    """`trace show`, stats, CSV, diff, filters in three places, the inspector live and from the file, conformance."""
    events = [event for _, event in TraceReader(path).with_offsets(whole=True)]
    truth = hold_together(events, path)
    with_text = Counter[str]()  # text without a token is no token of a conformance case
    for (label, _), of in truth.items():
        with_text[label] += sum(isinstance(token, int) for token, _ in of)
    assert transcript(events) == {label: number for label, number in with_text.items() if number}
    found = exchanges(events)
    entries = [e for one in found if isinstance(one, LmtpExchange) for reply in one.replies for e in reply.entries]
    of_requests = sum(len(of) for (label, _), of in truth.items() if announced(events, label))
    assert sum("token" in entry for entry in entries) <= of_requests
    findings = [finding for one in compare(found, found, "numbers", Tolerance(0.0, 0.0)) for finding in one.findings]
    assert not [finding for finding in findings if finding.level in ("ids", "numbers") and finding.verdict == "fail"]


AN_ID_CHANGES_HANDS: list[Event] = [
    generate(0.0, 1),
    generate(0.1, 1),
    tokens(0.2, token(5, 1), token(7, 1) | {"finish_reason": "stop"}, token(5, 1)),
    tokens(0.3, token(7, 1)),
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(AN_ID_CHANGES_HANDS)
@given(talk)
def test_every_conversation_over_lmtp(events: list[Event]) -> None:
    """Ids used again and while they run, refusals, odd entries, several tokens a frame, connections that end."""
    with tempfile.TemporaryDirectory() as folder:
        hold_together(events, written_to(Path(folder), events))


def written_to(folder: Path, events: Sequence[Event]) -> Path:
    """A trace of these events."""
    writer = TraceWriter(folder / "a.lmtp.jsonl", Header())
    for event in events:
        writer.write(event)
    writer.close(max([1.0, *(event.time for event in events)]))
    return writer.path


def announced(events: Sequence[Event], label: str) -> bool:
    """Whether the trace has the request of a stream."""
    answers = Answers(stream_of)
    steps = [step for event in events for step in answers.follow(event)]
    return any(step.stream.label == label and step.stream.has_request for step in steps)


def recorded(answer: Written, cuts: list[int], *, in_pieces: bool = False) -> list[Event]:
    """An answer as a proxy records it, its body in chunks of any size. in_pieces: each an event, as of a large body."""
    payload = {"model": "m", "prompt": "Once", "n": len(answer.choices), "stream": answer.streamed}
    head = Head(b"", ("HTTP/1.1", "200", "OK"), (("content-type", CONTENT_TYPES[answer.form]),))
    recorder = ResponseRecorder(head, 1, "py")
    events: list[Event] = [
        Open(0.0, 1),
        Request(0.1, 1, "POST", answer.path, {}, JsonText("", payload, "py")),
        Response(0.2, 1, 200, "OK", {"content-type": CONTENT_TYPES[answer.form]}),
    ]
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(answer.body)], strict=True)):
        time, data = 0.3 + number / 100, answer.body[start:end]
        events += [Piece(time, "body", 1, data)] if in_pieces else recorder.add(time, data)
    return [*events, *recorder.finish(1.0)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(written(), st.data())
def test_every_answer_over_http(answer: Written, data: st.DataObject) -> None:
    """Any API, whole or streamed, cut anywhere, of several choices, with several tokens a chunk, and with U+2028."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer.body)), max_size=4)))
    as_one = recorded(answer, cuts)
    halves = [] if answer.streamed else recorded(answer, [len(answer.body) // 2], in_pieces=True)
    for events in filter(None, (as_one, halves)):
        hold_answer_together(answer, events)


def hold_answer_together(answer: Written, events: Sequence[Event]) -> None:
    """Every reader of a recorded answer, held to what was written."""
    with tempfile.TemporaryDirectory() as folder:
        path = written_to(Path(folder), events)
        truth = hold_together(events, path)
        shown = {(f"1/1{f'.{n}' if n else ''}", 0): answer.shown(n) for n in range(len(answer.choices))}
        texts = {name: [(as_shown(piece), p) for piece, p in of] for name, of in shown.items()}
        assert same(truth, texts)
        with_alternatives(path, answer)
        findings = [
            f for one in compare(*[exchanges(events)] * 2, "numbers", Tolerance(0.0, 0.0)) for f in one.findings
        ]
        assert findings == []


def as_shown(piece: str | bytes) -> str:
    """A token's text for people."""
    return f"⟨{piece.hex(' ')}⟩" if isinstance(piece, bytes) else piece


def with_alternatives(path: Path, answer: Written) -> None:
    """Each token that was named has its alternatives, read again from the file; pieces of text have none."""
    file = TraceFile(path)
    file.load(math.inf)
    measures = Measures(file.state, file)
    for row in range(len(file.state.tokens)):
        expected = ((measures.name(row), LOGPROB), OTHER) if answer.logprobs else ()
        assert measures.alternatives(row) == expected
        assert measures.rank(row) == (Rank(1) if answer.logprobs else None)
    file.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(written(apis=["completions"]).filter(lambda answer: answer.streamed), st.integers(1, 40))
def test_a_load_test_counts_the_same(answer: Written, size: int) -> None:
    """`bench serve` stamps each token, or piece of text, however the network cuts the bytes."""
    record = asyncio.run(measured(answer.body, size))
    assert record.error is None
    events = recorded(answer, [])
    outputs = [
        o for a in [Answers(stream_of)] for event in events for o in a.follow(event) if isinstance(o, OutputEvent)
    ]
    assert len(record.stamps) == record.tokens == sum(output.counts for output in outputs)


async def measured(body: bytes, size: int) -> Any:
    """What a load test makes of a server that sends these bytes, so many at a time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        for start in range(0, len(body), size):
            writer.write(body[start : start + size])
            await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    target = OpenAITarget(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", "m")
    try:
        return await target.send(Job((1, 2), 6))
    finally:
        await target.close()
        server.close()
        await server.wait_closed()


def test_recordings_are_there() -> None:
    """The test above has something to hold together."""
    assert len(RECORDINGS) > 50
    assert any(path.suffix == ".gz" for path in RECORDINGS)
