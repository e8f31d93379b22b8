"""Run by LMQL's Python: one generation with LMQL's own client. Argument: URL. Prints the tokens."""

import asyncio
import sys

import aiohttp
from lmql.models.lmtp.lmtp_client import LMTPWebSocketClient


async def main(url):
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as ws:
        client = LMTPWebSocketClient("m", ws)
        client.connect()
        async for item in client.generate([5, 6, 7], max_tokens=3, temperature=0.0):
            sys.stdout.write(f"{item['token']}\n")
            sys.stdout.flush()


asyncio.run(main(sys.argv[1]))
