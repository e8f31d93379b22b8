"""LMTP, Logprobs."""

import json
import math

import pytest

from lmtool.core.types import TokenOutput
from lmtool.protocol.lmtp.answer_payloads import LEAST_LOGPROB
from lmtool.protocol.lmtp.server_session import ServerSession

PROMPT = [1, 403, 407, 261, 378]


async def entries_of(client, command="GENERATE", **fields):
    await client.send(f"{command} {json.dumps({'prompt': PROMPT, 'stream_id': 1, **fields})}")
    return await client.stream(1)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 2, "seed": 1}, {"temperature": 2, "top_k": 3, "seed": 1}])
async def test_normalised(real, sampling):
    """LOG-1: at most 0, summing to 1, and the same under any temperature and truncation."""
    for entry in await entries_of(real, max_tokens=5, top_logprobs=256, **sampling):
        values = list(entry["top_logprobs"].values())
        assert all(value <= 0 for value in values)
        assert 0.99 < sum(map(math.exp, values)) < 1 + 1e-5
    (plain,) = await entries_of(real, max_tokens=1, top_logprobs=10)
    (sampled,) = await entries_of(real, max_tokens=1, top_logprobs=10, **sampling)
    for token, logprob in plain["top_logprobs"].items():
        assert sampled["top_logprobs"][token] == pytest.approx(logprob, abs=1e-5)


async def test_forced_tokens(real):
    """LOG-2: after `logit_bias`: among few allowed ids the probabilities sum to 1, and one alone has 0."""
    (entry,) = await entries_of(real, max_tokens=1, logit_bias={"300": 100, "301": 100}, top_logprobs=2)
    assert set(entry["top_logprobs"]) == {"300", "301"}
    assert sum(map(math.exp, entry["top_logprobs"].values())) == pytest.approx(1, abs=1e-4)
    (forced,) = await entries_of(real, max_tokens=1, logit_bias={"300": 100})
    assert forced["logprob"] == pytest.approx(0, abs=1e-4)


def test_finite():
    """LOG-5, FRM-6: the logarithm of 0 is the lowest float32 where it has to be told, and left out elsewhere."""
    session = ServerSession()
    session.receive('GENERATE {"prompt": [1], "stream_id": 1}')
    session.outputs([TokenOutput("1", 5, -math.inf, ((4, -0.5), (5, -math.inf)))])
    entry = json.loads(session.next_frame().partition(" ")[2])[0]
    assert entry["logprob"] == LEAST_LOGPROB == -3.4028234663852886e38
    assert entry["top_logprobs"] == {"4": -0.5}


@pytest.mark.parametrize("mode", ["raw", "biased", "processed"])
async def test_logprob_token_ids(real, mode):
    """LOG-6: these ids and the chosen one, best first, with the logprobs that they have among the most likely ones."""
    asked = {"max_tokens": 3, "logprobs_mode": mode, "logit_bias": {"5": 1.0}, "ignore_eos": True}
    whole = await entries_of(real, **asked, top_logprobs=256)
    named = await entries_of(real, **asked, logprob_token_ids=[261, 5, 300], top_logprobs=0)
    for one, other in zip(whole, named, strict=True):
        assert (one["token"], one["logprob"]) == (other["token"], other["logprob"])
        assert set(other["top_logprobs"]) == {"261", "5", "300", str(other["token"])}
        known = one["top_logprobs"]
        assert all(abs(known[name] - value) < 1e-5 for name, value in other["top_logprobs"].items() if name in known)
        values = list(other["top_logprobs"].values())
        assert values[:3] == sorted(values[:3], reverse=True)
    plain = await entries_of(real, **asked, top_logprobs=0)
    assert [entry["token"] for entry in plain] == [entry["token"] for entry in named]


async def test_bad_logprob_token_ids(real):
    """LOG-6, ERR-5: too many, or what is no id, is refused by name; so is an id outside the vocabulary."""
    for given in (list(range(129)), [-1], "5", [10**6]):
        (entry,) = await entries_of(real, logprob_token_ids=given)
        assert "logprob_token_ids" in entry["error"]
