"""The program of a helper: calls functions that it is sent, one after the other, until nobody sends any.

What goes over stdin and stdout is eight bytes, a length, and so many bytes of pickle: on stdin a function
that takes nothing and the seconds that it may take; on stdout whether it returned, and what it returned or raised.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import traceback
from typing import IO, TYPE_CHECKING, Any

from lmtool.helpers.background import step_back
from lmtool.helpers.memory import LARGE, release_memory

if TYPE_CHECKING:
    from collections.abc import Callable


def main() -> None:
    """Answer until stdin ends."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    step_back()
    gc.disable()  # what is read is a tree of up to a million parts, through which it would go again and again
    with contextlib.suppress(EOFError):
        while True:
            if _serve(questions, answers) >= LARGE:
                gc.collect()
                gc.freeze()  # what is left are modules, through which the next collection need not go
                release_memory()


def _serve(questions: IO[bytes], answers: IO[bytes]) -> int:
    """Answer one question; how many bytes it has."""
    question = _message(questions)
    function, seconds = pickle.loads(question)  # noqa: S301  # from our own process
    _give_up_after(seconds)
    answer = _answer(function)
    _give_up_after(0)
    send(answers, answer)
    return len(question)


def send(pipe: IO[bytes], message: Any) -> None:  # noqa: ANN401  # whatever can be pickled
    """Write a message."""
    data = message if isinstance(message, bytes) else pickle.dumps(message)
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:  # noqa: ANN401  # whatever was sent
    """Read a message. Raises `EOFError` where there is none, or none that is whole."""
    return pickle.loads(_message(pipe))  # noqa: S301  # from our own process


def _message(pipe: IO[bytes]) -> bytes:
    return _exactly(pipe, int.from_bytes(_exactly(pipe, 8), "little"))


def _exactly(pipe: IO[bytes], count: int) -> bytes:
    data = pipe.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _answer(function: Callable[[], object]) -> bytes:
    try:
        return pickle.dumps((True, function()))
    except Exception as problem:  # noqa: BLE001  # it is the caller's
        problem.add_note(f"in a helper:\n{traceback.format_exc()}")
        return pickle.dumps((False, problem))


def _give_up_after(seconds: float) -> None:
    """End this process then, even where the one that would kill it is gone and a library hangs; 0: never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
