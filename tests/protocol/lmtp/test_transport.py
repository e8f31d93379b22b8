"""Transports of a client: a WebSocket, or the pipes of a server that it starts."""

import asyncio
import ctypes
import os
import sys

import psutil
import pytest
from websockets.asyncio.server import serve

from lmtool.core.errors import ConnectError, TimeLimitError
from lmtool.protocol.lmtp import endpoint, pipe_transport, transport
from lmtool.protocol.lmtp.endpoint import CommandEndpoint
from lmtool.protocol.lmtp.pipe_transport import PipeTransport
from tests.protocol.lmtp.harness import PATIENCE


async def test_sockets():
    """Frames go and come as text messages, however large, without compression."""

    async def echo(connection):
        assert "Sec-WebSocket-Extensions" not in connection.request.headers
        async for frame in connection:
            await connection.send(frame)

    async with serve(echo, "127.0.0.1", 0, max_size=None) as server:
        where = endpoint.parse(f":{server.sockets[0].getsockname()[1]}")
        opened = await transport.open_transport(where, open_timeout=PATIENCE)
        await opened.send("x" * 5_000_000)
        assert await opened.receive() == "x" * 5_000_000
        await opened.close()
        with pytest.raises(ConnectError, match="lost"):
            await opened.send("x")


async def test_names_that_do_not_resolve():
    """A host that is not there is a connection error."""
    with pytest.raises((ConnectError, TimeLimitError)):
        await transport.open_transport(endpoint.SocketEndpoint("ws://no-such-host.invalid/", True), open_timeout=5)


async def test_a_program_that_is_not_there():
    """Is a connection error that names it."""
    with pytest.raises(ConnectError, match="cannot start 'no-such-program'"):
        await transport.open_transport(endpoint.CommandEndpoint(("no-such-program",)), open_timeout=5)


ECHO = "import sys\nfor line in sys.stdin: sys.stdout.write(line.upper()); sys.stdout.flush()"
LEAVES = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""
"""Starts a program, says which process it is once that is ready, and ends with its input."""
FOLLOWS = "import os\nparent = os.getppid()\nprint(1, flush=True)\nwhile os.getppid() == parent: pass"
"""A program that ends soon after the one that started it."""


async def start(code, *words, on_log=None):
    return await PipeTransport.start(CommandEndpoint((sys.executable, "-c", code, *words), on_log), 1024 * 1024)


async def test_pipes():
    """Frames go to a command's stdin and come from its stdout; closing ends it."""
    opened = await start(ECHO)
    await opened.send("héllo")
    assert await opened.receive() == "HÉLLO"
    await opened.close()
    with pytest.raises(ConnectError, match="exit status 0"):
        await opened.receive()


async def test_pipes_that_are_not_text():
    """A line that is not UTF-8 is handed on as it is, for the session to refuse."""
    code = "import sys; sys.stdout.buffer.write(bytes([255, 10])); sys.stdout.flush(); sys.stdin.read()"
    opened = await start(code)
    assert await opened.receive() == b"\xff\n"
    await opened.close()


async def test_ctrl_c_is_not_for_the_command():
    """The command is in a process group of its own: a terminal's Ctrl-C does not reach it."""
    code = "import os; print(os.getpgrp(), flush=True); input()"
    opened = await start(code)
    assert int(await opened.receive()) != os.getpgrp()
    await opened.close()


async def test_a_command_that_does_not_listen(monkeypatch):
    """A command that ignores the end of its input is ended."""
    monkeypatch.setattr(pipe_transport, "EXIT_SECONDS", 0.05)
    code = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\nwhile 1: signal.pause()"
    opened = await start(code)
    assert await opened.receive() == "up"
    async with asyncio.timeout(PATIENCE):
        await opened.close()


async def test_what_is_left_behind_ends_with_it(monkeypatch):
    """Also what has seen to it that no signal but the last one ends it."""
    monkeypatch.setattr(pipe_transport, "EXIT_SECONDS", 0.3)
    stays = (
        "import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; print(1, flush=True); signal.pause()"
    )
    opened = await start(LEAVES, stays)
    child = psutil.Process(int(await opened.receive()))
    await opened.close()
    psutil.wait_procs([child], PATIENCE)
    assert not child.is_running()


async def test_what_is_left_behind_may_tidy_up(tmp_path):
    """Before it would be killed: closing waits for it."""
    tidies = f"{FOLLOWS}\nimport pathlib, time; time.sleep(0.2); pathlib.Path({str(tmp_path / 'tidy')!r}).touch()"
    opened = await start(LEAVES, tidies)
    await opened.receive()
    await opened.close()
    assert (tmp_path / "tidy").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt orphans")
async def test_orphans_are_collected():
    """Where they become this process's children, as in a container: else they would be waited for as if they lived."""
    prctl, adopt = ctypes.CDLL(None).prctl, 36
    prctl(adopt, 1)
    try:
        opened = await start(LEAVES, FOLLOWS)
        child = int(await opened.receive())
        async with asyncio.timeout(pipe_transport.EXIT_SECONDS):
            await opened.close()
        assert not psutil.pid_exists(child)
    finally:
        prctl(adopt, 0)


async def test_its_last_words_are_the_reason():
    """An error on stderr, with its hints; other lines are passed on, none of them longer than is useful."""
    lines = []
    code = """
import sys
sys.stderr.write("warning: odd\\n" + 9999 * "x" + "\\nerror: no room\\n  make some\\n  or go\\n")
sys.exit(8)
"""
    opened = await start(code, on_log=lines.append)
    with pytest.raises(ConnectError) as lost:
        await opened.receive()
    assert (lost.value.message, lost.value.hints) == ("no room", ("make some", "or go"))
    assert [lines[0], len(lines[1])] == ["odd", pipe_transport.LONGEST_LOG_LINE]
    await opened.close()


async def test_a_signal_is_the_reason():
    """By its name, where nothing was said."""
    opened = await start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", on_log=print)
    with pytest.raises(ConnectError, match="was killed by SIGKILL"):
        await opened.receive()
    await opened.close()
