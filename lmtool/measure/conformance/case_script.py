"""Scripts of cases: one step a line, read into data, with variables such as `$prompt` filled in when a step is done.

Steps of server cases (the suite is the client):

    > FRAME                 send a text frame
    fragments FRAME         send it as three fragments
    bytes HEX               send a binary message
    times N FRAME           send N frames; `$n` counts from 1
    ping                    send a ping and wait for its pong
    wait end ID...          until each of these streams has ended
    wait tokens ID N        until a stream has N tokens
    wait answer ID...       until each of these requests has its MSG
    wait error              until a MSG error with `"stream_id": null` has come
    wait close              until the server has closed the connection
    wait idle N             ask at most N times, until the server says that no stream runs
    fence                   MODEL_INFO and its answer: what was asked before has been read
    connect NAME [HEADER]   open one more connection and speak on it
    on NAME                 speak on another connection
    leave                   cut the connection
    hold, read              stop reading; go on reading
    get PATH                a plain HTTP GET

Of a stream N, `$tokens(N)` are the ids, `$first(N)` the first of them, `$after(N)` the prompt and these, `$begins(N)`
the first text, `$seed(N)` the seed that was told.

Steps of client cases (the suite is the server; they are done for each GENERATE or SCORE):

    < FRAME                 send a text frame
    fragments FRAME         send it as three fragments
    ping                    send a ping and wait for its pong
    drop                    cut the connection
    close CODE              close it in good order
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_VARIABLE = re.compile(r"\$([a-z_]+)(?:\(([^)]*)\))?")

SERVER_STEPS = {
    ">", "fragments", "bytes", "times", "ping", "wait end", "wait tokens", "wait answer", "wait error", "wait close",
    "wait idle", "fence", "connect", "on", "leave", "hold", "read", "get",
}  # fmt: skip
CLIENT_STEPS = {"<", "fragments", "ping", "drop", "close"}
_ALONE = {"ping", "wait error", "wait close", "fence", "leave", "hold", "read", "drop"}


class ScriptError(ValueError):
    """A line is no step; the message says why."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a script."""

    verb: str
    rest: str
    """What stands behind the verb; may hold variables."""

    def __str__(self) -> str:
        """The line."""
        return f"{self.verb} {self.rest}".rstrip()

    @property
    def variables(self) -> set[str]:
        """Names of the variables in it."""
        return {name for name, _ in _VARIABLE.findall(self.rest)}

    def filled(self, value: Callable[[str, str], str]) -> str:
        """`rest` with each variable replaced by `value(name, argument)`; the argument is "" where there is none."""
        return _VARIABLE.sub(lambda match: value(match[1], match[2] or ""), self.rest)


def parse(text: str, verbs: set[str]) -> tuple[Step, ...]:
    """The steps of a script. Raises `ScriptError`."""
    return tuple(_step(line.strip(), verbs) for line in text.splitlines() if line.strip())


def _step(line: str, verbs: set[str]) -> Step:
    word, _, rest = line.partition(" ")
    if word == "wait":
        what, _, rest = rest.partition(" ")
        word = f"wait {what}"
    if word not in verbs:
        raise ScriptError(f"{line!r} is no step; expected one of: {', '.join(sorted(verbs))}")
    if (word in _ALONE) == bool(rest.strip()):
        raise ScriptError(f"{line!r}: {word!r} stands {'alone' if word in _ALONE else 'before something'}")
    return Step(word, rest.strip())


def ids(text: str) -> list[object]:
    """The stream ids of a `wait`: JSON values with spaces between them. Raises `ScriptError`."""
    import json

    decoder, values, place = json.JSONDecoder(), [], 0
    while place < len(text):
        try:
            value, place = decoder.raw_decode(text, place)
        except ValueError as error:
            raise ScriptError(f"{text!r} are no stream ids: {error}") from None
        values.append(value)
        place += len(text[place:]) - len(text[place:].lstrip())
    return values


def words(text: str) -> list[str]:
    """Words of a step, quotes kept together."""
    return shlex.split(text)
