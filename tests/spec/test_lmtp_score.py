"""LMTP, SCORE."""

import json

import pytest


async def score(client, **fields):
    await client.send(f"SCORE {json.dumps({'stream_id': 1, **fields})}")
    return await client.stream(1)


@pytest.mark.parametrize("fields", [{"prompt": [1]}, {"scored": [1]}, {"prompt": [1], "scored": [-1]}])
async def test_bad_requests(client, fields):
    """SCO-1, ERR-1: a missing or wrong field is an error of the stream."""
    (entry,) = await score(client, **fields)
    assert "expected" in entry["error"]
