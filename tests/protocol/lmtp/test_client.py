"""The client against a real server, and against servers that misbehave."""

import asyncio
import contextlib
import itertools
import json
import re
import socket
import sys

import pytest
from websockets.asyncio.server import serve

from lmtool.core.errors import AccessDeniedError, ConnectError, RemoteProtocolError, TimeLimitError, UsageError
from lmtool.core.interfaces import QueuePlace, place_of
from lmtool.core.model_entry import ModelEntry
from lmtool.core.resuming import ResumeOptions, Resuming
from lmtool.core.streams import stream
from lmtool.core.types import (
    ChatMessage,
    ChatPrompt,
    Constraint,
    GenerateRequest,
    LoadProgress,
    SamplingParams,
    ScoreRequest,
    TokenOutput,
    Usage,
)
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.messages import SystemMessage
from tests.protocol.lmtp.harness import PATIENCE, serving, until
from tests.scripted_model import ScriptedModel, logprob_of, tokens_of

STDIO = f"stdio:{sys.executable} -m tests.protocol.lmtp.stdio_server"


async def outputs(client, request):
    async with asyncio.timeout(PATIENCE):
        return [output async for output in stream(client, request)]


def tokens(found):
    return [output.token for output in found]


@contextlib.asynccontextmanager
async def peer(answer):
    """A server of ours that answers each frame with the frames that `answer` returns; None cuts the connection."""
    received = []

    async def handler(connection):
        async for frame in connection:
            received.append(frame)
            for reply in answer(frame):
                if reply is None:
                    connection.transport.abort()
                    return
                await connection.send(reply)

    async with serve(handler, "127.0.0.1", 0) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/", received


class TestStreams:
    async def test_generate(self):
        """Outputs are what the model produced, under the caller's own id."""
        async with serving(ScriptedModel()) as served, LmtpClient(served.url) as client:
            found = await outputs(
                client, GenerateRequest(("any", 1), (5,), SamplingParams(max_tokens=3, top_logprobs=2))
            )
        assert tokens(found) == tokens_of((5,), 3)
        first = found[0]
        assert first.stream_id == ("any", 1)
        assert first.top_logprobs == ((first.token, logprob_of(first.token)), ((first.token + 1) % 1000, -3.0))
        assert [output.finish_reason for output in found] == [None, None, "length"]

    async def test_score(self):
        """SCORE gives one output a scored id."""
        async with serving(ScriptedModel()) as served, LmtpClient(served.url) as client:
            found = await outputs(client, ScoreRequest(0, (5,), (6, 7)))
            empty = await outputs(client, ScoreRequest(0, (5,), ()))
        assert [(o.token, o.logprob, o.top_logprobs) for o in found] == [
            (6, logprob_of(6), None),
            (7, logprob_of(7), None),
        ]
        assert empty == [TokenOutput(0, finish_reason="stop", usage=Usage(1, 0))]

    async def test_it_knows_whether_it_is_connected(self):
        """From the opening to the loss."""
        async with serving(ScriptedModel()) as served:
            client = LmtpClient(served.url)
            assert not client.connected
            await client.open()
            assert client.connected
        with pytest.raises(ConnectError):
            await client.info()
        assert not client.connected
        await client.close()

    async def test_text_and_messages(self):
        """Text goes and comes, and with it usage."""
        async with serving(ScriptedModel()) as served, LmtpClient(served.url) as client:
            text = await outputs(client, GenerateRequest(0, "hi", SamplingParams(max_tokens=2), text=True))
            chat = await outputs(
                client,
                GenerateRequest(0, ChatPrompt((ChatMessage("user", "hi"),)), SamplingParams(max_tokens=2), text=True),
            )
        assert [output.text for output in text] == [chr(97 + token % 26) for token in tokens_of("hi", 2)]
        assert text[-1].usage == Usage(2, 2)
        assert chat == text

    async def test_errors_end_their_stream(self):
        """A request that cannot be served ends with an error; the connection goes on."""
        async with serving(ScriptedModel()) as served, LmtpClient(served.url) as client:
            (bad,) = await outputs(client, GenerateRequest(0, (5000,), SamplingParams(seed=1)))
            assert "5000" in bad.error
            assert bad.error_code == "unknown_token"
            (unknown,) = await outputs(client, GenerateRequest(0, (1,), model="other"))
            assert unknown.error_code == "unknown_model"
            (unwritable,) = await outputs(client, GenerateRequest(0, (1,), SamplingParams(temperature=float("nan"))))
            assert unwritable.error_code == "usage"
            assert len(await outputs(client, GenerateRequest(0, (1,)))) == 32

    async def test_64_streams(self):
        """64 streams on one connection keep apart, also when they share an id and a sink."""
        async with serving(ScriptedModel()) as served, LmtpClient(served.url) as client:
            requests = [GenerateRequest(0, (number,), SamplingParams(max_tokens=number + 1)) for number in range(64)]
            found = await asyncio.gather(*(outputs(client, request) for request in requests))
        assert [tokens(each) for each in found] == [tokens_of((number,), number + 1) for number in range(64)]

    async def test_one_sink_gets_a_step_at_once(self):
        """A sink is called once a frame, with the tokens of all its streams."""
        model = ScriptedModel(manual=True)
        calls = asyncio.Queue()
        async with serving(model) as served, LmtpClient(served.url) as client:
            for number in range(3):
                client.submit(GenerateRequest(number, (number,)), calls.put_nowait)
            await client.info()
            model.step()
            async with asyncio.timeout(PATIENCE):
                assert [output.stream_id for output in await calls.get()] == [0, 1, 2]

    async def test_cancel(self):
        """A cancelled stream ends here at once and at the server too; what was under way is dropped."""
        model = ScriptedModel(manual=True)
        calls = asyncio.Queue()
        async with serving(model) as served, LmtpClient(served.url) as client:
            handle = client.submit(GenerateRequest("x", (1,), model="scripted"), calls.put_nowait)
            await client.info()
            model.step()
            handle.cancel()
            handle.cancel()
            async with asyncio.timeout(PATIENCE):
                assert await calls.get() == [TokenOutput("x", finish_reason="cancelled")]
            await until(lambda: model.cancelled, client.info)
            model.step()
            await client.info()
            assert calls.empty()
            handle.cancel()

    async def test_pause(self):
        """A paused stream's outputs are kept, in order, and its neighbour goes on."""
        got: dict[str, list[int]] = {"slow": [], "fast": []}
        done = asyncio.Event()

        def sink(name):
            def take(found):
                got[name] += tokens(found)
                if found[-1].last:
                    done.set()

            return take

        model = ScriptedModel(manual=True)
        async with serving(model) as served, LmtpClient(served.url) as client:
            slow = client.submit(GenerateRequest(1, (1,), SamplingParams(max_tokens=10)), sink("slow"))
            client.submit(GenerateRequest(2, (2,), SamplingParams(max_tokens=8)), sink("fast"))
            slow.pause()
            await client.info()
            for _ in range(8):
                model.step()
            async with asyncio.timeout(PATIENCE):
                await done.wait()
                done.clear()
                assert got == {"slow": [], "fast": tokens_of((2,), 8)}
                slow.resume()
                model.step()
                model.step()
                await done.wait()
        assert got["slow"] == tokens_of((1,), 10)

    async def test_cancel_while_paused(self):
        """What was kept for a paused stream is dropped when it is cancelled."""
        calls = asyncio.Queue()
        async with serving(ScriptedModel()) as served, LmtpClient(served.url) as client:
            handle = client.submit(GenerateRequest(1, (1,)), calls.put_nowait)
            handle.pause()
            await client.info()
            await until(lambda: len(served.logged) > 1, client.info)
            handle.cancel()
            handle.resume()
            async with asyncio.timeout(PATIENCE):
                assert await calls.get() == [TokenOutput(1, finish_reason="cancelled")]
            await client.info()
            assert calls.empty()


class TestInfo:
    async def test_info(self):
        """The server tells what it serves."""
        async with serving(ScriptedModel()) as served, LmtpClient(served.url) as client:
            info = await client.info("scripted")
            raw = await client.model_info()
        assert (info.model, info.vocab_size, info.eos_token_ids) == ("scripted", 1000, (999,))
        assert raw["lmtp"] == 1

    async def test_time_limit(self):
        """An answer that does not come in time is an error of its own, and harmless when it comes later."""
        model = ScriptedModel()
        model.loaded.clear()
        async with serving(model) as served, LmtpClient(served.url) as client:
            with pytest.raises(TimeLimitError, match=r"0\.01 s"):
                await client.info(timeout=0.01)
            model.loaded.set()
            assert (await client.info()).model == "scripted"

    async def test_unavailable_is_asked_again(self):
        """LMQL's server says `<unavailable>` while it loads: the client asks until it says more."""
        told = iter(['"<unavailable>"', '"<unavailable>"', '{"model": "m", "constructor": "c"}'])

        def answer(frame):
            stream_id = json.loads(frame.partition(" ")[2])["stream_id"]
            return [f'MSG [{{"stream_id": {stream_id}, "model_info": {next(told)}}}]']

        async with peer(answer) as (url, received), LmtpClient(url) as client:
            assert (await client.info("m")).constructor == "c"
            assert len(received) == 3

    async def test_progress_and_ignored(self):
        """Whoever wants to know is told how a load proceeds."""

        class Loading:
            def subscribe(self, model, listener):
                for phase in ("loading", "ready"):
                    listener(LoadProgress("m", phase))
                return lambda: None

        told = []
        async with (
            serving(ScriptedModel(), progress=Loading()) as served,
            LmtpClient(served.url, on_progress=told.append) as client,
        ):
            await client.info()
            await outputs(client, GenerateRequest(0, (1,)))
        assert [progress.phase for progress in told] == ["loading", "ready", "loading", "ready"]

    async def test_what_holds_a_stream_up(self):
        """Whoever wants to know is told; the handle has the place, for who serves others with it."""

        def answer(frame):
            own = {"stream_id": json.loads(frame.partition(" ")[2])["stream_id"]}
            if frame.startswith("MODEL_INFO"):
                return [f"MSG {json.dumps([{**own, 'model_info': {'lmtp': 1}}])}"]
            said = [{"kind": "queued", "message": "place 2", "place": 2, "seconds": 1.5}, {"kind": "unheard of"}, 5]
            return [f"MSG {json.dumps([{**own, 'system': one} for one in said])}"]

        told = []
        async with peer(answer) as (url, received), LmtpClient(url, on_system=told.append, extended=True) as client:
            handle = client.submit(GenerateRequest(0, (1,)), lambda _outputs: None)
            await until(lambda: told)
            assert told == [SystemMessage("queued", "place 2", 2, 1.5)]
            assert place_of(handle) == QueuePlace(2, 1.5)
            assert json.loads(received[0].partition(" ")[2])["progress"] is True


class TestFrames:
    async def test_on_frame(self):
        """Every frame is shown as it is sent and received."""
        frames = []
        async with (
            serving(ScriptedModel()) as served,
            LmtpClient(served.url, on_frame=lambda *frame: frames.append(frame)) as client,
        ):
            await outputs(client, GenerateRequest(0, (1,), SamplingParams(max_tokens=1)))
        assert [direction for direction, _ in frames] == [">", "<"]
        assert frames[0][1] == 'GENERATE {"stream_id":1,"prompt":[1],"max_tokens":1}'
        assert frames[1][1].startswith("TOKEN [{")

    async def test_large_frames(self):
        """A mask over a large vocabulary goes out, and large answers come in."""
        bias = dict.fromkeys(range(200000), -100.0)
        async with serving(ScriptedModel()) as served, LmtpClient(served.url) as client:
            request = GenerateRequest(0, (1,), SamplingParams(max_tokens=2, logit_bias=bias, top_logprobs=256))
            found = await outputs(client, request)
        assert len(found[0].top_logprobs) == 256


class TestOpening:
    async def test_nobody_there(self):
        """A port where nobody listens is a connection error, at the opening and for each request."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with pytest.raises(ConnectError, match="connection refused"):
            await LmtpClient(f":{port}").open()
        client = LmtpClient(f":{port}")
        (lost,) = await outputs(client, GenerateRequest(0, (1,)))
        assert lost.error_code == "connection"
        with pytest.raises(ConnectError) as refused:
            await client.info()
        assert refused.value.hints == ()
        await client.close()

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            (b"HTTP/1.1 418 Teapot\r\nContent-Length: 4\r\n\r\ntea!", r"\(HTTP status 418: tea!\)"),
            (b"HTTP/1.1 404 No\r\nContent-Length: 6\r\n\r\n<html>", r"another HTTP server \(HTTP status 404\)$"),
            (b"HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n", r"LMTP server at ws://\S+ now \(HTTP status 502\)"),
            (
                b"HTTP/1.1 403 No\r\nContent-Length: 6\r\n\r\n<html>",
                r"does not let this client in \(HTTP status 403\)$",
            ),
            (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", r"asks for an API key"),
            (b"HTTP/1.1 400 No\r\nContent-Length: 5\r\n\r\nHTTPS", r"what listens at ws://\S+ speaks TLS"),
            (
                b"HTTP/1.1 301 No\r\nLocation: https://x.org/\r\nContent-Length: 0\r\n\r\n",
                r"redirects to https://x.org/",
            ),
            (
                b"220 smtp.example ESMTP\r\n",
                r"no LMTP server at ws://.* another protocol \(.*220 smtp.example ESMTP\)",
            ),
            (b"SSH-2.0-OpenSSH_9.6\r\n", r"speaks another protocol \(.*SSH-2.0-OpenSSH_9.6\)"),
            (b"\x15\x03\x01\x00\x02\x02\x16", r"closed the connection without an HTTP answer"),
        ],
    )
    async def test_somebody_else(self, answer, told):
        """What is there is named: another HTTP server, TLS, another protocol; a page is not quoted."""

        async def greet(reader, writer):
            await reader.readline()
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        async with server:
            with pytest.raises((ConnectError, AccessDeniedError)) as caught:
                await LmtpClient(f":{server.sockets[0].getsockname()[1]}").open()
        assert re.search(told, caught.value.message), caught.value.message

    @pytest.mark.parametrize(("path", "told"), [("v1", "path /v1 belongs to"), ("evergreen", "closed with code 4400")])
    async def test_another_path(self, path, told, served):
        """The paths of a server's other protocols are no LMTP: the error says where that is."""
        place = served.partition("://")[2].rstrip("/")
        with pytest.raises(ConnectError, match=told) as caught:
            async with LmtpClient(f"http://{place}/{path}") as client:
                await client.info()
        assert caught.value.hints == (f"LMTP is at /:  -e ws://{place}/",)

    async def test_silence(self):
        """A server that does not finish the handshake in time is an error of its own."""
        with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeLimitError):
            await LmtpClient(f":{silent.getsockname()[1]}", open_timeout=0.05).open()

    async def test_nonsense(self):
        """A malformed endpoint is refused before anything is opened."""
        with pytest.raises(UsageError):
            LmtpClient("gopher://x")

    async def test_closed(self):
        """A closed client starts nothing more."""
        async with serving(ScriptedModel()) as served:
            client = LmtpClient(served.url)
            await client.open()
            await client.close()
            (refused,) = await outputs(client, GenerateRequest(0, (1,)))
            assert "closed" in refused.error


class TestLoss:
    async def test_a_cut(self):
        """When the connection is cut, every stream and request ends with an error; the next request connects again."""

        def answer(frame):
            if '"stream_id":1,' in frame and "[7]" in frame:
                return ['TOKEN [{"token": 5, "stream_id": 1, "logprob": -1, "finish_reason": null}]']
            return [None] if "MODEL_INFO" in frame else ['TOKEN [{"stream_id": 1, "finish_reason": "stop"}]']

        async with peer(answer) as (url, received), LmtpClient(url) as client:
            streaming = asyncio.create_task(outputs(client, GenerateRequest("a", (7,))))
            await asyncio.sleep(0)
            with pytest.raises(ConnectError, match="lost"):
                await client.info("m")
            first, last = await streaming
            assert first.token == 5
            assert last.error_code == "connection"
            assert await outputs(client, GenerateRequest("b", (8,))) == [TokenOutput("b", finish_reason="stop")]
        assert len(received) == 3

    async def test_a_server_that_needs_a_name(self):
        """LMQL's server drops a connection whose request names no model: the error says what to do."""
        async with peer(lambda frame: [None]) as (url, _), LmtpClient(url) as client:
            with pytest.raises(ConnectError) as lost:
                await client.info()
        assert "name a model" in lost.value.hints[-1]

    async def test_a_broken_frame(self):
        """A frame that cannot be read ends the connection and everything on it."""
        async with peer(lambda frame: ["TOKEN ["]) as (url, _), LmtpClient(url) as client:
            (broken,) = await outputs(client, GenerateRequest(0, (1,)))
            assert broken.error_code == RemoteProtocolError.code

    async def test_closing(self):
        """Closing ends what runs, and leaves nothing behind."""
        model = ScriptedModel(manual=True)
        async with serving(model) as served:
            client = LmtpClient(served.url)
            await client.open()
            streaming = asyncio.create_task(outputs(client, GenerateRequest(0, (1,))))
            await client.info()
            await client.close()
            (closed,) = await streaming
            assert closed.error_code == "connection"
            assert served.server.connections <= 1


class TestStdio:
    async def test_a_command(self):
        """`stdio:COMMAND` starts a server for this client alone, and ends it."""
        async with LmtpClient(STDIO) as client:
            assert (await client.info()).model == "scripted"
            found = await outputs(client, GenerateRequest(0, (5,), SamplingParams(max_tokens=50)))
            assert tokens(found) == tokens_of((5,), 50)

    async def test_frames_end_where_their_text_ends(self):
        """The line feed belongs to the pipe, not to the frame."""
        frames: list[str] = []
        async with LmtpClient(STDIO, on_frame=lambda _, frame: frames.append(frame)) as client:
            await client.info()
        assert frames
        assert not [frame for frame in frames if frame.endswith("\n")]

    async def test_no_such_command(self):
        """A command that cannot be started is a connection error."""
        with pytest.raises(ConnectError, match="cannot start 'no-such-command'"):
            await LmtpClient("stdio:no-such-command").open()

    async def test_a_command_that_dies(self):
        """A server that dies is a lost connection, with its exit status."""
        command = f"stdio:{sys.executable} -c 'input(); raise SystemExit(3)'"
        async with LmtpClient(command) as client:
            (lost,) = await outputs(client, GenerateRequest(0, (1,)))
            assert lost.error_code == "connection"
            assert "exit status 3" in lost.error


class TestPlainServers:
    """LMQL's server, and those like it: nothing is sent that they do not know, and nothing is waited for in vain."""

    INFO = 'MSG [{"stream_id": 1, "model_info": {"model": "m"}}]'
    TOKEN = 'TOKEN [{"token": 7, "stream_id": 2, "logprob": -1.0, "finish_reason": "length"}]'

    def lmql(self, frame):
        """What LMQL's server would say to the first question and the first stream."""
        return [self.INFO] if frame.startswith("MODEL_INFO") else [self.TOKEN]

    @pytest.mark.parametrize(
        ("request_", "named"),
        [
            (GenerateRequest(0, (1,), SamplingParams(seed=1), model="m"), "seed"),
            (GenerateRequest(0, (1,), constraint=Constraint("choice", '["a"]'), model="m"), "constraint (choice)"),
            (GenerateRequest(0, (1,), SamplingParams(min_p=0.1, stop=("x",)), model="m"), "min_p, stop"),
            (GenerateRequest(0, "text", text=True, model="m"), "prompt as text"),
        ],
    )
    @pytest.mark.parametrize("asked", [True, False])
    async def test_what_it_does_not_know_is_refused_by_name(self, request_, named, asked):
        """Also where nobody has asked yet what it speaks; not a byte of the request is sent."""
        async with peer(self.lmql) as (url, received), LmtpClient(url) as client:
            if asked:
                await client.info("m")
            (refused,) = await outputs(client, request_)
            assert (refused.error_code, client.plain) == ("usage", True)
            assert f"does not know: {named};" in refused.error
        assert [frame.partition(" ")[0] for frame in received] == ["MODEL_INFO"]

    async def test_nothing_but_its_own_fields(self):
        """`lmtp` and `progress` are for servers that are not known to be plain, in every request."""
        async with peer(self.lmql) as (url, received), LmtpClient(url, on_progress=lambda _progress: None) as client:
            await client.info("m")
            await outputs(client, GenerateRequest(0, (1,), SamplingParams(max_tokens=1), model="m"))
            with contextlib.suppress(TimeLimitError):
                await client.models("m", timeout=0.01)
        told, generate, again = (json.loads(frame.partition(" ")[2]) for frame in received)
        assert set(told) == {"model", "stream_id", "lmtp", "progress"}
        assert set(generate) == {"model", "stream_id", "prompt", "max_tokens"}
        assert set(again) == {"model", "stream_id"}

    @pytest.mark.parametrize(
        ("request_", "reason"),
        [
            (GenerateRequest(0, (1,), SamplingParams(max_tokens=0), model="m"), "length"),
            (ScoreRequest(0, (1,), (), model="m"), "stop"),
        ],
    )
    async def test_streams_without_tokens_end_here(self, request_, reason):
        """It would send a token for `max_tokens` 0, and nothing ever for an empty `scored`."""
        async with peer(self.lmql) as (url, received), LmtpClient(url) as client:
            assert await outputs(client, request_) == [TokenOutput(0, finish_reason=reason)]
            assert await outputs(client, request_) == [TokenOutput(0, finish_reason=reason)]
        assert [frame.partition(" ")[0] for frame in received] == ["MODEL_INFO"]

    async def test_a_request_without_a_model(self):
        """LMQL's would drop the connection over it."""
        async with peer(self.lmql) as (url, _), LmtpClient(url) as client:
            await client.info("m")
            (refused,) = await outputs(client, GenerateRequest(0, (1,)))
            assert "needs the name of a model" in refused.error

    async def test_an_offer_is_left_out_in_time(self, monkeypatch):
        """A request that only offers to be resumable does not wait long for a server that says nothing of itself."""
        monkeypatch.setattr("lmtool.protocol.lmtp.client_connection.OFFER_SECONDS", 0.02)
        monkeypatch.setattr("lmtool.protocol.lmtp.client_connection.SILENCE", 2 * PATIENCE)
        silent = peer(lambda frame: [] if "INFO" in frame else [self.TOKEN])
        async with silent as (url, received), LmtpClient(url) as client:
            (output,) = await outputs(client, GenerateRequest(0, (1,), model="m", resumable=True))
            assert output.token == 7
        assert set(json.loads(received[-1].partition(" ")[2])) == {"model", "stream_id", "prompt"}

    async def test_its_loss_is_an_error_at_once(self):
        """Nothing goes on with its streams, begun or not, and it is not asked again: as without `Resuming`."""
        for brings in ([], [self.TOKEN.replace('"finish_reason": "length"', '"finish_reason": null')]):
            repeated = []
            cut = peer(lambda frame, brings=brings: self.lmql(frame) if "INFO" in frame else [*brings, None])
            async with cut as (url, received), LmtpClient(url) as client:
                model = Resuming(client, ResumeOptions(4), repeated.append, lambda client=client: client.extended)
                *_, last = await outputs(model, GenerateRequest(0, (1,), model="m"))
                assert last.error_code == "connection"
            assert (repeated, sum("GENERATE" in frame for frame in received)) == ([], 1)

    @pytest.mark.parametrize("answers", [[], ['MSG [{"stream_id": 1, "model_info": "<unavailable>"}]']])
    async def test_one_that_tells_nothing(self, answers, monkeypatch):
        """LMQL's `random` says `<unavailable>` for ever, others nothing at all: a name and a tokenizer are enough."""
        monkeypatch.setattr("lmtool.protocol.lmtp.client.SILENCE", 0.05)
        silent = peer(lambda frame: answers if "INFO" in frame else [self.TOKEN])
        async with silent as (url, _), LmtpClient(url) as client:
            assert await client.info_or_none("m", patient=False) is None
            assert client.plain
            (output,) = await outputs(client, GenerateRequest(0, (1,), model="m"))
            assert output.token == 7

    async def test_one_of_ours_that_loads_is_waited_for(self, monkeypatch):
        """It says how the load proceeds: that is no silence, and requests of any kind may be sent meanwhile."""
        monkeypatch.setattr("lmtool.protocol.lmtp.client.SILENCE", 0.05)
        monkeypatch.setattr("lmtool.protocol.lmtp.client_connection.SILENCE", 0.05)
        loading = {"model": "m", "phase": "loading", "done_bytes": 1, "total_bytes": 2, "message": ""}

        def ours(frame):
            own = {"stream_id": json.loads(frame.partition(" ")[2])["stream_id"]}
            if frame.startswith("MODEL_INFO"):
                return [f"MSG {json.dumps([{**own, 'progress': loading}])}"]
            return [f"TOKEN {json.dumps([{**own, 'token': 7, 'logprob': -1.0, 'finish_reason': 'length'}])}"]

        async with peer(ours) as (url, received), LmtpClient(url) as client:
            asking = asyncio.create_task(client.info_or_none("m", patient=False))
            (output,) = await outputs(client, GenerateRequest(0, (1,), SamplingParams(seed=1)))
            assert (output.token, client.plain) == (7, False)
            await asyncio.wait([asking], timeout=0.2)
            assert not asking.done()
            asking.cancel()
        assert '"lmtp":1' in received[-1]

    async def test_a_connection_that_is_lost_meanwhile(self):
        """What waits to know what the server speaks ends with the loss."""
        async with peer(lambda _frame: [None]) as (url, _), LmtpClient(url) as client:
            (lost,) = await outputs(client, GenerateRequest(0, (1,), SamplingParams(seed=1), model="m"))
            assert lost.error_code == "connection"


class TestModels:
    """What a server serves."""

    async def test_the_list(self):
        """At once, also while the model loads; a server without a list tells the one model."""
        model = ScriptedModel()
        model.loaded.clear()
        async with serving(model, catalogue=model) as served, LmtpClient(served.url) as client:
            assert await client.models() == [ModelEntry("scripted", phase="loading", context_length=4096)]
            assert not client.plain
        model.loaded.set()
        async with serving(model) as served, LmtpClient(served.url) as client:
            assert await client.models() == [ModelEntry("scripted", context_length=4096)]

    async def test_lists_of_later_servers(self):
        """What is not known of an entry is passed over."""
        entries = [
            {"name": "a", "phase": "melting", "size_bytes": "many", "colour": 1},
            7,
            {"name": "b", "aliases": ["c", 4]},
        ]
        answer = json.dumps([{"stream_id": 1, "models": entries}])
        async with peer(lambda _frame: [f"MSG {answer}"]) as (url, _), LmtpClient(url) as client:
            assert await client.models() == [ModelEntry("a"), ModelEntry("b", ("c",))]

    async def test_lmqls_server(self):
        """It has no list: its one model, named, counts as loading while it is not available."""
        for told, phase in (('"<unavailable>"', "loading"), ('"Random(seed=0)"', "ready")):
            answer = f'MSG [{{"stream_id": 1, "model_info": {told}}}]'
            async with peer(lambda _frame, answer=answer: [answer]) as (url, _), LmtpClient(url) as client:
                assert await client.models("m") == [ModelEntry("m", phase=phase)]


class TestGoingOn:
    """`Resuming` over a client."""

    @staticmethod
    def resuming(client, repeated):
        return Resuming(client, ResumeOptions(2, backoff=0.01), repeated.append, lambda: client.extended)

    async def test_a_server_that_was_never_reached(self):
        """Is an error at once, and no reason to try again."""
        repeated, client = [], LmtpClient("ws://127.0.0.1:9/")
        (last,) = await outputs(self.resuming(client, repeated), GenerateRequest(0, "Hi", text=True))
        assert (last.error_code, repeated) == ("connection", [])
        await client.close()

    async def test_a_server_that_comes_back_silent(self):
        """Is not taken for LMQL's: what it spoke is known from before, and the stream goes on without a question."""
        generates = itertools.count(1)

        def ours(frame):
            own = {"stream_id": json.loads(frame.partition(" ")[2])["stream_id"]}
            if frame.startswith("MODEL_INFO"):
                return [f"MSG {json.dumps([{**own, 'model_info': {'model': 'm', 'lmtp': 1}}])}"]
            last = next(generates) == 2
            token = {**own, "token": 7, "logprob": -1.0, "finish_reason": "stop" if last else None, "seed": 5}
            return [f"TOKEN {json.dumps([token])}", *([] if last else [None])]

        repeated = []
        async with peer(ours) as (url, received), LmtpClient(url) as client:
            found = await outputs(self.resuming(client, repeated), GenerateRequest(0, (1,), model="m"))
        assert (tokens(found), len(repeated)) == ([7, 7], 1)
        assert [frame.partition(" ")[0] for frame in received] == ["MODEL_INFO", "GENERATE", "GENERATE"]
        again = json.loads(received[2].partition(" ")[2])
        assert (again["generated"], again["seed"]) == ([7], 5)

    async def test_no_worker_is_up(self):
        """What a balancer says before a stream's first token is tried again like a loss."""
        busy = [True]

        def balancer(frame):
            own = {"stream_id": json.loads(frame.partition(" ")[2])["stream_id"]}
            if frame.startswith("MODEL_INFO"):
                return [f"MSG {json.dumps([{**own, 'model_info': {'model': 'm', 'lmtp': 1}}])}"]
            if busy:
                busy.pop()
                error = {**own, "error": "every worker rests", "error_code": "overloaded", "retryable": True}
                return [f"TOKEN {json.dumps([error])}"]
            return [f"TOKEN {json.dumps([{**own, 'token': 7, 'logprob': -1.0, 'finish_reason': 'stop'}])}"]

        repeated = []
        async with peer(balancer) as (url, _), LmtpClient(url) as client:
            (found,) = await outputs(self.resuming(client, repeated), GenerateRequest(0, (1,), model="m"))
        assert (found.token, [reason.code for reason in repeated]) == (7, ["overloaded"])
