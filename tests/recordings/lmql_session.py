"""Run by LMQL's Python while it is recorded: one of its sessions. Arguments: session, URL, model."""

import asyncio
import sys

import aiohttp
import lmql
from lmql.models.lmtp.errors import LMTPStreamError
from lmql.models.lmtp.lmtp_client import LMTPWebSocketClient

PROMPT = [5, 6, 7, 8]


async def collect(stream):
    return [item async for item in stream]


async def greedy(client):
    await collect(client.generate(PROMPT, max_tokens=8, temperature=0.0, top_logprobs=3))
    await collect(client.generate(PROMPT))


async def sixteen(client):
    streams = (collect(client.generate([*PROMPT, number], max_tokens=5 + number)) for number in range(16))
    await asyncio.gather(*streams)


async def masks(client):
    await collect(client.generate(PROMPT, max_tokens=2, logit_bias={42: 100}))
    await collect(client.generate(PROMPT, max_tokens=2, logit_bias={42: 100, 43: 100, 44: 100}, top_logprobs=3))
    await collect(client.generate(PROMPT, max_tokens=1, logit_bias={42: -100}))


async def sampled(client):
    arguments = {"temperature": 0.9, "top_p": 0.9, "top_k": 40, "repetition_penalty": 1.1, "top_logprobs": 50}
    await collect(client.generate(PROMPT, max_tokens=4, **arguments))


async def scores(client):
    found = await collect(client.generate(PROMPT, max_tokens=6))
    await collect(client.score(PROMPT, [item["token"] for item in found]))


async def info(client):
    await client.request("MODEL_INFO", {"model": client.model_identifier})


async def failing(client):
    try:
        await collect(client.generate([100_000], max_tokens=2))
    except LMTPStreamError:
        await collect(client.generate(PROMPT, max_tokens=2))


async def cut_and_return(url, model):
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(url) as ws:
            client = LMTPWebSocketClient(model, ws)
            client.connect()
            await anext(client.generate(PROMPT, max_tokens=400))
            ws._response.connection.transport.abort()
        async with session.ws_connect(url) as ws:
            client = LMTPWebSocketClient(model, ws)
            client.connect()
            await collect(client.generate(PROMPT, max_tokens=8))


SESSIONS = {one.__name__: one for one in (greedy, sixteen, masks, sampled, scores, info, failing)}

QUERIES = {
    "query_where": """
argmax(max_len=64)
    "Say hello:[GREETING] end"
where len(TOKENS(GREETING)) < 10
""",
    "query_choice": """
argmax(max_len=64)
    "The answer is [X]"
where X in ["yes", "no"]
""",
    "query_distribution": """
argmax(max_len=64)
    "Say hello:[G] The answer is [X]"
where len(TOKENS(G)) < 4
distribution
    X in ["yes", "no", "three four"]
""",
    "query_beam": """
beam(n=2, max_len=48)
    "one two[X]"
where len(TOKENS(X)) < 6
""",
}


async def main(session, url, model):
    if session in QUERIES:
        remote = lmql.model(model, endpoint=url.removeprefix("http://").rstrip("/"), tokenizer=model)
        await lmql.run(QUERIES[session], model=remote, output_writer=lmql.headless)
        return
    if session == "cut_and_return":
        await cut_and_return(url, model)
        return
    async with aiohttp.ClientSession() as http, http.ws_connect(url) as ws:
        client = LMTPWebSocketClient(model, ws)
        client.connect()
        await SESSIONS[session](client)


asyncio.run(main(*sys.argv[1:]))
