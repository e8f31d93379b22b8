"""Actions that ask a server: branches, prompts, scores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.errors import LmtoolError
from lmtool.tui import branching
from lmtool.tui.actions.watching import Watching
from lmtool.tui.prompting import request_of, score_of
from lmtool.tui.runs import visible
from lmtool.tui.screens.asking import AskScreen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from lmtool.types import GenerateRequest

ENOUGH = 200
"""Prompts that are kept for the up key."""


class Asking(Watching):
    """Part of the app. Requests go out on the inspector's own connection, never on one that is watched."""

    def action_branch(self) -> None:
        """Go on from an alternative."""
        self._branch(branching.branch, 1, "")

    def action_bias_out(self) -> None:
        """Go on without an alternative."""
        self._branch(branching.ruled_out, 0, "not ")

    def _branch(self, make: Callable[..., GenerateRequest], more: int, lead: str) -> None:
        found = self._alternative() if self._can_ask() else None
        if found is None:
            return
        view, (row, token) = self.view, found
        parent = view.state.streams[view.state.tokens.streams[row]]
        position = view.position(row)
        try:
            request = make(view, row, token)
        except LmtoolError as error:
            self._tell(error)
            return

        async def begin() -> None:
            assert self.source is not None
            assert self.source.generate is not None
            label = await self._sent(self.source.generate(request))
            if label is not None:
                self.branches.add(parent.label, position + more, label, f"{lead}{view.state.text_of(token)}")
                key = self.keys.sign("tree")
                self.say(f"stream {label} goes on from {parent.label} at token {position}; {key} shows the tree")

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
            self._tell(error)
            return None
        self.wanted = label
        self.back_again()
        return label

    def _tell(self, error: LmtoolError) -> None:
        self.say("  ".join([error.message, *error.hints]), warning=True)

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
        prompt = "" if stream is None else visible(self.view.state.prompt_text(stream)).replace("=>", " ").strip()
        hint = "PROMPT => TEXT gives each token of TEXT its logprob after PROMPT; without => the whole text is scored."
        value = f"{prompt[-200:]} => " if prompt else ""
        self.push_screen(AskScreen("Score", hint, self.looks, value=value), self._send_score)

    def _send_score(self, text: str | None) -> None:
        if text and self.source is not None and self.source.score is not None:
            self.run_worker(self._deliver(self.source.score(score_of(text))))

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
