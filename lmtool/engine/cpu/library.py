"""The C kernels as Python calls them: structures and signatures."""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, Structure, c_char_p, c_float, c_int64, c_void_p
from typing import TYPE_CHECKING

from lmtool.engine.cpu.compiler import ADVICE, compiled
from lmtool.errors import ResourceError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

FLOAT32, BFLOAT16, INT8 = range(3)
"""What weights are stored as."""

STORE, ADD, GATED, GELU = range(4)
"""What becomes of a product: it is stored, added, goes through SiLU gates, or through the tanh-GELU."""


class CProduct(Structure):
    """`Product` of kernels.c."""

    _fields_ = [
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("sums", c_void_p),
        ("bias", c_void_p),
        ("inputs", c_int64),
        ("outputs", c_int64),
        ("kind", c_int64),
    ]


class CLayer(Structure):
    """`Layer` of kernels.c."""

    _fields_ = [
        ("norm", c_void_p),
        ("norm_bias", c_void_p),
        ("qkv", CProduct),
        ("head_norm", c_void_p),
        ("output", CProduct),
        ("mlp_norm", c_void_p),
        ("mlp_norm_bias", c_void_p),
        ("up", CProduct),
        ("down", CProduct),
        ("window", c_int64),
        ("keys", c_void_p),
        ("values", c_void_p),
    ]


class CModel(Structure):
    """`Model` of kernels.c."""

    _fields_ = [
        *((name, c_int64) for name in ("heads", "kv_heads", "head_dim", "hidden", "inner", "head_stride")),
        *((name, c_int64) for name in ("centred", "gated")),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("eps", c_float),
        ("scaling", c_float),
    ]


class CGroup(Structure):
    """`Group` of kernels.c."""

    _fields_ = [
        ("rows", c_void_p),
        ("positions", c_void_p),
        ("table", c_void_p),
        ("count", c_int64),
        ("queries", c_int64),
        ("width", c_int64),
    ]


class CStep(Structure):
    """`Step` of kernels.c."""

    _fields_ = [
        ("tokens", c_int64),
        ("stored", c_int64),
        *((name, c_void_p) for name in ("positions", "slots", "hidden", "normed", "qkv", "attended", "inner")),
        ("room", c_void_p),
        ("steps", c_void_p),
        ("groups", POINTER(CGroup)),
        ("group_count", c_int64),
    ]


class Kernels:
    """A loaded library. Its functions release the GIL and take addresses of contiguous tensors."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for a file that is no library of this machine."""
        library = ctypes.CDLL(str(path))
        self.tile_width: int = _function(library, "tile_width", returns=c_int64)()
        """Outputs in a tile of packed weights."""
        self.paired = bool(_function(library, "paired", returns=c_int64)())
        """Whether bfloat16 weights stand two by two and are multiplied so, by inputs rounded to bfloat16; else weights
        are widened and inputs are float32."""
        self.instructions: str = _function(library, "instructions", returns=c_char_p)().decode()
        """Which ones of the processor are used, such as `AVX512-BF16`."""
        self.name = f"C kernels ({self.instructions})"
        """What computes, as `ModelInfo.kernels` tells it."""
        step, layer, model = POINTER(CStep), POINTER(CLayer), POINTER(CModel)
        self.use_threads = _function(library, "use_threads", c_int64)
        self.prefer_large_pages = _function(library, "prefer_large_pages", c_void_p, c_int64)
        self.let_go = _function(library, "let_go", c_void_p, c_int64)
        self.layers = _function(library, "layers", model, layer, c_int64, step)
        norm = (c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_float, c_void_p)
        self.norm = _function(library, "norm", *norm)
        product = (POINTER(CProduct), c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p)
        self.product = _function(library, "product", *product)
        self.forbid = _function(library, "forbid", c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64)
        self.draw = _function(library, "draw", c_void_p, c_int64, c_void_p, c_int64)
        self.widest_draw: int = _function(library, "widest_draw", returns=c_int64)()
        """Ids in the widest rows that `draw` takes."""


def _function(
    library: ctypes.CDLL, name: str, *arguments: type, returns: type | None = None
) -> ctypes._NamedFuncPointer:
    function = getattr(library, name)
    function.argtypes, function.restype = arguments, returns
    return function  # type: ignore[no-any-return]  # getattr of a library is Any


class _Process:
    """What holds for this process."""

    wanted = True
    """Whether `kernels` may give any."""


def use_kernels(choice: str) -> None:
    """Decide what `kernels` gives in this process from now on. choice: see `EngineConfig.kernels`.

    Raises `ResourceError` where they are required and there are none.
    """
    _Process.wanted = choice != "none"
    found = find_kernels() if choice == "required" else None
    if isinstance(found, ResourceError):
        raise ResourceError(f"--kernels required: {found.message}", *found.hints, "or compute without:  --kernels none")


def kernels() -> Kernels | None:
    """The kernels for this processor; None where there are none, or none are wanted."""
    found = find_kernels() if _Process.wanted else None
    return found if isinstance(found, Kernels) else None


@functools.cache
def find_kernels() -> Kernels | ResourceError:
    """The kernels for this processor, or the reason why there are none."""
    try:
        return Kernels(compiled())
    except ResourceError as problem:
        return problem
    except (OSError, AttributeError) as problem:
        return ResourceError(f"the compiled C kernels cannot be loaded: {problem}", *ADVICE)


def address(tensor: Tensor | None) -> int | None:
    """Where a contiguous tensor's numbers lie."""
    assert tensor is None or tensor.is_contiguous()
    return None if tensor is None else tensor.data_ptr()
