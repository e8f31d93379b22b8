"""A server of the scripted model on this process's stdin and stdout: `python -m tests.protocol.lmtp.stdio_server`."""

import asyncio

from lmtool.protocol.lmtp.plugs import Plugs
from lmtool.protocol.lmtp.server import LmtpServer
from lmtool.protocol.lmtp.stdio import open_stdio
from tests.scripted_model import ScriptedModel


async def main() -> None:
    await LmtpServer(Plugs(ScriptedModel())).run_stdio(*await open_stdio(4 * 1024 * 1024))


if __name__ == "__main__":
    asyncio.run(main())
