"""`lmtool chat` without a prompt: a conversation in which the next prompt can be sent while answers are running."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prompt_toolkit.completion import Completer, Completion

from lmtool.chat.console import Console, Event, Submit, open_console
from lmtool.chat.conversation import Conversation, completions
from lmtool.chat.interleave import Interleaver, Piece
from lmtool.chat.peer import Peer, open_peer
from lmtool.chat.render import StyledOutput, TokenColorer, safe
from lmtool.chat.running_streams import Arrival, RunningStreams
from lmtool.chat.stream_record import StreamRecord, stats_line
from lmtool.errors import LmtoolError
from lmtool.serving.events import model_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from lmtool.chat.options import OutputOptions
    from lmtool.chat.prompt import PromptParsing, RequestOptions
    from lmtool.lmtp.endpoint import Endpoint
    from lmtool.resuming import ResumeOptions
    from lmtool.terminal import Output
    from lmtool.types import SamplingParams


@dataclass(frozen=True, slots=True)
class _Turn:
    """A prompt whose answer is running."""

    prompt: str
    sampling: SamplingParams
    deadline: float | None
    """Seconds; None: no limit."""
    colorer: TokenColorer


class CommandCompleter(Completer):
    """Completes commands and their arguments."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002 - prompt_toolkit's signature
        """Yield replacements of the word before the cursor."""
        line = document.text_before_cursor
        return (Completion(word, -len(line.rpartition(" ")[2])) for word in completions(line))


async def converse(
    endpoint: Endpoint,
    out: Output,
    requests: RequestOptions,
    display: OutputOptions,
    parsing: PromptParsing,
    *,
    tokenizer: str | None = None,
    record: str | None = None,
    resume: ResumeOptions | None = None,
) -> None:
    """Run a conversation until the user leaves. Raises `ConnectError` when there is no server to begin with."""
    opening = open_peer(
        endpoint, out, requests.model, tokenizer=tokenizer, record=record, resume=resume, passing_notes=False
    )
    async with opening as peer:
        styled = StyledOutput.of(out)
        async with open_console(styled, CommandCompleter()) as console:
            await Repl(peer, Conversation(requests, display, peer.info), parsing, styled, console).run()


class Repl:
    """The loop over the user's lines and the streams' outputs, in order of arrival."""

    def __init__(
        self, peer: Peer, conversation: Conversation, parsing: PromptParsing, styled: StyledOutput, console: Console
    ) -> None:
        self._peer = peer
        self._conversation = conversation
        self._parsing = parsing
        self._styled = styled
        self._console = console
        self._streams = RunningStreams()
        self._interleaver = Interleaver()
        self._turns: dict[int, _Turn] = {}
        self._last_index = 0
        self._warned = False
        """Whether the user knows that another Ctrl-C leaves."""

    async def run(self) -> None:
        """Run until the user leaves. Raises `KeyboardInterrupt` if by Ctrl-C."""
        model = model_line(replace(self._peer.info, kernels=None))  # shown by the server
        self._console.say(f"{model}     /help  Ctrl-C cancels  Ctrl-D leaves")
        self._ask()
        typed = asyncio.ensure_future(self._console.events.get())
        arrived = asyncio.ensure_future(self._streams.frame())
        try:
            while not self._conversation.finished:
                await asyncio.wait({typed, arrived}, return_when=asyncio.FIRST_COMPLETED)
                if typed.done():
                    self._on_event(typed.result())
                    typed = asyncio.ensure_future(self._console.events.get())
                if arrived.done():
                    self._on_frame(arrived.result())
                    arrived = asyncio.ensure_future(self._streams.frame())
        finally:
            typed.cancel()
            arrived.cancel()
            await self._streams.wind_down()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Submit):
            self._warned = False
            self._on_line(event.text)
        elif event == "interrupt":
            self._on_interrupt()
        elif event == "end":
            self._conversation.finished = True

    def _on_interrupt(self) -> None:
        if self._streams.running:
            self._streams.cancel()
        elif self._console.clear_line():
            self._warned = False
        elif self._warned:
            raise KeyboardInterrupt
        else:
            self._warned = True
            self._say("Ctrl-C again or Ctrl-D leaves")

    def _on_line(self, line: str) -> None:
        if not line.strip():
            self._ask()
            return
        self._break_line()
        self._console.echo(f"{self._last_index + 1}> {line}")
        try:
            reply = self._conversation.command(line)
            if reply is None:
                self._send(line.replace("//", "/", 1) if line.lstrip().startswith("//") else line)
            elif reply:
                self._say(reply)
        except LmtoolError as error:
            self._say("\n".join(["error: " + error.message, *(f"  {hint}" for hint in error.hints)]), "31")
        self._ask()

    def _send(self, line: str) -> None:
        typed = self._parsing.parse(line)
        if not typed.text.strip():
            self._say("these are only parameters: /set applies them to all prompts")
            return
        if typed.hint:
            self._say(f"{typed.hint}  (it was sent as text)")
        conversation, info = self._conversation, self._peer.info
        colorer = TokenColorer(self._styled.depth, conversation.display.heat, info.vocab_size)
        self._last_index += 1
        requests = conversation.requests
        turn = _Turn(typed.text, requests.sampling(info, typed.values), requests.deadline(typed.values), colorer)
        self._submit(self._last_index, turn)
        self._interleaver.open(self._last_index, str(self._last_index))

    def _submit(self, index: int, turn: _Turn) -> None:
        conversation = self._conversation
        request = conversation.requests.request(
            index,
            turn.prompt,
            self._peer.info,
            turn.sampling,
            tuple(conversation.history),
            deadline=turn.deadline,
        )
        self._turns[index] = turn
        self._streams.submit(self._peer.model, request)

    def _on_frame(self, arrivals: list[Arrival]) -> None:
        width = self._console.columns
        self._interleaver.columns = (
            None if width is None else width - 1
        )  # terminals differ in when a full last column wraps
        for record, _, output in arrivals:
            turn = self._turns[record.index]
            self._interleaver.push(record.index, safe(self._styled, output.text or ""), turn.colorer.style(output))
            if output.last:
                self._on_end(record, turn)
        self._console.put(self._interleaver.drain())

    def _on_end(self, record: StreamRecord, turn: _Turn) -> None:
        error = record.error
        if error is not None and error.error_code == "context_overflow" and self._conversation.forget_oldest():
            self._interleaver.push(record.index, "(dropped the oldest turn: the model's context is full)\n", "2")
            self._submit(record.index, turn)
            return
        del self._turns[record.index]
        if error is None:
            self._conversation.remember(turn.prompt, record.text)
        footer = self._footer(record, turn)
        if self._styled.out.terminal:
            self._interleaver.close(record.index, *footer)
            return
        self._interleaver.close(record.index)
        for text, style in footer:
            self._console.say(f"{record.index}│ {text}", style)

    def _footer(self, record: StreamRecord, turn: _Turn) -> list[Piece]:
        """The lines behind an answer."""
        if record.error is not None:
            return [(f"✗ {record.error.error}", "31")]
        footer = [(f"warning: {warning}", "33") for warning in record.warnings]
        if self._conversation.display.stats:
            footer.append((stats_line(record), "2"))
        elif record.finish_reason == "cancelled":
            footer.append(("✗ cancelled", "2"))
        elif record.finish_reason == "length":
            footer.append((f"(cut at {turn.sampling.max_tokens} tokens; /set max_tokens N)", "2"))
        return footer

    def _ask(self) -> None:
        self._console.prompt(f"{self._last_index + 1}> ")

    def _say(self, text: str, style: str = "2") -> None:
        self._break_line()
        self._console.say(text, style)

    def _break_line(self) -> None:
        self._console.put(self._interleaver.interrupt())
