"""`lmtool chat` without a prompt: a conversation in which the next prompt can be sent while answers still run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from lmtool.cli.invocation import Common
from lmtool.cli.output import Output
from lmtool.cli.serving.status import model_line
from lmtool.cli.talking.asking import Asking, Words
from lmtool.cli.talking.conversation import Conversation
from lmtool.cli.talking.lanes import Lanes, Piece
from lmtool.cli.talking.lineedit import Event, Submit
from lmtool.cli.talking.parameters import PromptWords, split_prompt
from lmtool.cli.talking.peer import Peer, open_peer
from lmtool.cli.talking.recording import recording_frames
from lmtool.cli.talking.render import Ink, Tint, safe
from lmtool.cli.talking.showing import Showing
from lmtool.cli.talking.stats import Record, stats_line
from lmtool.cli.talking.surface import Surface, surface
from lmtool.cli.talking.talk import Arrival, Talk
from lmtool.errors import LmtoolError
from lmtool.types import SamplingParams


@dataclass(frozen=True, slots=True)
class _Turn:
    """A prompt whose answer is running."""

    prompt: str
    sampling: SamplingParams
    tint: Tint


async def converse(
    common: Common,
    asking: Asking,
    showing: Showing,
    how: Words,
    *,
    tokenizer: str | None = None,
    record: str | None = None,
) -> None:
    """Talk until the user leaves. Raises `ConnectError` when there is no server to begin with."""
    out = Output.of(common)
    async with (
        recording_frames(out, record, common.url) as on_frame,
        open_peer(common, out, asking.model, tokenizer=tokenizer, on_frame=on_frame) as peer,
    ):
        ink = Ink.of(out)
        place = surface(ink)
        place.start()
        try:
            await Repl(peer, Conversation(asking, showing, peer.info), how, ink, place).run()
        finally:
            place.stop()


class Repl:
    """The loop: what the user types and what streams bring, in the order in which they happen."""

    def __init__(self, peer: Peer, conversation: Conversation, how: Words, ink: Ink, place: Surface) -> None:
        self._peer = peer
        self._conversation = conversation
        self._how = how
        self._ink = ink
        self._place = place
        self._talk = Talk()
        self._lanes = Lanes()
        self._turns: dict[int, _Turn] = {}
        self._last = 0
        self._warned = False
        """Whether the user was told that one more Ctrl-C leaves."""

    async def run(self) -> None:
        """Go on until the user leaves. Raises `KeyboardInterrupt` when that is by Ctrl-C."""
        model = model_line(replace(self._peer.info, kernels=None))  # the server tells what computes it
        self._place.say(f"{model}     /help  Ctrl-C cancels  Ctrl-D leaves")
        self._ask()
        typed = asyncio.ensure_future(self._place.events.get())
        arrived = asyncio.ensure_future(self._talk.frame())
        try:
            while not self._conversation.left:
                await asyncio.wait({typed, arrived}, return_when=asyncio.FIRST_COMPLETED)
                if typed.done():
                    self._on_event(typed.result())
                    typed = asyncio.ensure_future(self._place.events.get())
                if arrived.done():
                    self._on_frame(arrived.result())
                    arrived = asyncio.ensure_future(self._talk.frame())
        finally:
            typed.cancel()
            arrived.cancel()
            await self._talk.wind_down()

    # What the user does.

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Submit):
            self._warned = False
            self._on_line(event.text)
        elif event == "interrupt":
            self._on_interrupt()
        elif event == "end":
            self._conversation.left = True

    def _on_interrupt(self) -> None:
        if self._talk.running:
            self._talk.cancel()
        elif self._place.clear_line():
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
        self._place.echo(f"{self._last + 1}> {line}")
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
        said = PromptWords(line) if self._how.literal else split_prompt(line, compat_space=self._how.compat_space)
        if not said.text.strip():
            self._say("that is only parameters: /set keeps them for all prompts")
            return
        if said.hint:
            self._say(f"{said.hint}  (it was sent as text)")
        conversation, info = self._conversation, self._peer.info
        tint = Tint(self._ink.depth, conversation.showing.heat, info.vocab_size)
        self._last += 1
        self._submit(self._last, _Turn(said.text, conversation.asking.sampling(info, said.values), tint))
        self._lanes.open(self._last, str(self._last))

    def _submit(self, index: int, turn: _Turn) -> None:
        conversation = self._conversation
        request = conversation.asking.request(
            index, turn.prompt, self._peer.info, turn.sampling, tuple(conversation.history)
        )
        self._turns[index] = turn
        self._talk.submit(self._peer.model, request)

    # What streams bring.

    def _on_frame(self, arrivals: list[Arrival]) -> None:
        width = self._place.columns
        self._lanes.columns = None if width is None else width - 1  # a full last column wraps when it likes
        for record, _, output in arrivals:
            turn = self._turns[record.index]
            self._lanes.push(record.index, safe(self._ink, output.text or ""), turn.tint.style(output))
            if output.last:
                self._on_end(record, turn)
        self._place.put(self._lanes.drain())

    def _on_end(self, record: Record, turn: _Turn) -> None:
        error = record.error
        if error is not None and error.error_code == "context_overflow" and self._conversation.forget_oldest():
            self._lanes.push(record.index, "(the oldest turn was forgotten: the model's context is full)\n", "2")
            self._submit(record.index, turn)
            return
        del self._turns[record.index]
        if error is None:
            self._conversation.remember(turn.prompt, record.text)
        tail = self._tail(record, turn)
        if self._ink.out.terminal:
            self._lanes.close(record.index, *tail)
            return
        self._lanes.close(record.index)
        for text, style in tail:
            self._place.say(f"{record.index}│ {text}", style)

    def _tail(self, record: Record, turn: _Turn) -> list[Piece]:
        """Return what stands behind an answer."""
        if record.error is not None:
            return [(f"✗ {record.error.error}", "31")]
        tail = [(f"warning: {warning}", "33") for warning in record.warnings]
        if self._conversation.showing.stats:
            tail.append((stats_line(record), "2"))
        elif record.finish_reason == "cancelled":
            tail.append(("✗ cancelled", "2"))
        elif record.finish_reason == "length":
            tail.append((f"(cut at {turn.sampling.max_tokens} tokens; /set max_tokens N)", "2"))
        return tail

    # What is shown.

    def _ask(self) -> None:
        self._place.prompt(f"{self._last + 1}> ")

    def _say(self, text: str, style: str = "2") -> None:
        self._break_line()
        self._place.say(text, style)

    def _break_line(self) -> None:
        self._place.put(self._lanes.interrupt())
