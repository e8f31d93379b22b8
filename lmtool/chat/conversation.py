"""A conversation's state: its turns, the options of the next prompt, and the commands that change them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from lmtool.chat.heat import ALTERNATIVES, MODES, HeatMode
from lmtool.errors import UsageError
from lmtool.prompt_parameters import TYPED_PARAMETERS, near_miss, parse_option
from lmtool.types import ChatMessage, ModelInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from lmtool.chat.options import OutputOptions
    from lmtool.chat.prompt import RequestOptions

HELP = """\
/set NAME VALUE  set a parameter for all prompts, such as temperature 0.7;
                 VALUE `default` resets it; /set alone lists them
/system TEXT     set the system prompt; without TEXT remove it
/heat MODE       colour by prob, surprisal, entropy or rank; off
/stats           statistics after each answer, on or off
/reset           forget all turns
/quit            leave, like quit, exit and Ctrl-D on an empty line
//TEXT           send a prompt that begins with /
Words like max_tokens=5 at the end of a prompt apply to that prompt.
Tab completes commands and parameters; Ctrl-C cancels running answers.
You can send the next prompt while answers are still running."""


@dataclass(slots=True)
class Conversation:
    """Turns so far and settings. A command returns the text to show."""

    requests: RequestOptions
    display: OutputOptions
    info: ModelInfo
    history: list[ChatMessage] = field(default_factory=list)
    finished: bool = False
    """Whether the user has asked to leave."""

    def command(self, line: str) -> str | None:
        """Run a line that is a command; None for a prompt. Raises `UsageError`, and then nothing has changed."""
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
        if answer and self.requests.templated(self.info):
            self.history += [ChatMessage("user", prompt), ChatMessage("assistant", answer)]

    def forget_oldest(self) -> bool:
        """Drop the oldest turn. Returns whether there was one."""
        had = bool(self.history)
        del self.history[:2]
        return had

    def _help(self, _rest: str) -> str:
        return HELP

    def _set(self, rest: str) -> str:
        if not rest:
            return "\n".join(f"{k} = {v}" for k, v in self.requests.parameters.items()) or "nothing is set"
        name, value = _assignment(rest)
        others = {k: v for k, v in self.requests.parameters.items() if k != name}
        self.requests = replace(self.requests, parameters=others if value is None else {**others, name: value})
        return f"{name} = {value}" if value is not None else f"{name} is back at its default"

    def _system(self, rest: str) -> str:
        if rest and not self.requests.templated(self.info):
            raise UsageError(
                "the model has no chat template, so there is no place for a system prompt", "put it into the prompt"
            )
        self.requests = replace(self.requests, system=rest or None)
        return f"system: {rest}" if rest else "no system prompt"

    def _heat(self, rest: str) -> str:
        if rest == "off":
            self.display = replace(self.display, heat=None)
            return "no heat"
        mode = _mode(rest or MODES[0])
        self.display = replace(self.display, heat=mode)
        parameters = self.requests.parameters
        if parameters.get("top_logprobs", 1) < ALTERNATIVES[mode]:
            self.requests = replace(self.requests, parameters={**parameters, "top_logprobs": ALTERNATIVES[mode]})
        return f"heat: {mode}"

    def _stats(self, rest: str) -> str:
        self.display = replace(self.display, stats=rest == "on" or (rest != "off" and not self.display.stats))
        return f"stats {'on' if self.display.stats else 'off'}"

    def _reset(self, _rest: str) -> str:
        turns = len(self.history) // 2
        self.history.clear()
        return f"forgot {turns} turn{'s' * (turns != 1)}"

    def _quit(self, _rest: str) -> str:
        self.finished = True
        return ""

    _COMMANDS: ClassVar[dict[str, Callable[[Conversation, str], str]]] = {
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
    if name in TYPED_PARAMETERS and value == "default":
        return name, None
    if name in TYPED_PARAMETERS and not separator:
        raise UsageError(f"/set {name} needs a value", f"expected {TYPED_PARAMETERS[name].expected}, or default")
    if name not in TYPED_PARAMETERS:
        hint = near_miss(f"{name}={value}")
        names = f"parameters: {', '.join(sorted(TYPED_PARAMETERS))}"
        raise UsageError(f"no parameter is called {name!r}", *([hint] if hint else []), names)
    return parse_option(f"{name}={value}")


def completions(line: str) -> Iterator[str]:
    """What may replace the last word of a line before the cursor: commands, parameters of `/set`, modes of `/heat`."""
    *before, last = line.split(" ")
    words: Iterable[str] = {
        (): Conversation._COMMANDS if last.startswith("/") else (),  # noqa: SLF001 - its own room
        ("/set",): TYPED_PARAMETERS,
        ("/heat",): (*MODES, "off"),
    }.get(tuple(before), ())
    return (word for word in words if word.startswith(last))


def _mode(word: str) -> HeatMode:
    for mode in MODES:
        if mode == word:
            return mode
    raise UsageError(f"no heat mode is called {word!r}", f"modes: {', '.join(MODES)}, off")
