"""Describes the environment of another Python by running it, without importing anything from there."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import ResourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SECONDS = 60.0
"""For an answer: an environment on a network's disk takes its time."""
_PROGRAM = (
    "import json, sys; sys.path = [entry for entry in sys.path if entry]; from importlib.util import find_spec; "
    "print(json.dumps([sys.version_info[:3], [name for name in sys.argv[1:] if find_spec(name) is None]]))"
)
"""The working folder does not count: a clone of an engine's repository may lie in it."""


@dataclass(frozen=True, slots=True)
class ForeignPython:
    """A Python, as it describes itself."""

    version: tuple[int, ...]
    missing: list[str]
    """Requested modules that it does not find."""


def probe(python: str, modules: Sequence[str], hint: str) -> ForeignPython:
    """Run a Python and see which modules it lacks. Raises `ResourceError` with the hint where that fails."""
    try:
        done = subprocess.run(  # noqa: S603  # the program that the user names
            [python, "-c", _PROGRAM, *modules], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        version, missing = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ResourceError(f"{python!r} does not run as a Python: {_reason(error)}", hint) from None
    return ForeignPython(tuple(version), missing)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr).strip().rpartition("\n")[2] or f"exit status {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {error.timeout:g} s"
    return str(error.strerror) if isinstance(error, OSError) else "its answer makes no sense"
