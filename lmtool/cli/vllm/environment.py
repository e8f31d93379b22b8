"""Whether a Python's environment can run a vLLM worker."""

from __future__ import annotations

from lmtool.errors import ResourceError
from lmtool.subprocesses.foreign_python import probe

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


def check(python: str) -> None:
    """Raise `ResourceError` where this program is no Python, is too old, or lacks what a worker imports."""
    found = probe(python, NEEDED, INSTALL)
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
