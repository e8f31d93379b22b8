"""`lmtool chat` without a prompt: a conversation in which the next prompt can be sent while answers are running."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prompt_toolkit.completion import Completer, Completion

from lmtool.core.errors import LmtoolError
from lmtool.serving.events import model_line
from lmtool.terminal.chat.actions import ConversationActions
from lmtool.terminal.chat.attachments import attach_files
from lmtool.terminal.chat.commands import completions, last_word, run_command
from lmtool.terminal.chat.console import LEAVES, Event, Submit, open_console
from lmtool.terminal.chat.conversation import Conversation, EditPrompt, SendAgain
from lmtool.terminal.chat.interleave import Interleaver, Piece
from lmtool.terminal.chat.keeping import keep_conversation
from lmtool.terminal.chat.peer import Peer, open_peer
from lmtool.terminal.chat.render import StyledOutput, ThoughtStyler, TokenColorer, safe, text_styler
from lmtool.terminal.chat.running_streams import Arrival, RunningStreams
from lmtool.terminal.chat.stream_record import StreamRecord, stats_line
from lmtool.terminal.chat.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from typing import Any

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    from lmtool.core.resuming import ResumeOptions
    from lmtool.core.types import SamplingParams
    from lmtool.protocol.lmtp.endpoint import Endpoint
    from lmtool.settings.terminal import Output
    from lmtool.terminal.chat.console import Console
    from lmtool.terminal.chat.conversation import Action
    from lmtool.terminal.chat.keeping import ConversationOptions, Keeping
    from lmtool.terminal.chat.options import OutputOptions
    from lmtool.terminal.chat.prompt import PromptParsing, RequestOptions
    from lmtool.terminal.chat.render import TextStyler


@dataclass(frozen=True, slots=True)
class _Running:
    """A turn whose answer is running."""

    turn: Turn
    """Without its answer, or with the beginning of it that is gone on with."""
    sampling: SamplingParams
    deadline: float | None
    """Seconds; None: no limit."""
    styler: TextStyler


class CommandCompleter(Completer):
    """Completes commands and their arguments, parameters and files."""

    def __init__(self) -> None:
        self.models: list[str] = []
        """Names that `/model` can use."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:  # noqa: ARG002 - prompt_toolkit's signature
        """Yield replacements of the word before the cursor."""
        line = document.text_before_cursor.rpartition("\n")[2]
        return (Completion(word, -len(last_word(line))) for word in completions(line, self.models))


async def converse(
    endpoint: Endpoint,
    out: Output,
    requests: RequestOptions,
    display: OutputOptions,
    parsing: PromptParsing,
    options: ConversationOptions,
    *,
    tokenizer: str | None = None,
    record: str | None = None,
    resume: ResumeOptions | None = None,
) -> None:
    """Run a conversation until the user leaves. Raises `ConnectError` when there is no server to begin with.

    Raises `UsageError` and `FileError` where there is no earlier conversation to go on with.
    """
    async with keep_conversation(options, out, endpoint) as keeping:
        opening = open_peer(
            endpoint, out, requests.model, tokenizer=tokenizer, record=record, on_frame=keeping.on_frame, resume=resume,
            passing_notes=False,
        )  # fmt: skip
        async with opening as peer:
            styled, completer = StyledOutput.of(out), CommandCompleter()
            conversation = Conversation(requests, display, peer.info)
            async with open_console(styled, completer, keeping.history) as console:
                repl = Repl(peer, conversation, parsing, styled, console, keeping, completer)
                await repl.run()


class Repl:
    """The loop over the user's lines and the streams' outputs, in order of arrival."""

    def __init__(
        self,
        peer: Peer,
        conversation: Conversation,
        parsing: PromptParsing,
        styled: StyledOutput,
        console: Console,
        keeping: Keeping,
        completer: CommandCompleter,
    ) -> None:
        self._peer = peer
        self._conversation = conversation
        self._parsing = parsing
        self._styled = styled
        self._console = console
        self._keeping = keeping
        self._completer = completer
        self._actions = ConversationActions(conversation, keeping, self._say, lambda: console.columns)
        self._streams = RunningStreams()
        self._interleaver = Interleaver()
        self._running: dict[int, _Running] = {}
        self._last_index = 0
        self._early: list[Event] = []
        """Events that came while a command was waited for."""
        self._warned = False
        """True if the user knows that another Ctrl-C leaves."""

    async def run(self) -> None:
        """Run until the user leaves. Raises `KeyboardInterrupt` if by Ctrl-C."""
        self._begin()
        naming = asyncio.ensure_future(self._learn_models())
        typed = asyncio.ensure_future(self._console.events.get())
        arrived = asyncio.ensure_future(self._streams.frame())
        try:
            while not self._conversation.finished:
                await asyncio.wait({typed, arrived}, return_when=asyncio.FIRST_COMPLETED)
                if arrived.done():  # before what was typed: a command may be about an answer that has just ended
                    self._on_frame(arrived.result())
                    arrived = asyncio.ensure_future(self._streams.frame())
                if typed.done():
                    await self._on_event(typed.result())
                    while self._early and not self._conversation.finished:
                        await self._on_event(self._early.pop(0))
                    typed = asyncio.ensure_future(self._console.events.get())
        finally:
            for task in (naming, typed, arrived):
                task.cancel()
            self._peer.waiting.say = None
            for record, _, _ in await self._streams.wind_down():
                self._remember(record)

    def _begin(self) -> None:
        self._peer.waiting.say = self._say
        if self._keeping.recorder is not None:
            self._keeping.recorder.warn = self._say
        model = model_line(replace(self._peer.info, kernels=None))  # shown by the server
        self._console.say(f"{model}     /help  Ctrl-C cancels  Ctrl-D leaves")
        if self._keeping.earlier is not None:
            self._actions.take(self._keeping.earlier)
            self._last_index = self._conversation.tree.last_number
        self._ask()

    async def _learn_models(self) -> None:
        """Learn what `/model` can name, for Tab."""
        self._completer.models = [self._peer.info.model]
        with suppress(LmtoolError):  # /model says what is wrong
            models = await self._peer.models()
            self._completer.models = [name for entry in models for name in (entry.name, *entry.aliases)]

    async def _on_event(self, event: Event) -> None:
        if isinstance(event, Submit):
            self._warned = False
            await self._on_line(event.text)
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
            self._say(LEAVES)

    async def _on_line(self, line: str) -> None:
        if not line.strip():
            self._ask()
            return
        self._break_line()
        self._console.echo(f"{self._last_index + 1}> {line}")
        try:
            reply = run_command(self._conversation, line, list(self._running))
            if reply is None:
                self._send(line.replace("//", "/", 1) if line.lstrip().startswith("//") else line)
            elif isinstance(reply, str):
                if line.split(maxsplit=1)[0] in {"/branch", "/reset"}:
                    self._keeping.moved(self._conversation.tree.head)
                if reply:
                    self._say(reply)
            else:
                await self._interruptible(self._act(reply))
        except LmtoolError as error:
            self._say("\n".join(["error: " + error.message, *(f"  {hint}" for hint in error.hints)]), "31")
        self._ask()

    async def _interruptible(self, action: Coroutine[Any, Any, None]) -> None:
        """Await what a command does; Ctrl-C cancels it, other events wait."""
        acting = asyncio.ensure_future(action)
        while not acting.done():
            typed = asyncio.ensure_future(self._console.events.get())
            await asyncio.wait({acting, typed}, return_when=asyncio.FIRST_COMPLETED)
            if not typed.done():
                typed.cancel()
            elif typed.result() == "interrupt":
                acting.cancel()
                await asyncio.wait({acting})
            else:
                self._early.append(typed.result())
        if acting.cancelled():
            self._say("cancelled")
        else:
            acting.result()

    async def _act(self, action: Action) -> None:
        if isinstance(action, SendAgain):
            self._send_again(action)
        elif isinstance(action, EditPrompt):
            await self._edit(action)
        else:
            peer = await self._actions.do(action, self._peer)
            if peer is not self._peer:
                self._peer = peer
            self._last_index = max(self._last_index, self._conversation.tree.last_number)

    def _send_again(self, again: SendAgain) -> None:
        turn = again.turn
        values = {**self._parsing.parse(turn.prompt).values, **again.values}
        sampling = self._conversation.requests.sampling(self._peer.info, values)
        if not again.prefill and sampling.temperature <= 0 and turn.finish_reason in {"stop", "length"}:
            self._say("without a temperature the same answer comes again  (try /retry temperature=0.8)")
        self._conversation.tree.go_to(turn.behind)
        self._start(turn.prompt, turn.text, values, again.prefill)

    async def _edit(self, action: EditPrompt) -> None:
        turn = action.turn
        text = await self._console.edit("" if turn is None else turn.prompt)
        if text is None:
            self._say("the editor ended with an error: nothing was sent")
        elif not text.strip() or (turn is not None and text == turn.prompt):
            self._say("nothing has changed, so nothing was sent  (/retry sends it again)")
        else:
            self._console.echo(f"{self._last_index + 1}> {text}")
            before = self._conversation.tree.head
            self._conversation.tree.go_to(0 if turn is None else turn.behind)
            try:
                self._send(text)
            except LmtoolError:
                self._conversation.tree.go_to(before)
                raise

    def _send(self, line: str) -> None:
        typed = self._parsing.parse(line)
        if not typed.text.strip():
            self._say("these are only parameters: /set applies them to all prompts")
            return
        text, notes = attach_files(typed.text)
        if typed.hint:
            notes.append(f"{typed.hint}  (it was sent as text)")
        running = list(self._running)
        if running and self._conversation.requests.templated(self._peer.info):
            answers = f"answer {running[0]} runs" if len(running) == 1 else f"{len(running)} answers run"
            notes.append(f"sent while {answers}, which this prompt will not see")
        if notes:
            self._say("\n".join(notes))
        self._start(line, text, typed.values)

    def _start(self, prompt: str, text: str, values: Any, prefill: str = "") -> None:  # noqa: ANN401 - as typed
        """Send a prompt behind the turn where the conversation stands."""
        conversation, info = self._conversation, self._peer.info
        requests, display = conversation.requests, conversation.display
        colorer = TokenColorer(self._styled.depth, display.heat, info.vocab_size)
        running = _Running(
            Turn(self._last_index + 1, 0, prompt, text, prefill),
            requests.sampling(info, values),
            requests.deadline(values),
            ThoughtStyler(self._styled, text_styler(self._styled, display, colorer)),
        )
        self._keeping.begin(conversation.tree, text, info.model)
        self._last_index += 1
        self._submit(running)
        self._interleaver.open(running.turn.number, str(running.turn.number))

    def _submit(self, running: _Running) -> None:
        conversation, turn = self._conversation, running.turn
        request = conversation.requests.request(
            turn.number,
            turn.text,
            self._peer.info,
            running.sampling,
            tuple(conversation.history),
            deadline=running.deadline,
            prefill=turn.answer,
        )
        self._running[turn.number] = running
        self._streams.submit(self._peer.model, request)

    def _on_frame(self, arrivals: list[Arrival]) -> None:
        width = self._console.columns
        self._interleaver.columns = (
            None if width is None else width - 1
        )  # terminals differ in when a full last column wraps
        for record, _, output in arrivals:
            running = self._running[record.index]
            pieces = running.styler.pieces(safe(self._styled, output.text or ""), output)
            for piece in [*pieces, *(running.styler.close() if output.last else ())]:
                self._interleaver.push(record.index, *piece)
            if output.last:
                self._on_end(record, running)
        self._console.put(self._interleaver.drain())

    def _on_end(self, record: StreamRecord, running: _Running) -> None:
        error = record.error
        if error is not None and error.error_code == "context_overflow" and self._conversation.history:
            self._conversation.tree.forget_oldest()
            self._interleaver.push(record.index, "(dropped the oldest turn: the model's context is full)\n", "2")
            self._submit(running)
            return
        self._remember(record)
        footer = self._footer(record, running)
        if self._styled.out.terminal:
            self._interleaver.close(record.index, *footer)
            return
        self._interleaver.close(record.index)
        for text, style in footer:
            self._console.say(f"{record.index}│ {text}", style)

    def _remember(self, record: StreamRecord) -> None:
        """Keep a turn whose answer has ended, as far as it came."""
        running = self._running.pop(record.index, None)
        if running is None:
            return
        reason = "error" if record.error is not None else record.finish_reason
        turn = replace(running.turn, answer=running.turn.answer + record.text, finish_reason=reason)
        self._keeping.turn(self._conversation.remember(turn))

    def _footer(self, record: StreamRecord, running: _Running) -> list[Piece]:
        """The lines behind an answer."""
        if record.error is not None:
            return [(f"✗ {record.error.error}", "31")]
        footer = [(f"warning: {warning}", "33") for warning in record.warnings]
        if self._conversation.display.stats:
            footer.append((stats_line(record), "2"))
        elif record.finish_reason == "cancelled":
            footer.append(("✗ cancelled", "2"))
        elif record.finish_reason == "length":
            footer.append((f"(cut at {running.sampling.max_tokens} tokens; /continue goes on)", "2"))
        return footer

    def _ask(self) -> None:
        self._console.prompt(f"{self._last_index + 1}> ")

    def _say(self, text: str, style: str = "2") -> None:
        self._break_line()
        self._console.say(text, style)

    def _break_line(self) -> None:
        self._console.put(self._interleaver.interrupt())
