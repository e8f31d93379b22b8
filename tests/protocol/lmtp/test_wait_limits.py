"""Every wait of a client has an end, also for a server that knows the document alone, or never answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import serve, unix_serve

from lmtool.core.errors import TimeLimitError
from lmtool.core.resuming import ResumeOptions, Resuming
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest, TokenOutput
from lmtool.protocol.lmtp.client import LmtpClient
from lmtool.protocol.lmtp.wait_limits import WaitLimits
from tests.protocol.lmtp.document_server import DocumentServer, document_server, greedy
from tests.protocol.lmtp.harness import PATIENCE
from tests.protocol.lmtp.test_client import peer

SHORT = WaitLimits(answer=0.1, load=0.1, stream=0.1)
IMPATIENT = ResumeOptions(retries=2, token_timeout=0.1, backoff=0.0)
PROMPT = (5, 6)


def request(count: int = 6, **sampling: Any) -> GenerateRequest:
    return GenerateRequest("s", PROMPT, SamplingParams(max_tokens=count, **sampling), model="m")


async def said(model: Any, asked: GenerateRequest | ScoreRequest) -> list[TokenOutput]:
    async with asyncio.timeout(PATIENCE):
        return [output async for output in stream(model, asked)]


def tokens(outputs: list[TokenOutput]) -> list[int]:
    return [output.token for output in outputs if output.token is not None]


class TestDocumentOnly:
    """LMQL's server, or one like it: it knows no CANCEL, no deadline, no continuation."""

    @pytest.mark.parametrize("cut", [False, True])
    async def test_greedy_streams_go_on(self, cut: bool) -> None:
        """After silence and after a loss: each token once, by asking for the rest of prompt and received ids."""
        async with document_server(silent_after=[2, 0, None], cut=cut) as server, LmtpClient(server.url) as client:
            outputs = await said(Resuming(client, IMPATIENT, may_repeat=lambda: client.answered), request())
        assert tokens(outputs) == greedy(PROMPT, 6)
        assert [output.finish_reason for output in outputs] == [*5 * [None], "length"]
        assert [tuple(one["prompt"]) for one in server.requests[1:]] == 2 * [(*PROMPT, *greedy(PROMPT, 2))]
        assert [one["max_tokens"] for one in server.requests] == [6, 4, 4]
        assert not any(frame.startswith("CANCEL") for frame in server.frames)

    @pytest.mark.parametrize(("cut", "code"), [(False, "timeout"), (True, "connection")])
    async def test_others_end(self, cut: bool, code: str) -> None:
        """Nobody else can draw the rest of a sampled stream: it ends with what has happened, and in time."""
        async with document_server(silent_after=[2], cut=cut) as server, LmtpClient(server.url) as client:
            model = Resuming(client, IMPATIENT, may_repeat=lambda: client.answered)
            *_, last = outputs = await said(model, request(temperature=1.0))
        assert (tokens(outputs), last.error_code, len(server.requests)) == (greedy(PROMPT, 2), code, 1)

    async def test_scores_are_repeated(self) -> None:
        """From their beginning; what was handed on is not handed on again."""
        async with document_server(silent_after=[1]) as server, LmtpClient(server.url) as client:
            model = Resuming(client, IMPATIENT, may_repeat=lambda: client.answered)
            outputs = await said(model, ScoreRequest("s", PROMPT, (7, 8, 9), model="m"))
        assert (tokens(outputs), len(server.requests)) == ([7, 8, 9], 2)

    @pytest.mark.parametrize("silent", [0, 2])
    async def test_deadlines_are_kept_here(self, silent: int) -> None:
        """The field is not sent, and the stream ends when its time is over, also without a reader that counts."""
        done: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        async with document_server(silent_after=[silent]) as server, LmtpClient(server.url) as client:
            await client.info("m")
            asked = GenerateRequest("s", PROMPT, model="m", deadline=0.1)
            client.submit(asked, lambda outputs: done.set_result(outputs[-1]) if outputs[-1].last else None)
            last = await asyncio.wait_for(done, PATIENCE)
        assert (last.error, last.error_code) == (
            "the deadline of 0.1 s is over; send the request again with a longer one",
            "timeout",
        )
        assert "deadline" not in server.requests[0]

    async def test_max_tokens_of_a_batch(self) -> None:
        """A batch that runs to its longest stream brings too many tokens, and its widest too many alternatives."""
        async with document_server(batch_max=24) as server, LmtpClient(server.url) as client:
            outputs = await said(client, request(3, top_logprobs=2))
            again = await said(client, request(2))
        assert [(o.token, o.finish_reason) for o in outputs] == list(
            zip(greedy(PROMPT, 3), (None, None, "length"), strict=True)
        )
        assert all(len(o.top_logprobs or ()) == 2 for o in outputs)
        assert tokens(again) == greedy(PROMPT, 2)

    async def test_silence_before_the_first_token(self) -> None:
        """Ends a stream too, without a reader that counts; it is not asked for again."""
        async with document_server(silent_after=[0]) as server, LmtpClient(server.url, limits=SHORT) as client:
            await client.info("m")
            (last,) = await said(Resuming(client, may_repeat=lambda: client.answered), request())
        assert len(server.requests) == 1
        assert last.error_code == "timeout"
        assert "nothing for this stream within 0.1 s" in (last.error or "")


QUESTIONS: dict[str, Callable[[LmtpClient], Any]] = {
    "MODEL_INFO": lambda client: client.info("m"),
    "described": lambda client: client.info_or_none("m"),
    "list": lambda client: client.models("m"),
    "MODELS": lambda client: client.load("m"),
    "BUFFER": lambda client: client.change_buffer("b", ["x"]),
    "WATCH": lambda client: client.watch(print),
}


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_server_that_never_answers(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that opens and brings nothing is an error in time, for every kind of question."""
    monkeypatch.setattr("lmtool.protocol.lmtp.client_connection.SILENCE", PATIENCE)
    async with document_server(deaf=True) as server, LmtpClient(server.url, limits=SHORT) as client:
        with pytest.raises(TimeLimitError, match=r"no answer within 0\.1 s"):
            await asyncio.wait_for(QUESTIONS[question](client), PATIENCE)


async def test_other_transports(tmp_path: Path) -> None:
    """A pipe to a process that answers nothing, and a Unix socket: for streams as for questions."""
    path = str(tmp_path / "socket")
    async with unix_serve(DocumentServer(deaf=True), path):
        for endpoint in ("stdio:cat", f"unix:{path}"):
            async with LmtpClient(endpoint, limits=SHORT) as client:
                with pytest.raises(TimeLimitError, match=r"no answer within 0\.1 s"):
                    await asyncio.wait_for(client.info("m"), PATIENCE)
                (last,) = await said(client, request())
                assert last.error_code == "timeout"


async def test_what_is_never_available() -> None:
    """LMQL's server says so while it loads, and for ever when that failed: the wait ends all the same."""
    told = ['MSG [{"stream_id": %d, "model_info": "<unavailable>"}]']
    answer = lambda frame: [told[0] % json.loads(frame.partition(" ")[2])["stream_id"]]  # noqa: E731
    async with peer(answer) as (url, _), LmtpClient(url, limits=SHORT) as client:
        with pytest.raises(TimeLimitError, match="still not available"):
            await asyncio.wait_for(client.model_info("m"), PATIENCE)


async def test_notices_are_no_silence() -> None:
    """A load that proceeds and a queue that moves are waited for, as long as the server says so."""

    async def notices(connection: Any) -> None:
        async for frame in connection:
            own = {"stream_id": json.loads(str(frame).partition(" ")[2])["stream_id"]}
            for number in range(6):
                load = {"model": "m", "phase": "loading", "done_bytes": number, "total_bytes": 6}
                notice = {"system": {"kind": "queued", "message": "place 1 in the queue", "place": 1}}
                await connection.send("MSG " + json.dumps([own | ({"progress": load} if number % 2 else notice)]))
                await asyncio.sleep(0.1)
            if str(frame).startswith("MODEL_INFO"):
                await connection.send("MSG " + json.dumps([own | {"model_info": {"model": "m", "lmtp": 1}}]))
            else:
                await connection.send("TOKEN " + json.dumps([own | {"token": 7, "finish_reason": "stop"}]))

    limits = WaitLimits(answer=0.3, load=0.3, stream=0.3)
    async with serve(notices, "127.0.0.1", 0) as server:
        url = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = LmtpClient(url, limits=limits)
        assert (await client.info("m")).model == "m"
        assert tokens(await said(client, request())) == [7]
        await client.close()
