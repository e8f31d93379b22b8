"""The commands of a conversation: names, one line on each, what Tab completes; a line that is one is run."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from lmtool.core.errors import UsageError
from lmtool.core.types import LogprobsMode
from lmtool.settings.prompt_parameters import TYPED_PARAMETERS
from lmtool.terminal.chat.attachments import path_suggestions
from lmtool.terminal.chat.conversation import Conversation
from lmtool.terminal.chat.heat import MODES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from lmtool.terminal.chat.conversation import Reply


@dataclass(frozen=True, slots=True)
class Command:
    """A word that begins with `/`."""

    name: str
    argument: str
    """What may stand behind it, for people."""
    summary: str
    """At most 42 characters: a line of `/help` fits into 60 columns."""
    run: Callable[[Conversation, str], Reply]
    idle: bool = False
    """True if no answer may be running."""
    aliases: tuple[str, ...] = ()


COMMANDS = (
    Command("/help", "", "this list", lambda _conversation, _rest: HELP, aliases=("/?",)),
    Command("/model", "NAME", "use another model; alone: list them", Conversation.model, idle=True),
    Command("/system", "TEXT", "set the system prompt; alone: remove it", Conversation.system),
    Command("/set", "NAME VALUE", "set a parameter; alone: list what is set", Conversation.set),
    Command("/retry", "", "answer again; NAME=VALUE may stand behind", Conversation.retry, idle=True),
    Command("/edit", "", "change the last prompt in $EDITOR, send it", Conversation.edit, idle=True),
    Command("/continue", "", "go on with the last answer", Conversation.go_on, idle=True),
    Command("/branch", "N", "go on behind turn N; alone: show the turns", Conversation.branch, idle=True),
    Command("/reset", "", "begin anew, without the turns so far", Conversation.reset),
    Command("/save", "FILE", "write a .md, .json or .lmtp.jsonl file", Conversation.save, idle=True),
    Command("/load", "N or FILE", "go on with a conversation; alone: list", Conversation.load, idle=True),
    Command("/heat", "MODE", f"colours: {', '.join(MODES)}", Conversation.heat),
    Command("/markdown", "", "draw answers as Markdown, on or off", Conversation.markdown),
    Command("/stats", "", "timings after each answer, on or off", Conversation.stats),
    Command("/quit", "", "leave, as quit, exit and Ctrl-D do", Conversation.quit, aliases=("/exit", "/q")),
)
"""In the order of `/help`."""

KEYS = """\
Tab completes commands, models, parameters, @files
Up, Ctrl-R       earlier prompts; a search in them
Alt-Enter        a new line, as \\ at a line's end
Ctrl-X Ctrl-E    this line in $EDITOR
Ctrl-C           cancel answers, or the line
@FILE            puts a file into the prompt; @@ is @
NAME=VALUE       at a prompt's end: for it alone
//TEXT           a prompt that begins with /
The next prompt can be sent while answers are running."""

HELP: str = "\n".join([*(f"{f'{c.name} {c.argument}':<16} {c.summary}" for c in COMMANDS), KEYS])
"""What `/help` shows."""

_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
_VALUES = {"ignore_eos": ("true", "false"), "logprobs_mode": get_args(LogprobsMode)}


def run_command(conversation: Conversation, line: str, running: Sequence[int] = ()) -> Reply | None:
    """Run a line that is a command; None for a prompt. running: numbers of the answers that are.

    Raises `UsageError`, and then nothing has changed.
    """
    word, _, rest = line.strip().partition(" ")
    if line.strip() in {"quit", "exit"}:
        word = "/quit"
    if not word.startswith("/") or word.startswith("//"):
        return None
    command = _BY_NAME.get(word)
    if command is None:
        near = difflib.get_close_matches(word, _BY_NAME, n=1)
        hint = f"did you mean {near[0]}?  /help lists all" if near else "/help lists them"
        raise UsageError(f"no command is called {word}", f"{hint}; //... sends a text that begins with /")
    if running and command.idle:
        answers = f"answer {running[0]} is" if len(running) == 1 else f"{len(running)} answers are"
        raise UsageError(f"{word} has to wait: {answers} running", "Ctrl-C cancels what runs")
    return command.run(conversation, rest.strip())


def completions(line: str, models: Iterable[str] = ()) -> Iterator[str]:
    """What may replace the last word of a line before the cursor. models: names that `/model` can use."""
    first, *more = line.split(" ")
    last = more[-1] if more else first
    if not more and first.startswith("/"):
        return (f"{name} " if c.argument else name for name, c in _BY_NAME.items() if name.startswith(first))
    if last.startswith("@") and not last.startswith("@@"):
        return (f"@{path}" for path in path_suggestions(last[1:]))
    if first in _BY_NAME and len(more) == 1:
        return _arguments(_BY_NAME[first].name, last, models)
    command = _BY_NAME.get(first)
    if not more or (command is not None and command.name not in {"/retry", "/continue"}):
        return iter(())
    return _parameters(last)


def last_word(line: str) -> str:
    """The part of a line before the cursor that `completions` replaces."""
    return line.rpartition(" ")[2]


def _arguments(command: str, word: str, models: Iterable[str]) -> Iterator[str]:
    if command in {"/save", "/load"}:
        return path_suggestions(word)
    if command in {"/retry", "/continue"}:
        return _parameters(word)
    words: dict[str, Iterable[str]] = {
        "/set": TYPED_PARAMETERS,
        "/heat": (*MODES, "off"),
        "/stats": ("on", "off"),
        "/markdown": ("on", "off"),
        "/model": models,
    }
    return (each for each in words.get(command, ()) if each.startswith(word))


def _parameters(word: str) -> Iterator[str]:
    """Names of parameters with their `=`, and values of those that have few."""
    name, equals, value = word.partition("=")
    if equals:
        return (f"{name}={each}" for each in _VALUES.get(name, ()) if each.startswith(value))
    return (f"{each}=" for each in TYPED_PARAMETERS if re.match(r"\w", word) and each.startswith(word))
