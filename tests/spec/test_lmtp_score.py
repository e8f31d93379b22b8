"""LMTP, SCORE."""

import json

import pytest


async def score(client, **fields):
    await client.send(f"SCORE {json.dumps({'stream_id': 1, **fields})}")
    return await client.stream(1)


async def test_entries(real):
    """SCO-1: one entry for each id, in order, without `top_logprobs`; the last one has `stop`."""
    entries = await score(real, prompt=[1], scored=[403, 407, 261])
    assert [entry["token"] for entry in entries] == [403, 407, 261]
    assert all(set(entry) == {"token", "stream_id", "logprob", "finish_reason"} for entry in entries)
    assert [entry["finish_reason"] for entry in entries] == [None, None, "stop"]


async def test_conditioning(real):
    """SCO-2: each value depends on the prompt and what was scored before; after nothing it is 0.0."""
    whole = await score(real, prompt=[1], scored=[403, 407, 261])
    for number in (1, 2):
        ids = [1, 403, 407, 261]
        part = await score(real, prompt=ids[: number + 1], scored=ids[number + 1 :])
        values = [entry["logprob"] for entry in part]
        assert values == pytest.approx([entry["logprob"] for entry in whole[number:]], abs=1e-4)
    empty = await score(real, prompt=[], scored=[1, 403])
    assert empty[0]["logprob"] == 0.0
    assert empty[1]["logprob"] == pytest.approx(whole[0]["logprob"], abs=1e-4)


async def test_sampling_changes_nothing(real):
    """SCO-3: `logit_bias` and `temperature` change no score."""
    plain = await score(real, prompt=[1], scored=[403, 407])
    assert await score(real, prompt=[1], scored=[403, 407], temperature=3, logit_bias={"403": 100}, top_k=1) == plain


async def test_nothing_to_score(real):
    """SCO-4: an empty `scored` is answered."""
    assert await score(real, prompt=[1], scored=[]) == [{"stream_id": 1, "finish_reason": "stop"}]


async def test_alternatives(real):
    """SCO-5: `top_logprobs` on a SCORE adds them."""
    entries = await score(real, prompt=[1, 403], scored=[407, 300], top_logprobs=3)
    for entry in entries:
        assert len(entry["top_logprobs"]) in (3, 4)
        assert entry["top_logprobs"][str(entry["token"])] == entry["logprob"]


@pytest.mark.parametrize("fields", [{"prompt": [1]}, {"scored": [1]}, {"prompt": [1], "scored": [-1]}])
async def test_bad_requests(client, fields):
    """SCO-1, ERR-1: a missing or wrong field is an error of the stream."""
    (entry,) = await score(client, **fields)
    assert "expected" in entry["error"]
