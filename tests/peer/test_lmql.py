"""Our server and client against LMQL 0.7.3's own, for real.

They need LMQL in an environment of its own, on Python 3.11, with these versions (others were not seen to work):

    python3.11 -m venv lmql-env
    lmql-env/bin/pip install lmql==0.7.3 transformers==4.36.2 tokenizers==0.15.2 numpy==1.26.4 torch==2.13.0
    LMTOOL_LMQL_PYTHON=lmql-env/bin/python pytest -m peer
"""

import json
import math

import pytest

from lmtool.core.errors import TimeLimitError
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, SamplingParams, ScoreRequest
from lmtool.protocol.lmtp.client import LmtpClient

pytestmark = pytest.mark.peer

TOLERANCE = 1e-4
PROMPT = (5, 6, 7, 8)


@pytest.fixture(scope="module")
def with_ours(lmql, our_server, tiny_gpt2):
    """What LMQL's client got from our server."""
    return lmql.run("lmql_client.py", f"http://127.0.0.1:{our_server}", str(tiny_gpt2), cwd=tiny_gpt2)


def tokens(items):
    return [item["token"] for item in items]


class TestTheirClientOnOurServer:
    """LMQL's LMTPWebSocketClient and `lmtool serve`."""

    def test_generate(self, with_ours):
        """Tokens come with the document's fields and end with `length`."""
        greedy = with_ours["greedy"]
        assert len(greedy) == 8
        assert all(set(i) == {"token", "stream_id", "logprob", "finish_reason", "top_logprobs"} for i in greedy)
        assert [item["finish_reason"] for item in greedy] == [None] * 7 + ["length"]
        assert all(len(item["top_logprobs"]) == 3 for item in greedy)
        assert len(with_ours["default"]) <= 32

    def test_concurrent_streams(self, with_ours):
        """16 streams at once have what each has alone, each its own number of tokens."""
        for number, alone in zip((0, 7, 15), with_ours["alone"], strict=True):
            assert tokens(with_ours["concurrent"][number]) == tokens(alone)
            assert len(alone) == 5 + number or alone[-1]["finish_reason"] == "stop"

    def test_masks(self, with_ours):
        """+100 forces a token, whose logprob is 0; -100 forbids it."""
        assert tokens(with_ours["forced"]) == [42, 42]
        assert all(abs(item["logprob"]) < TOLERANCE for item in with_ours["forced"])
        assert tokens(with_ours["denied"])[0] != with_ours["greedy"][0]["token"]

    def test_sampling_arguments(self, with_ours):
        """The arguments that LMQL hands through are taken, also one that has no effect here."""
        assert len(with_ours["sampled"]) == 4
        assert tokens(with_ours["unused field"]) == tokens(with_ours["greedy"])[:2]

    def test_score(self, with_ours):
        """Scores of generated tokens are their logprobs."""
        assert tokens(with_ours["score"]) == tokens(with_ours["greedy"])
        for scored, generated in zip(with_ours["score"], with_ours["greedy"], strict=True):
            assert scored["logprob"] == pytest.approx(generated["logprob"], abs=TOLERANCE)
            assert "top_logprobs" not in scored

    def test_model_info(self, with_ours):
        """MODEL_INFO is answered, with `constructor` among the rest."""
        assert with_ours["info"]["model_info"]["constructor"]

    @pytest.mark.parametrize(
        ("case", "word"),
        [("bad id", "100000"), ("overflow", "512"), ("bad field", "temperature"), ("unknown model", "no-such-model")],
    )
    def test_errors(self, with_ours, case, word):
        """Every failure is raised as LMTPStreamError, in words."""
        assert word in with_ours[case]["raised"]

    def test_reconnecting(self, with_ours):
        """After a cut the client connects again and gets the same."""
        assert with_ours["before the cut"]["token"] == with_ours["greedy"][0]["token"]
        assert tokens(with_ours["after the cut"]) == tokens(with_ours["greedy"])


def test_queries_give_the_same(lmql, our_server, lmqls_server, tiny_gpt2):
    """Real queries with `where`, `distribution` and beams give on our server what they give on LMQL's."""
    ours, theirs = (
        lmql.run("lmql_query.py", f"localhost:{port}", str(tiny_gpt2), cwd=tiny_gpt2)
        for port in (our_server, lmqls_server)
    )
    assert set(ours) == set(theirs)
    for name in theirs:
        assert [result["prompt"] for result in ours[name]] == [result["prompt"] for result in theirs[name]], name
    (ours_found,), (theirs_found,) = ours["distribution"], theirs["distribution"]
    probabilities = dict(theirs_found["variables"]["P(X)"])
    assert len(probabilities) == 3
    assert dict(ours_found["variables"]["P(X)"]) == pytest.approx(probabilities, abs=TOLERANCE)


class TestOurClientOnTheirServer:
    """LmtpClient and `lmql serve-model`."""

    @pytest.fixture
    async def client(self, lmqls_server, tiny_gpt2):
        """A connection to LMQL's server."""
        async with LmtpClient(f":{lmqls_server}") as connected:
            yield connected

    @pytest.fixture
    def name(self, tiny_gpt2):
        """The name by which LMQL's server knows the model."""
        return str(tiny_gpt2)

    async def test_same_numbers_as_ours(self, client, name, our_server):
        """Tokens, logprobs and alternatives of both servers agree."""
        request = GenerateRequest("x", PROMPT, SamplingParams(max_tokens=8, top_logprobs=3), model=name)
        theirs = [output async for output in stream(client, request)]
        async with LmtpClient(f":{our_server}") as other:
            ours = [output async for output in stream(other, request)]
        assert [output.token for output in theirs] == [output.token for output in ours]
        assert [output.finish_reason for output in theirs] == [None] * 7 + ["length"]
        for one, other in zip(theirs, ours, strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=TOLERANCE)
            assert dict(one.top_logprobs) == pytest.approx(dict(other.top_logprobs), abs=TOLERANCE)

    async def test_sampling(self, client, name):
        """Alternatives that their server removed, and writes as -Infinity, are left out."""
        sampling = SamplingParams(max_tokens=4, temperature=0.9, top_k=2, top_logprobs=5)
        found = [output async for output in stream(client, GenerateRequest(0, PROMPT, sampling, model=name))]
        assert len(found) == 4
        assert all(math.isfinite(logprob) for output in found for _, logprob in output.top_logprobs)
        assert all(len(output.top_logprobs) <= 3 for output in found)

    async def test_masks(self, client, name):
        """`logit_bias` forces a token."""
        sampling = SamplingParams(max_tokens=1, logit_bias={42: 100.0})
        (forced,) = [output async for output in stream(client, GenerateRequest(0, PROMPT, sampling, model=name))]
        assert (forced.token, forced.logprob) == (42, pytest.approx(0, abs=TOLERANCE))

    async def test_score(self, client, name, our_server):
        """Scores of both servers agree."""
        request = ScoreRequest(0, PROMPT, (9, 10, 11), model=name)
        theirs = [output async for output in stream(client, request)]
        async with LmtpClient(f":{our_server}") as other:
            ours = [output async for output in stream(other, request)]
        assert [output.token for output in theirs] == [9, 10, 11]
        assert [o.logprob for o in theirs] == pytest.approx([o.logprob for o in ours], abs=TOLERANCE)

    async def test_info(self, client, name):
        """Their MODEL_INFO is understood as far as it goes."""
        info = await client.info(name, timeout=30)
        assert (info.model, info.backend) == (name, "transformers")
        assert info.versions["transformers"] == "4.36.2"
        assert info.vocab_size is None

    async def test_errors(self, client, name):
        """A failing stream ends with their words; the connection goes on."""
        (failed,) = [o async for o in stream(client, GenerateRequest(0, (100_000,), model=name))]
        assert failed.error
        assert failed.error_code == "server"
        assert (await client.info(name, timeout=30)).model == name

    async def test_cancel(self, client, name):
        """A cancelled stream ends here; their server, which has no CANCEL, answers the next request."""
        frames = []
        async with LmtpClient(client._endpoint.url, on_frame=lambda *frame: frames.append(frame)) as own:
            request = GenerateRequest(0, PROMPT, SamplingParams(max_tokens=30), model=name)
            async for output in stream(own, request):
                assert output.token is not None
                break
            assert (await own.info(name, timeout=30)).model == name
        sent = [json.loads(frame.partition(" ")[2]) for way, frame in frames if way == ">" and "CANCEL" in frame]
        assert sent == [{"model": name, "stream_id": 1}]

    async def test_unknown_models_are_not_awaited(self, client):
        """A name that their server cannot load is no reason to hang: the caller's own time limit holds."""
        with pytest.raises(TimeLimitError):
            await client.info("no-such-model", timeout=1)
