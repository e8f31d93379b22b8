"""A conversation's state: what was said, how the next prompt is asked, and the commands that change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from lmtool.cli.talking.asking import Asking
from lmtool.cli.talking.heat import ALTERNATIVES, MODES, HeatMode
from lmtool.cli.talking.parameters import FIELDS, near_miss, parse_option
from lmtool.cli.talking.showing import Showing
from lmtool.errors import UsageError
from lmtool.types import ChatMessage, ModelInfo

HELP = """\
/set NAME VALUE  a parameter for all prompts, such as temperature 0.7
                 VALUE `default` forgets it; /set alone: all that is set
/system TEXT     a system text; without TEXT none
/heat MODE       colour by prob, surprisal, entropy or rank; off
/stats           figures behind each answer, on or off
/reset           forget what was said
/quit            leave, like quit, exit and Ctrl-D on an empty line
//TEXT           a prompt that begins with /
Words like max_tokens=5 at a prompt's end hold for that prompt.
Ctrl-C cancels the running answers.
The next prompt can be sent while answers run."""


@dataclass(slots=True)
class Conversation:
    """Turns so far and settings. Commands return what to tell the user."""

    asking: Asking
    showing: Showing
    info: ModelInfo
    history: list[ChatMessage] = field(default_factory=list)
    left: bool = False
    """Whether the user wants to leave."""

    def command(self, line: str) -> str | None:
        """Obey a line that is a command; None where it is a prompt. Raises `UsageError`, with nothing changed."""
        word, _, rest = line.strip().partition(" ")
        if line.strip() in {"quit", "exit"}:
            word = "/quit"
        if not word.startswith("/") or word.startswith("//"):
            return None
        action = self._COMMANDS.get(word)
        if action is None:
            raise UsageError(f"no command is called {word}", "/help lists them; //... sends a text that begins with /")
        return action(self, rest.strip())

    def remember(self, prompt: str, answer: str) -> None:
        """Add a turn, for models that are sent messages."""
        if answer and self.asking.templated(self.info):
            self.history += [ChatMessage("user", prompt), ChatMessage("assistant", answer)]

    def forget_oldest(self) -> bool:
        """Drop the oldest turn; whether there was one."""
        had = bool(self.history)
        del self.history[:2]
        return had

    def _help(self, _rest: str) -> str:
        return HELP

    def _set(self, rest: str) -> str:
        if not rest:
            said = [f"{name} = {value}" for name, value in self.asking.said.items()]
            return "\n".join(said) if said else "nothing is set"
        name, value = _assignment(rest)
        said_now: Mapping[str, object] = {k: v for k, v in self.asking.said.items() if k != name}
        if value is not None:
            said_now = {**said_now, name: value}
        self.asking = replace(self.asking, said=said_now)
        return f"{name} = {value}" if value is not None else f"{name} is back at its default"

    def _system(self, rest: str) -> str:
        if rest and not self.asking.templated(self.info):
            raise UsageError(
                "there is no chat template, so there is no place for a system text", "put it into the prompt"
            )
        self.asking = replace(self.asking, system=rest or None)
        return f"system: {rest}" if rest else "no system text"

    def _heat(self, rest: str) -> str:
        if rest == "off":
            self.showing = replace(self.showing, heat=None)
            return "no heat"
        mode = _mode(rest or MODES[0])
        self.showing = replace(self.showing, heat=mode)
        wanted = ALTERNATIVES[mode]
        if self.asking.said.get("top_logprobs", 1) < wanted:
            self.asking = replace(self.asking, said={**self.asking.said, "top_logprobs": wanted})
        return f"heat: {mode}"

    def _stats(self, rest: str) -> str:
        self.showing = replace(self.showing, stats=rest == "on" or (rest != "off" and not self.showing.stats))
        return f"stats {'on' if self.showing.stats else 'off'}"

    def _reset(self, _rest: str) -> str:
        turns = len(self.history) // 2
        self.history.clear()
        return f"forgot {turns} turn{'s' * (turns != 1)}"

    def _quit(self, _rest: str) -> str:
        self.left = True
        return ""

    _COMMANDS: ClassVar[Mapping[str, Callable[[Conversation, str], str]]] = {
        "/help": _help,
        "/?": _help,
        "/set": _set,
        "/system": _system,
        "/heat": _heat,
        "/stats": _stats,
        "/reset": _reset,
        "/quit": _quit,
        "/exit": _quit,
        "/q": _quit,
    }


def _assignment(rest: str) -> tuple[str, object | None]:
    """Read `temperature 0.7`, `temperature=0.7`, or `temperature default`."""
    name, separator, value = rest.partition("=") if "=" in rest.split(maxsplit=1)[0] else rest.partition(" ")
    name, value = name.strip().replace("-", "_"), value.strip()
    if name in FIELDS and value == "default":
        return name, None
    if name in FIELDS and not separator:
        raise UsageError(f"/set {name} needs a value", f"expected {FIELDS[name].expected}, or default")
    if name not in FIELDS:
        hint = near_miss(f"{name}={value}")
        known = f"parameters: {', '.join(sorted(FIELDS))}"
        raise UsageError(f"no parameter is called {name!r}", *([hint] if hint else []), known)
    return parse_option(f"{name}={value}")


def _mode(word: str) -> HeatMode:
    for mode in MODES:
        if mode == word:
            return mode
    raise UsageError(f"no heat mode is called {word!r}", f"modes: {', '.join(MODES)}, off")
