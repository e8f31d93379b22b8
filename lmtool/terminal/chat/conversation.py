"""A conversation's state: its turns and the options of the next prompt; what its commands change, and ask for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from lmtool.core.errors import UsageError
from lmtool.settings.prompt_parameters import TYPED_PARAMETERS, near_miss, parse_option, split_prompt
from lmtool.terminal.chat.heat import ALTERNATIVES, MODES
from lmtool.terminal.chat.turns import Turn, TurnTree

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.core.types import ChatMessage, ModelInfo
    from lmtool.terminal.chat.options import OutputOptions
    from lmtool.terminal.chat.prompt import RequestOptions


@dataclass(frozen=True, slots=True)
class SendAgain:
    """Send a turn's prompt again, in its place, or go on with its answer."""

    turn: Turn
    values: Mapping[str, object] = field(default_factory=dict)
    """Parameters that were typed for it."""
    prefill: str = ""
    """The answer so far, which is gone on with; empty: a new answer."""


@dataclass(frozen=True, slots=True)
class EditPrompt:
    """Open the last prompt in an editor, and send it in place of the last turn."""

    turn: Turn | None


@dataclass(frozen=True, slots=True)
class UseModel:
    """Use another model; None: list them."""

    name: str | None


@dataclass(frozen=True, slots=True)
class SaveConversation:
    """Write the conversation into a file."""

    path: Path


@dataclass(frozen=True, slots=True)
class LoadConversation:
    """Go on with another conversation: a file's, or the one of this number; None: list them."""

    path: Path | None = None
    number: int | None = None


Action: TypeAlias = SendAgain | EditPrompt | UseModel | SaveConversation | LoadConversation
"""What a command asks of the loop around the conversation, which has the model, the terminal and the disk."""
Reply: TypeAlias = str | Action
"""Text to show, or an action."""


@dataclass(slots=True)
class Conversation:
    """Turns so far and settings. A command returns the text to show, or what is to be done."""

    requests: RequestOptions
    display: OutputOptions
    info: ModelInfo
    tree: TurnTree = field(default_factory=TurnTree)
    finished: bool = False
    """True if the user has asked to leave."""

    @property
    def history(self) -> list[ChatMessage]:
        """The turns before the next prompt as messages; empty for a model that is sent each prompt alone."""
        return self.tree.messages() if self.requests.templated(self.info) else []

    def remember(self, turn: Turn) -> Turn:
        """Add a turn whose answer has ended; returned as it was added."""
        return self.tree.add(replace(turn, system=self.requests.system, model=self.info.model))

    def take(self, tree: TurnTree) -> None:
        """Go on with the turns of another conversation, and with its system text where none is set."""
        self.tree = tree
        system = None if tree.last is None else tree.last.system
        if system and not self.requests.system and self.requests.templated(self.info):
            self.requests = replace(self.requests, system=system)

    def use_model(self, name: str, info: ModelInfo) -> None:
        """Send the next prompts to another model. Raises `UsageError` where it has no place for the system text."""
        if self.requests.system and not self.requests.templated(info):
            raise UsageError(
                f"{info.model} has no chat template, so no place for the system prompt", "/system removes it"
            )
        self.requests, self.info = replace(self.requests, model=name), info

    def set(self, rest: str) -> str:
        """Set a parameter of all prompts; list them."""
        if not rest:
            return "\n".join(f"{k} = {v}" for k, v in self.requests.parameters.items()) or "nothing is set"
        name, value = _assignment(rest)
        others = {k: v for k, v in self.requests.parameters.items() if k != name}
        self.requests = replace(self.requests, parameters=others if value is None else {**others, name: value})
        return f"{name} = {value}" if value is not None else f"{name} is back at its default"

    def system(self, rest: str) -> str:
        """Set or remove the system prompt."""
        if rest and not self.requests.templated(self.info):
            raise UsageError(
                "the model has no chat template, so there is no place for a system prompt", "put it into the prompt"
            )
        self.requests = replace(self.requests, system=rest or None)
        return f"system: {rest}" if rest else "no system prompt"

    def model(self, rest: str) -> Reply:
        """Use another model; list them."""
        return UseModel(rest or None)

    def retry(self, rest: str) -> Reply:
        """Send the last prompt again."""
        typed = split_prompt(rest)
        if typed.text.strip():
            raise UsageError(
                f"/retry takes parameters only, and {typed.text!r} is none", "such as /retry temperature=0.8"
            )
        return SendAgain(self._last("to send again"), typed.values)

    def go_on(self, rest: str) -> Reply:
        """Go on with the last answer."""
        typed = split_prompt(rest)
        if typed.text.strip():
            raise UsageError(f"/continue takes parameters only, and {typed.text!r} is none", "such as max_tokens=200")
        turn = self._last("to go on with")
        if not turn.answer:
            raise UsageError(
                "the last answer is empty: there is nothing to go on with", "/retry sends its prompt again"
            )
        return SendAgain(turn, typed.values, turn.answer)

    def edit(self, rest: str) -> Reply:
        """Edit the last prompt."""
        if rest:
            raise UsageError("/edit takes nothing behind it", "it opens the last prompt; Ctrl-X Ctrl-E opens this line")
        return EditPrompt(self.tree.last)

    def branch(self, rest: str) -> str:
        """Go on behind an earlier turn; show all turns."""
        if not rest:
            return self._outline() or "there are no turns yet"
        if not rest.isascii() or not rest.isdigit() or not self.tree.go_to(int(rest)):
            numbers = ", ".join(map(str, sorted(self.tree.turns)[-20:])) or "none yet"
            raise UsageError(f"no turn has the number {rest}", f"turns: {numbers}; 0 is the beginning")
        turn = self.tree.last
        return (
            "goes on from the beginning"
            if turn is None
            else f"goes on behind turn {turn.number}: {_short(turn.prompt)}"
        )

    def reset(self, _rest: str) -> str:
        """Begin anew."""
        turns = len(self.tree.path())
        self.tree.go_to(0)
        return f"forgot {turns} turn{'s' * (turns != 1)}" + ("  (/branch shows them)" if turns else "")

    def save(self, rest: str) -> Reply:
        """Write the conversation into a file."""
        if not rest:
            raise UsageError(
                "/save needs the name of a file", "talk.md, talk.json, or talk.lmtp.jsonl with every token"
            )
        return SaveConversation(Path(rest).expanduser())

    def load(self, rest: str) -> Reply:
        """Go on with another conversation; list them."""
        if rest.isascii() and rest.isdigit():
            return LoadConversation(number=int(rest))
        return LoadConversation(Path(rest).expanduser() if rest else None)

    def heat(self, rest: str) -> str:
        """Colour tokens by how likely they were."""
        if rest == "off":
            self.display = replace(self.display, heat=None)
            return "no heat"
        mode = next((mode for mode in MODES if mode == (rest or MODES[0])), None)
        if mode is None:
            raise UsageError(f"no heat mode is called {rest!r}", f"modes: {', '.join(MODES)}, off")
        self.display = replace(self.display, heat=mode, markdown=False)
        parameters = self.requests.parameters
        if parameters.get("top_logprobs", 1) < ALTERNATIVES[mode]:
            self.requests = replace(self.requests, parameters={**parameters, "top_logprobs": ALTERNATIVES[mode]})
        return f"heat: {mode}"

    def markdown(self, rest: str) -> str:
        """Draw answers as Markdown."""
        on = _switched(rest, now=self.display.markdown)
        self.display = replace(self.display, markdown=on, heat=None if on else self.display.heat)
        return f"markdown {'on' if on else 'off'}"

    def stats(self, rest: str) -> str:
        """Show timings after each answer."""
        self.display = replace(self.display, stats=_switched(rest, now=self.display.stats))
        return f"stats {'on' if self.display.stats else 'off'}"

    def quit(self, _rest: str) -> str:
        """Leave."""
        self.finished = True
        return ""

    def _last(self, purpose: str) -> Turn:
        turn = self.tree.last
        if turn is None:
            raise UsageError(f"there is no prompt {purpose} yet", "send one, or /load an earlier conversation")
        return turn

    def _outline(self) -> str:
        lines = []
        for turn, indent, on_path in self.tree.outline():
            mark = "*" if turn.number == self.tree.head else "·" if on_path else " "
            lines.append(f"{mark} {indent}{turn.number}  {_short(turn.prompt, 28)} → {_short(turn.answer, 24)}")
        return "\n".join([*lines, "/branch N goes on behind turn N, 0: from the beginning"] if lines else [])


def _switched(word: str, *, now: bool) -> bool:
    return word == "on" or (word != "off" and not now)


def _short(text: str, most: int = 48) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _assignment(rest: str) -> tuple[str, object | None]:
    """Read `temperature 0.7`, `temperature=0.7`, or `temperature default`."""
    name, separator, value = rest.partition("=") if "=" in rest.split(maxsplit=1)[0] else rest.partition(" ")
    name, value = name.strip().replace("-", "_"), value.strip()
    if name in TYPED_PARAMETERS and value == "default":
        return name, None
    if name in TYPED_PARAMETERS and not separator:
        raise UsageError(f"/set {name} needs a value", f"expected {TYPED_PARAMETERS[name].expected}, or default")
    if name not in TYPED_PARAMETERS:
        hint = near_miss(f"{name}={value}")
        names = f"parameters: {', '.join(sorted(TYPED_PARAMETERS))}"
        raise UsageError(f"no parameter is called {name!r}", *([hint] if hint else []), names)
    return parse_option(f"{name}={value}")
