"""Events on their way into a trace: redacted, explained, large values kept once."""

from __future__ import annotations

import asyncio
import json
import random
import resource
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.sync.client import connect

from lmtool.core.errors import FileError, ResourceError
from lmtool.net.access.credentials import key_protocol
from lmtool.settings.terminal import Output
from lmtool.trace.codec import Header
from lmtool.trace.events import Blob, Close, Drop, Event, Frame, JsonText, Open, Remark, Request, Vocab
from lmtool.trace.reader import TraceReader
from lmtool.trace.recorder import Recorder, Recording, TokenBytes, TokenSpelling, record_session
from lmtool.trace.redaction import RedactedPart, Redaction
from lmtool.trace.statistics import TraceFigures
from lmtool.trace.writer import TraceWriter
from tests.conftest import STORIES
from tests.net.access.knocking import KEY
from tests.trace.conftest import generate, token, tokens

WORDS = {5: b"Hel", 6: b"lo", 7: b"!", 11: b" there", 12: b"\xf0\x9f"}


def record(
    tmp_path: Path,
    *events: Event,
    what: tuple[RedactedPart, ...] = (),
    spell: TokenBytes | None = WORDS.__getitem__,
    times: bool = True,
) -> list[Event]:
    """What a trace holds after these events."""
    writer = TraceWriter(tmp_path / "a", Header(times="measured" if times else "numbered"), overwrite=True)
    recorder = Recorder(writer, Redaction(what, b"salt"), spell)
    recorder.record(events)
    recorder.close(99)
    assert recorder.counts[0] == writer.events
    return list(TraceReader(tmp_path / "a"))[:-1]


def test_ids_are_explained_on_first_sight(tmp_path: Path) -> None:
    """The vocabulary stands before the event that shows new ids; bytes inside a character are bytes."""
    found = record(tmp_path, generate(1), tokens(2, token(11, top_logprobs={"11": -1, "12": -2})), tokens(3, token(11)))
    assert [type(event) for event in found] == [Vocab, Frame, Vocab, Frame, Frame]
    assert found[0] == Vocab(1, 0, {5: "Hel", 6: "lo", 7: "!"})
    assert found[2] == Vocab(2, 0, {11: " there", 12: b"\xf0\x9f"})


class Named:
    """A tokenizer with a special token."""

    def piece(self, token: int) -> bytes:
        return b"" if token == 12 else b"x"

    def token(self, token: int) -> str:
        return "<|im_end|>" if token == 12 else "Gx"


def test_special_tokens_have_names(tmp_path: Path) -> None:
    """What adds no text is explained by its name; a part of a trace keeps it, and prompts that are redacted do not."""
    found = record(tmp_path, generate(1), tokens(2, token(11, top_logprobs={"12": -2})), spell=TokenSpelling(Named()))
    assert found[2] == Vocab(2, 0, {11: "x", 12: ""}, {12: "<|im_end|>"})
    hidden = record(tmp_path, generate(1, prompt=[12]), what=("prompt",), spell=TokenSpelling(Named()))
    assert not any(isinstance(event, Vocab) for event in hidden)


def test_without_a_tokenizer_nothing_is_explained(tmp_path: Path) -> None:
    """No vocabulary where nobody knows it."""
    assert record(tmp_path, generate(1), spell=None) == [generate(1)]


def test_redacted_prompts_are_not_explained(tmp_path: Path) -> None:
    """An id of a prompt is explained once an output shows it, not before."""
    found = record(tmp_path, generate(1), tokens(2, token(6)), what=("prompt",))
    assert found[1:] == [Vocab(2, 0, {6: "lo"}), tokens(2, token(6))]
    (hidden,) = record(tmp_path, tokens(2, token(6)), what=("text",))
    assert isinstance(hidden, Frame)
    assert hidden.parse().value == [
        {"token": None, "stream_id": 1, "logprob": None, "finish_reason": None, "text": "***"}
    ]


def test_large_values_are_kept_once(tmp_path: Path) -> None:
    """A mask is written as a blob, and only referred to when it comes again; the frames come back byte for byte."""
    mask = {str(i): -100 for i in range(3000)}
    frames = [generate(i, i, logit_bias=mask) for i in (1, 2)]
    found = record(tmp_path, *frames, spell=None)
    assert [type(event) for event in found] == [Blob, Frame, Frame]
    whole = [e for _, e in TraceReader(tmp_path / "a").with_offsets(whole=True) if isinstance(e, Frame)]
    assert [frame.wire() for frame in whole] == [frame.wire() for frame in frames]


def test_numbered_times(tmp_path: Path) -> None:
    """Every event, vocabularies too, has its number / 1000."""
    found = record(tmp_path, Open(7, 1), generate(8), times=False)
    assert [event.time for event in found] == [0, 0.001, 0.002]


def test_keys_are_counted(tmp_path: Path) -> None:
    """What looks like a key in a client's request is remembered, with its middle left out."""
    key = "sk-" + "a1" * 20
    recorder = Recorder(TraceWriter(tmp_path / "a", Header()), Redaction((), b""))
    recorder.record([Request(0, 1, "POST", "/", {}, JsonText("", {"x": key}, "py")), generate(1)])
    recorder.abandon()
    assert list(recorder.suspects.values()) == [1]
    assert key not in recorder.suspects


def test_more_than_memory_should_hold_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the disk is counted; a flush takes it away."""
    monkeypatch.setattr("lmtool.trace.recorder.MAX_WAITING", 100)
    recorder = Recorder(TraceWriter(tmp_path / "a", Header()), Redaction((), b""))
    recorder.record([generate(i) for i in range(5)])
    assert recorder.overrun
    recorder.flush()
    assert not recorder.overrun
    recorder.abandon()


def recording(folder: Path, warnings: list[str], *, split: bool = False) -> Recording:
    """A recording into `folder`."""

    def start(number: int) -> Recorder:
        return Recorder(TraceWriter(folder / f"{number}", Header()), Redaction((), b""))

    return Recording(start, warnings.append, lambda: 9.0, split=split)


async def until_written(path: Path, text: str) -> None:
    """Wait for the background flush."""
    async with asyncio.timeout(30):
        while text not in path.read_text():
            await asyncio.sleep(0.005)


async def test_events_reach_the_disk_by_themselves(tmp_path: Path) -> None:
    """Without anything more happening, what was told is on the disk soon: a kill loses nothing older."""
    running = recording(tmp_path, [])
    running.record(1, [Remark(1, "mark", 0, "here")])
    await until_written(tmp_path / "0", "here")
    assert list(TraceReader(tmp_path / "0")) == [Remark(1, "mark", 0, "here")]
    await running.close()
    reader = TraceReader(tmp_path / "0")
    assert len(list(reader)) == 2
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    assert running.counts == (1, 1, 0)


async def test_one_trace_a_connection(tmp_path: Path) -> None:
    """Split: each connection's events are in a trace of their own, begun with its first event."""
    running = recording(tmp_path, [], split=True)
    running.record(3, [])
    running.record(1, [generate(1)])
    running.record(2, [generate(1, connection=2)])
    await running.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert running.counts[:2] == (2, 2)
    assert not running.suspects


async def test_a_trace_in_which_nothing_happened(tmp_path: Path) -> None:
    """It leaves no file, so that the same name may be given again."""
    for _ in range(2):
        running = recording(tmp_path, [])
        assert (tmp_path / "0").exists()
        await running.close()
        assert not (tmp_path / "0").exists()


async def test_a_process_that_ends_at_once(tmp_path: Path) -> None:
    """What was told is whole on the disk, and an empty trace is not there."""
    running = recording(tmp_path, [], split=True)
    running.record(1, [generate(1)])
    running.record(2, [])
    running.close_at_once()
    reader = TraceReader(tmp_path / "1")
    assert next(iter(reader)) == generate(1)
    assert len(list(TraceReader(tmp_path / "1"))) == 2
    await running.close()
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


async def test_a_full_disk_ends_the_recording_and_nothing_else(tmp_path: Path) -> None:
    """One loud line; events go on being taken from whoever follows; what was written before can be read."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    running.record(1, [generate(1)])
    await until_written(tmp_path / "0", "GENERATE")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "0").stat().st_size, limit[1]))
    try:
        running.record(1, [generate(2)])
        async with asyncio.timeout(30):
            while not running.failed:
                await asyncio.sleep(0.005)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    seen: list[Event] = []
    running.record(1, (seen.append(event) or event for event in [generate(3)]))  # type: ignore[func-returns-value]
    await running.close()
    assert seen == [generate(3)]
    assert len(warnings) == 1
    assert "RECORDING STOPPED: File too large" in warnings[0]
    assert next(iter(TraceReader(tmp_path / "0"))) == generate(1)


async def test_a_trace_that_cannot_be_begun_ends_the_recording(tmp_path: Path) -> None:
    """A second connection's file that exists already is not overwritten: told once, and everything goes on."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings, split=True)
    (tmp_path / "2").write_text("mine")
    running.record(1, [generate(1)])
    running.record(2, [generate(1, connection=2)])
    await running.close()
    assert "exists already" in warnings[0]
    assert (tmp_path / "2").read_text() == "mine"
    assert len(warnings) == 1


async def test_a_mistake_of_ours_cuts_nothing(tmp_path: Path) -> None:
    """An event that cannot be written ends the recording, loudly; whoever tells of events never sees an error."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    running.record(1, [generate(1), Remark(2, "note", 0, "\ud800"), generate(3)])
    await running.close()
    assert "RECORDING STOPPED: lmtool failed (UnicodeEncodeError" in warnings[0]
    assert len(warnings) == 1


async def test_a_slow_disk_ends_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More waiting than memory should hold: given up, loudly."""
    warnings: list[str] = []
    running = recording(tmp_path, warnings)
    monkeypatch.setattr("lmtool.trace.recorder.MAX_WAITING", -1)
    async with asyncio.timeout(30):
        while not running.failed:
            await asyncio.sleep(0.005)
    await running.close()
    assert "too slow" in warnings[0]


def test_the_first_trace_must_be_possible(tmp_path: Path) -> None:
    """A recording that cannot even begin says so to whoever starts it."""

    async def begin() -> None:
        recording(tmp_path / "none", [])

    with pytest.raises(FileError, match="cannot write"):
        asyncio.run(begin())


async def test_a_trace_is_complete_when_its_connection_is_over(tmp_path: Path) -> None:
    """Split: its file is closed then, so that a server of many connections holds few files; late events are dropped."""
    running = recording(tmp_path, [], split=True)
    for number in (1, 2):
        running.record(number, [generate(1, connection=number), Close(2, number, "client")])
    await until_written(tmp_path / "1", '"end"')
    await until_written(tmp_path / "2", '"end"')
    running.record(1, [generate(3)])
    running.record(3, [generate(1, connection=3)])
    assert running.counts == (3, 5, 0)
    await running.close()
    assert running.counts == (3, 5, 0)
    assert not running.failed
    assert len(list(TraceReader(tmp_path / "1"))) == 3


def test_events_that_name_no_ids(tmp_path: Path) -> None:
    """Nothing is explained for texts in place of ids, nor for a frame that cannot be read."""
    some = [
        Open(0, 1),
        Frame(1, ">", 1, JsonText("GENERATE", {"prompt": "Hi"}, "py")),
        Frame(2, "<", 1, "TOKEN nonsense"),
    ]
    assert record(tmp_path, *some) == some


def events_of(path: Path) -> list[Event]:
    """The events of a complete trace."""
    reader = TraceReader(path)
    events = list(reader)
    assert reader.ending is not None
    assert reader.ending.state == "complete"
    return events


async def test_a_file(tmp_path: Path) -> None:
    """One file for everything, which must not be there yet."""
    path = tmp_path / "a.lmtp.jsonl"
    out = Output.of(quiet=True)
    async with record_session(out, str(path), "client", Header()) as tap:
        tap.opened(1, "x")
        tap.frame(1, ">", 'SCORE {"stream_id":1}')
        tap.ended(1, "client", 1000)
    assert [type(event) for event in events_of(path)][:3] == [Open, Frame, Close]
    assert TraceReader(path).header.at == "client"
    with pytest.raises(FileError, match="exists already") as refused:
        async with record_session(out, str(path), "client", Header()):
            pass
    assert "--force" not in str(refused.value.hints)


async def record_much(path: str) -> None:
    """Some ten thousand bytes that do not pack."""
    async with record_session(Output.of(), path, "client", Header()) as tap:
        tap.opened(1, "x")
        for number in range(200):
            tap.frame(1, ">", f'SCORE {{"stream_id":"{random.Random(number).randbytes(50).hex()}"}}')


@pytest.mark.parametrize("name", ["a.lmtp.jsonl", "a.lmtp.jsonl.gz", "folder/"])
async def test_a_full_disk_is_told_at_the_end(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The recording says that it is cut, with the status for it, and counts nothing that is not there."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, limit[1]))
    try:
        with pytest.raises(ResourceError, match=f"the recording {tmp_path}/{name} is cut: File too large"):
            await record_much(f"{tmp_path}/{name}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    said = capsys.readouterr().err
    assert "RECORDING STOPPED: File too large" in said
    assert "recorded into" not in said
    assert ResourceError.exit_code == 8


async def test_a_folder(tmp_path: Path) -> None:
    """In a folder each connection has a file of its own."""
    folder = tmp_path / "traces"
    async with record_session(Output.of(quiet=True), f"{folder}/", "server", Header()) as tap:
        for number in (1, 2):
            tap.opened(number, "")
            tap.ended(number, "client", 1006)
    files = sorted(folder.iterdir())
    assert [file.name[-15:] for file in files] == ["0001.lmtp.jsonl", "0002.lmtp.jsonl"]
    assert isinstance(events_of(files[1])[1], Drop)


def test_serve_and_chat_record(start_server, lmtool, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A server keeps what every client said and how each left; a client keeps its own side; both agree."""
    server_side, client_side = tmp_path / "server.lmtp.jsonl", tmp_path / "client.lmtp.jsonl"
    with start_server(str(STORIES), "--record", str(server_side)) as server:
        server.expect("ready in")
        done = lmtool("-e", server.url, "chat", "Once", "-n", "4", "--record", str(client_side))
        assert done.returncode == 0, done.stderr
        with connect(server.url, compression=None) as client:
            client.send(f"GENERATE {json.dumps({'prompt': [1, 403], 'stream_id': 7, 'max_tokens': 1})}")
            assert "TOKEN" in str(client.recv())
        server.interrupt()
        assert server.wait() == 0
    ours, theirs = events_of(client_side), events_of(server_side)
    said = [event.wire() for event in ours if isinstance(event, Frame)]
    assert said == [event.wire() for event in theirs if isinstance(event, Frame) and event.connection == 1]
    assert {event.connection for event in theirs if isinstance(event, Close)} == {1, 2}
    assert any(isinstance(event, Vocab) for event in theirs)
    header = TraceReader(server_side).header
    assert (header.at, header.model["name"]) == ("server", "stories260K")


MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
ASKED: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"messages": MESSAGES, "n": 2, "logprobs": True, "top_logprobs": 2},
    "/v1/completions": {"prompt": "Once", "logprobs": 2},
    "/v1/responses": {"input": "Once", "include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "/v1/messages": {"messages": MESSAGES},
    "/messages": {"messages": MESSAGES},
}


@pytest.mark.parametrize("folder", [False, True])
def test_serve_records_http_too(start_server, tmp_path: Path, folder: bool) -> None:  # type: ignore[no-untyped-def]
    """Every API, whole and streamed, beside LMTP: the same tokens as the clients got.

    No key on any way that it may come, nothing that the door refuses, no probes.
    """
    place = tmp_path / ("traces" if folder else "a.lmtp.jsonl")
    key = {"authorization": f"Bearer {KEY}", "x-api-key": KEY, "cookie": f"key={KEY}", "x-token": KEY}
    with start_server("--api-key", KEY, "--record", f"{place}/" if folder else str(place)) as server:
        server.expect("ready in")
        url = server.url.replace("ws://", "http://").rstrip("/")
        assert httpx2.post(f"{url}/v1/completions", json={"prompt": "refused"}).status_code == 401
        for path, body in ASKED.items():
            most = "max_output_tokens" if "responses" in path else "max_tokens"
            for stream in (False, True):
                asked = {**body, most: 16, "temperature": 0, "stream": stream}
                answer = httpx2.post(f"{url}{path}?key={KEY}", json=asked, headers=key, timeout=60)
                assert answer.status_code == 200, answer.text
        assert httpx2.get(f"{url}/health").status_code == 200
        assert httpx2.get(f"{url}/metrics", headers=key).status_code == 200
        refused = httpx2.post(f"{url}/v1/completions", json={"prompt": "x", "max_tokens": -1}, headers=key)
        assert refused.status_code == 400
        protocol: Any = key_protocol(KEY)
        with connect(server.url, compression=None, subprotocols=["lmtp", protocol]) as client:
            client.send(f"MODEL_INFO {json.dumps({'stream_id': 7})}")
            client.recv()
        server.interrupt()
        assert server.wait() == 0
    files = sorted(place.iterdir()) if folder else [place]
    assert len(files) == (2 * len(ASKED) + 2 if folder else 1)
    written = "".join(file.read_text() for file in files)
    assert not any(secret in written for secret in (KEY, protocol, "refused"))
    assert {TraceReader(file).header.redacted for file in files} == {("headers",)}
    figures = []
    for file in files:
        counted = TraceFigures()
        for event in events_of(file):
            counted.add(event)
        figures += counted.streams
    of_http = [one for one in figures if one.request.startswith("POST")]
    assert [one.request.split()[1] for one in of_http if not one.choice] == [
        *[path for path in ASKED for _ in (False, True)], "/v1/completions",
    ]  # fmt: skip
    named = [one for one in of_http if "messages" not in one.request and one.error is None]
    assert len(named) == 8  # two choices of each chat completion
    assert all((one.pieces, one.with_logprob) == (0, one.tokens) for one in named)
    assert {one.tokens for one in named if "/v1/completions" in one.request} == {16}
    pieces = [one for one in of_http if "messages" in one.request]
    assert all(one.tokens == one.pieces > 0 for one in pieces)
    assert [one.error is not None for one in of_http] == [False] * (len(of_http) - 1) + [True]
