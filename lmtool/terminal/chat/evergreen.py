"""Evergreen for people: a conversation in one session, a script of messages, the list of actions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.api import need_protobuf, open_evergreen, session
from lmtool.core.errors import FileError, TimeLimitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lmtool.protocol.evergreen.client import Conversation, Session
    from lmtool.protocol.evergreen.client_transport import ClientTransport
    from lmtool.protocol.evergreen.messages import SessionMessage
    from lmtool.settings.terminal import Output
    from lmtool.terminal.chat.console import Console


_REFUSAL_SECONDS = 0.5
_SILENT_SECONDS = 600.0
"""Longest wait for the next message of a script's answers where no limit is set for all of them."""


async def converse(
    url: str,
    api_key: str | None,
    out: Output,
    config: Mapping[str, object],
    *,
    model: str,
    system: str | None,
    stats: bool,
) -> None:
    """Chat until stdin ends. Raises what `lmtool.session` raises."""
    from prompt_toolkit.completion import DummyCompleter

    from lmtool.terminal.chat.console import open_console
    from lmtool.terminal.chat.render import StyledOutput

    async with session(url, api_key=api_key) as live:
        conversation = live.conversation(system=system, model=model, **config)
        async with open_console(StyledOutput.of(out), DummyCompleter()) as console:
            await _Chat(live, conversation, console, stats=stats).run()


class _Chat:
    """The loop over lines and answers; one answer at a time, lines that come meanwhile wait."""

    def __init__(self, live: Session, conversation: Conversation, console: Console, *, stats: bool) -> None:
        self._live = live
        self._conversation = conversation
        self._console = console
        self._stats = stats
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._answering: asyncio.Task[None] | None = None
        self._interrupted = False
        """True if Ctrl-C leaves."""

    async def run(self) -> None:
        """Answer lines until their end. Raises KeyboardInterrupt where Ctrl-C leaves."""
        reader = asyncio.create_task(self._read())
        try:
            while (line := await self._lines.get()) is not None:
                if not line.strip():
                    continue
                self._console.echo(f"> {line}")
                self._answering = asyncio.create_task(self._answer(line))
                with contextlib.suppress(asyncio.CancelledError):
                    await self._answering
                self._answering = None
        finally:
            reader.cancel()
        if self._interrupted:
            raise KeyboardInterrupt

    async def _read(self) -> None:
        """Take what the user types; Ctrl-C cancels an answer, or clears the line, and twice with neither leaves."""
        from lmtool.terminal.chat.console import LEAVES

        warned = False
        while not self._interrupted and (event := await self._console.events.get()) != "end":
            if event != "interrupt":
                warned = False
                self._lines.put_nowait(event.text)
            elif self._answering is not None:
                self._answering.cancel()
            elif self._console.clear_line():
                warned = False
            elif warned:
                self._interrupted = True
            else:
                warned = True
                self._console.say(LEAVES)
        self._lines.put_nowait(None)

    async def _answer(self, line: str) -> None:
        nodes = self._conversation.ask(line)
        try:
            async with contextlib.aclosing(self._live.pieces(nodes["response"])) as pieces:
                async for piece in pieces:
                    self._console.put([(piece, "")])
        finally:
            self._console.put([("\n", "")])
        if self._stats:
            usage = json.loads(await nodes["usage"].value())
            prompt, cached, answer = (usage.get(f"{name}_tokens", 0) for name in ("prompt", "cached", "completion"))
            figures = f"prompt {prompt} tokens, {cached} of them cached; answer {answer} tokens"
            self._console.say(f"{figures} ({usage.get('finish_reason')})")


async def list_actions(url: str, api_key: str | None, out: Output, *, as_json: bool) -> None:
    """Print what a server offers. Raises what `lmtool.session` raises."""
    async with session(url, api_key=api_key) as live:
        text = await (await live.call("LIST_ACTIONS", {}, ["actions"]))["actions"].text()
    if as_json:
        out.line(text)
        return
    for each in json.loads(text):
        out.line(f"{each['name']}({_names(each['inputs'])}) -> {_names(each['outputs'])}")
        if each["description"]:
            out.line(f"    {each['description']}")


def _names(ports: Iterable[Mapping[str, Any]]) -> str:
    """`prompt (or text), scored?`: a question mark behind what may be left out."""
    return ", ".join("|".join((port["name"], *port.get("aliases", ()))) for port in ports)


async def run_script(url: str, api_key: str | None, out: Output, file: str, seconds: float | None) -> None:
    """Send the messages of a file, one as proto-JSON a line; print the answers until all outputs are whole.

    Raises `FileError` with the number of a line that is no message, and `Abort` with the server's reason.
    """
    need_protobuf()
    from lmtool.protocol.evergreen import codec

    messages = list(_messages(file))
    transport = await open_evergreen(url, api_key)
    outputs = _Outputs()
    try:
        async with asyncio.timeout(limit := seconds or _SILENT_SECONDS) as timeout:
            sending = asyncio.create_task(_send(transport, messages))
            for message in messages:
                outputs.expect(message)
            while outputs.open and (answer := await transport.receive()) is not None:
                out.line(codec.encode_json(answer))
                outputs.take(answer)
                if seconds is None:
                    timeout.reschedule(asyncio.get_running_loop().time() + limit)
            await sending
            if outputs.silent:
                await _hear_refusal(transport)
            await transport.send(None)
    except TimeoutError:
        raise TimeLimitError(f"not all outputs were whole after {limit:g} s") from None
    finally:
        await transport.close()


async def _hear_refusal(transport: ClientTransport) -> None:
    """Wait a little for the reason of an abort: an action without outputs says nothing else. Raises `Abort`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSAL_SECONDS):
            await transport.receive()


async def _send(transport: ClientTransport, messages: Iterable[SessionMessage]) -> None:
    for message in messages:
        await transport.send(message)


def _messages(file: str) -> Iterator[SessionMessage]:
    from lmtool.protocol.evergreen import codec
    from lmtool.protocol.evergreen.status import Abort

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield codec.decode(line)
        except Abort as error:
            raise FileError(f"line {number} of {file} is no message: {error.message}", *error.hints) from None


class _Outputs:
    """Which outputs of a script are not whole yet, with all that is below them."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self._known: set[str] = set()
        """Nodes that the script writes, or that are whole."""
        self.silent = False
        """True if an action has no output."""

    def expect(self, message: SessionMessage) -> None:
        """Note the outputs of a message's actions."""
        self._known |= {fragment.id for fragment in message.node_fragments}
        self.silent = self.silent or not all(action.outputs for action in message.actions)
        self.open |= {output.id for action in message.actions for output in action.outputs}

    def take(self, message: SessionMessage) -> None:
        """Note what a message of the server completes; its fragments come in order."""
        for fragment in message.node_fragments:
            self.open |= set(fragment.child_ids) - self._known
            if not fragment.continued:
                self.open.discard(fragment.id)
                self._known.add(fragment.id)
