"""Whether a Python's environment can run a vLLM worker, found out by asking it, without importing vLLM."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from lmtool.errors import ResourceError

OLDEST = (3, 11)
"""The oldest Python that this package runs on."""
VLLM = "vllm"
NEEDED = (
    VLLM,
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "msgspec",
    "starlette",
    "jinja2",
    "llguidance",
    "jsonschema",
)
"""Modules that a worker imports; vLLM itself requires all the others."""
INSTALL = "pip install vllm in an environment of its own, then:  --backend vllm --backend-python ENV/bin/python"
_SECONDS = 60.0
"""For an answer: an environment on a network's disk takes its time."""
_PROGRAM = (
    "import json, sys; sys.path = [entry for entry in sys.path if entry]; from importlib.util import find_spec; "
    "print(json.dumps([sys.version_info[:3], [name for name in sys.argv[1:] if find_spec(name) is None]]))"
)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a Python tells of itself."""

    version: tuple[int, ...]
    missing: list[str]
    """Modules of `NEEDED` that it does not find."""


def check(python: str) -> None:
    """Raise `ResourceError` where this program is no Python, is too old, or lacks what a worker imports."""
    found = probe(python)
    version = ".".join(map(str, found.version))
    if found.version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ResourceError(
            f"--backend-python {python!r} is Python {version}, and workers need {oldest} or newer", INSTALL
        )
    if VLLM in found.missing:
        raise ResourceError(f"there is no vLLM in the environment of --backend-python {python!r}", INSTALL)
    if found.missing:
        names = " ".join(found.missing)
        raise ResourceError(
            f"vLLM's environment lacks what vLLM itself requires: {names}",
            f"install it:  {python} -m pip install {names}",
        )


def probe(python: str) -> ProbeResult:
    """What this program tells. Raises `ResourceError` for one that is no Python."""
    try:
        done = subprocess.run(  # noqa: S603  # the program that the user names
            [python, "-c", _PROGRAM, *NEEDED], capture_output=True, text=True, timeout=_SECONDS, check=True
        )
        version, missing = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise ResourceError(
            f"--backend-python {python!r} does not run as a Python: {_reason(error)}", INSTALL
        ) from None
    return ProbeResult(tuple(version), missing)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return str(error.stderr).strip().rpartition("\n")[2] or f"exit status {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer within {error.timeout:g} s"
    return str(error) if isinstance(error, OSError) else "its answer makes no sense"
