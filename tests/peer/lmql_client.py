"""Run by LMQL's Python: drive a server with LMQL's own client. Arguments: URL, model. Writes what it got as JSON."""

import asyncio
import json
import sys

import aiohttp
from lmql.models.lmtp.errors import LMTPStreamError
from lmql.models.lmtp.lmtp_client import LMTPWebSocketClient

PROMPT = [5, 6, 7, 8]


async def collect(stream):
    return [item async for item in stream]


async def failure(stream):
    try:
        return {"items": await collect(stream)}
    except LMTPStreamError as error:
        return {"raised": str(error)}


async def converse(client, model):
    found = {}
    found["greedy"] = await collect(client.generate(PROMPT, max_tokens=8, temperature=0.0, top_logprobs=3))
    found["default"] = await collect(client.generate(PROMPT))
    found["concurrent"] = await asyncio.gather(
        *(collect(client.generate([*PROMPT, number], max_tokens=5 + number)) for number in range(16))
    )
    found["alone"] = [await collect(client.generate([*PROMPT, number], max_tokens=5 + number)) for number in (0, 7, 15)]
    found["forced"] = await collect(client.generate(PROMPT, max_tokens=2, logit_bias={42: 100}))
    found["denied"] = await collect(
        client.generate(PROMPT, max_tokens=1, logit_bias={found["greedy"][0]["token"]: -100})
    )
    found["sampled"] = await collect(
        client.generate(PROMPT, max_tokens=4, temperature=0.9, top_p=0.9, top_k=40, repetition_penalty=1.1)
    )
    found["score"] = await collect(client.score(PROMPT, [item["token"] for item in found["greedy"]]))
    found["info"] = await client.request("MODEL_INFO", {"model": model})
    found["bad id"] = await failure(client.generate([100_000]))
    found["overflow"] = await failure(client.generate([5] * 600))
    found["bad field"] = await failure(client.generate(PROMPT, temperature="hot"))
    found["unused field"] = await collect(client.generate(PROMPT, max_tokens=2, length_penalty=1.0))
    return found


async def main(url, model):
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(url) as ws:
            client = LMTPWebSocketClient(model, ws)
            client.connect()
            found = await converse(client, model)
            stranger = LMTPWebSocketClient("no-such-model", ws)
            stranger.stream_id = 1000
            stranger.iterators, stranger.request_futures = client.iterators, client.request_futures
            found["unknown model"] = await failure(stranger.generate(PROMPT))
            cut = client.generate(PROMPT, max_tokens=400)
            found["before the cut"] = await anext(cut)
            ws._response.connection.transport.abort()
        async with session.ws_connect(url) as ws:
            again = LMTPWebSocketClient(model, ws)
            again.connect()
            found["after the cut"] = await collect(again.generate(PROMPT, max_tokens=8, top_logprobs=3))
    sys.stdout.write(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
