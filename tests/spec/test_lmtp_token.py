"""LMTP, TOKEN."""

import json


async def entries_of(client, command="GENERATE", **fields):
    await client.send(f"{command} {json.dumps({'prompt': [1, 403], 'stream_id': 1, **fields})}")
    return await client.stream(1)


async def test_fields(client):
    """TOK-1: an entry has the five fields of the document, and a SCORE's the first four."""
    for entry in await entries_of(client):
        assert list(entry) == ["token", "stream_id", "logprob", "finish_reason", "top_logprobs"]
        assert type(entry["token"]) is int
        assert type(entry["logprob"]) is float
    for entry in await entries_of(client, "SCORE", scored=[3, 4]):
        assert list(entry) == ["token", "stream_id", "logprob", "finish_reason"]


async def test_endings_without_a_token(client):
    """TOK-4: such an ending has `stream_id` and `finish_reason`, and neither token nor logprob."""
    assert await entries_of(client, max_tokens=0) == [{"stream_id": 1, "finish_reason": "length"}]
    assert await entries_of(client, "SCORE", scored=[]) == [{"stream_id": 1, "finish_reason": "stop"}]


async def test_alternatives(real):
    """TOK-5: the k best and the chosen one; 0 asks for the chosen one alone; best first."""
    (zero,) = await entries_of(real, max_tokens=1, top_logprobs=0)
    assert zero["top_logprobs"] == {str(zero["token"]): zero["logprob"]}
    (five,) = await entries_of(real, max_tokens=1, top_logprobs=5)
    assert len(five["top_logprobs"]) == 5
    values = list(five["top_logprobs"].values())
    assert values == sorted(values, reverse=True)
    assert next(iter(five["top_logprobs"])) == str(five["token"])
    unlikely = None
    for seed in range(20):
        (entry,) = await entries_of(real, max_tokens=1, top_logprobs=1, temperature=5, seed=seed)
        if entry["token"] != five["token"]:
            unlikely = entry
    assert unlikely is not None
    assert set(unlikely["top_logprobs"]) == {str(five["token"]), str(unlikely["token"])}
    assert unlikely["top_logprobs"][str(unlikely["token"])] == unlikely["logprob"]
