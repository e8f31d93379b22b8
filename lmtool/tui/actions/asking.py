"""Actions that ask a server: branches, prompts, scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.tui import branching
from lmtool.tui.actions.watching import Watching
from lmtool.tui.prompting import request_of, score_of
from lmtool.tui.scored_text import LINE_FEED, editable_text
from lmtool.tui.screens.asking import LONGEST, AskScreen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lmtool.tui.scored_text import EditableText
    from lmtool.tui.sources.source import TextToScore
    from lmtool.tui.streams import Stream
    from lmtool.types import GenerateRequest

ENOUGH = 200
"""Prompts that are kept for the up key."""


class Asking(Watching):
    """Part of the app. Requests go out on the inspector's own connection, never on one that is watched."""

    def action_branch(self) -> None:
        """Go on from an alternative."""
        self._branch(branching.branch, "")

    def action_bias_out(self) -> None:
        """Go on without an alternative."""
        self._branch(branching.ruled_out, "not ")

    def _branch(self, make: Callable[..., GenerateRequest], lead: str) -> None:
        found = self._alternative() if self._can_ask() else None
        if found is None:
            return
        view, (row, token) = self.view, found
        parent, position = view.state.stream_of(row), view.position(row)
        try:
            request = make(view, row, token)
        except LmtoolError as error:
            self.say_error(error)
            return

        async def begin() -> None:
            assert self.source is not None
            assert self.source.generate is not None
            label = await self._sent(self.source.generate(request))
            if label is not None:
                self.branches.add(parent.label, position, label, f"{lead}{view.measures.quote(token)}")
                key = self.keys.sign("tree")
                self.say(f"stream {label} goes on from {parent.label} at token #{position}; {key} shows the tree")

        self.run_worker(begin())

    def _can_ask(self) -> bool:
        if self.source is not None and self.source.generate is not None:
            return True
        why = "a file answers nothing: open it with  --connect ws://HOST:PORT" if self.source is None else ""
        self.say(
            why or (self.source.cannot_ask if self.source is not None else "") or "not connected yet", warning=True
        )
        return False

    def _alternative(self) -> tuple[int, int] | None:
        """Row of the token and id of the alternative under the cursor."""
        row = self.view.token
        top = self.view.alternatives(row) if row is not None else ()
        if row is None or not top:
            self.say("no token yet" if row is None else "this token came without alternatives; ask with top_logprobs=5")
            return None
        token = top[min(self.view.bar, len(top) - 1)][0]
        if not isinstance(token, int):
            self.say("the tokens of this stream have no ids, so that nothing can go on from one of them")
            return None
        return row, token

    async def _sent(self, sending: Awaitable[str]) -> str | None:
        """The label of a request's stream, to which the cursor goes; None where it could not be sent."""
        try:
            label = await sending
        except LmtoolError as error:
            self.say_error(error)
            return None
        self.wanted = label
        self.back_again()
        return label

    def action_prompt(self) -> None:
        """Ask for a prompt and send it."""
        if self._can_ask():
            hint = "words at the end such as max_tokens=50 temperature=.8 set parameters; up brings the last line back"
            self.push_screen(
                AskScreen("Prompt", hint, self.looks, check=_wrong, history=self.prompts), self._send_prompt
            )

    def _send_prompt(self, text: str | None) -> None:
        if not text or self.source is None or self.source.generate is None:
            return
        self.prompts[:] = [*self.prompts, text][-ENOUGH:]
        self.run_worker(self._deliver(self.source.generate(request_of(text))))

    def action_score(self) -> None:
        """Ask for a text and have it scored."""
        if not self._can_ask():
            return
        if self.source is None or self.source.score is None:
            self.say("this source cannot score", warning=True)
            return
        stream = self.view.current
        hint = "PROMPT => TEXT gives each token of TEXT its logprob after PROMPT; without => the whole text is scored."
        if stream is not None:
            try:
                own = editable_text(self.view, stream)
            except LmtoolError as error:
                hint = f"{error.message}. {hint}"
            else:
                self._score_own(stream, own)
                return
        self.push_screen(AskScreen("Score", hint, self.looks), lambda text: self._score(score_of(text or ""), ""))

    def _score_own(self, stream: Stream, own: EditableText) -> None:
        """Have a stream's tokens scored after its own prompt; a person may edit their text before."""
        line = own.line
        if len(line) > LONGEST:
            self._score(own.after_edit(line), stream.label)
            return
        hint = (
            f"the tokens of {stream.label} after its own prompt, as they are; edit the text ({LINE_FEED} is a line "
            "feed), and what differs is cut into tokens anew"
        )
        self.push_screen(
            AskScreen("Score", hint, self.looks, value=line),
            lambda text: self._score(None if text is None else own.after_edit(text), stream.label),
        )

    def _score(self, given: TextToScore | None, origin: str) -> None:
        """origin: the stream whose tokens these are; empty for a text of a person's own."""
        if given is None or not (given.whole or given.before) or self.source is None or self.source.score is None:
            return
        scoring, kept = self.source.score(given), len(given.before) + len(given.after)

        async def begin() -> None:
            label = await self._sent(scoring)
            if label is None:
                return
            sentence = f"stream {label}"
            if origin:
                self.branches.scores[label] = origin
                new = ", the rest cut anew" if given.text else ""
                sentence += f" scores {kept} tokens of {origin} as they are{new}; {self.keys.sign('compare')} compares"
            self.say(sentence)

        self.run_worker(begin())

    async def _deliver(self, sending: Awaitable[str]) -> None:
        label = await self._sent(sending)
        if label is not None:
            self.say(f"stream {label}")

    def action_cancel(self) -> None:
        """End an own stream."""
        stream = self.view.current
        if stream is None or self.source is None:
            self.say("no stream to end" if stream is None else "a file has no running streams")
            return
        if stream.ended is not None:
            self.say(f"stream {stream.label} is over already")
            return
        self.source.cancel(stream.label)
        self.say(f"asked for the end of {stream.label}; only streams that were begun here can be ended")


def _wrong(text: str) -> str:
    try:
        request_of(text)
    except LmtoolError as error:
        return error.message
    return ""
