"""Matrix products by the C kernels: weights in their layout, and the memory that holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmtool.inference.engine.cpu.library import (
    BFLOAT16,
    FLOAT32,
    INT4,
    INT8,
    Q4_K,
    Q5_K,
    Q6_K,
    STORE,
    CProduct,
    address,
)

if TYPE_CHECKING:
    from lmtool.inference.engine.cpu.library import Kernels


INT4_DTYPE: torch.dtype = vars(torch)["int4"]
"""Names the format; no tensor of ours has it. Torch's own types do not know it."""

_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.int8: INT8, INT4_DTYPE: INT4}
"""Storage dtype of weights to the kernels' format."""

GROUP = 32
"""Inputs whose int8 or int4 weights share a scale."""

_GROUP_BYTES = {torch.int8: 2 + GROUP, INT4_DTYPE: 2 + GROUP // 2}
"""Bytes of an output's group: a scale in float16, and the weights."""


@dataclass(frozen=True, slots=True)
class BlockType:
    """One of llama.cpp's types of blocks that is packed as it is.

    A weight of blocks is [out, blocks, bytes] uint8. Bytes that are 0 are weights that are 0.
    """

    kind: int
    """The kernels' format."""
    inputs: int
    """In a block."""
    bytes: int
    """Bytes of a block in a file. No two types have the same."""
    packed_bytes: int
    """Bytes of a block of an output in a tile."""


BLOCK_TYPES = {
    "Q4_0": BlockType(INT4, GROUP, 18, 18),
    "Q8_0": BlockType(INT8, GROUP, 34, 34),
    "Q4_K": BlockType(Q4_K, 256, 144, 148),  # scales of 6 bits are in bytes
    "Q5_K": BlockType(Q5_K, 256, 176, 180),
    "Q6_K": BlockType(Q6_K, 256, 210, 210),
}
"""By llama.cpp's names."""

_FEWEST_WORDS = 10
"""Room for a row of inputs, of 4 bytes: a group takes so many."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedProduct:
    """A linear layer's weights in tiles, and its bias."""

    weights: Tensor
    """[tiles, in, width] float32 or bfloat16, [tiles, in / 2, width, 2] bfloat16 where the kernels multiply pairs,
    or [tiles, blocks, packed_bytes * width] uint8, see products.c; outputs after the last one are 0, and so is what
    fills up an odd last pair or a last group."""
    bias: Tensor | None
    """[tiles * width] float32"""
    inputs: int
    outputs: int
    kind: int
    """The kernels' format of the weights."""

    @property
    def structure(self) -> CProduct:
        """For C; good as long as this object lives."""
        return CProduct(
            weights=address(self.weights),
            bias=address(self.bias),
            inputs=self.inputs,
            outputs=self.outputs,
            kind=self.kind,
        )

    def rows(self, kernels: Kernels, outputs: Tensor) -> Tensor:
        """Weights of these outputs [n] int64, as they are stored: [n, in] float32."""
        if self.kind not in {FLOAT32, BFLOAT16}:
            out = torch.empty(len(outputs), self.inputs, dtype=torch.float32)
            kernels.weight_rows(self.structure, address(outputs), len(outputs), address(out))
            return out
        width = self.weights.shape[2]
        return self.weights[outputs // width, :, outputs % width].flatten(1)[:, : self.inputs].float()


def pack(
    kernels: Kernels, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, memory: WeightMemory | None = None
) -> PackedProduct:
    """weight: [out, in]; not kept. bias: [out]. dtype: what to store: float32, bfloat16, int8, or int4. memory: where.

    int8: each group's weights are -127 to 127 times a scale in float16, which the largest one decides. int4: -8 to 7
    times the one of several scales whose squared error is the least. A weight of blocks (see `BlockType`) is stored
    as it is, whatever `dtype` says.
    """
    memory = memory or WeightMemory(kernels)
    if is_blocks(weight):
        return _pack_blocks(kernels, weight, bias, memory)
    out, size = weight.shape
    width = kernels.tile_width
    tiles = -(-out // width)
    if dtype in _GROUP_BYTES:
        kernels.use_threads(torch.get_num_threads())
        packed = memory.empty(tiles, -(-size // GROUP), width * _GROUP_BYTES[dtype], dtype=torch.uint8)
    elif dtype == torch.bfloat16 and kernels.paired:
        packed = memory.empty(tiles, -(-size // 2), width, 2, dtype=dtype)
    else:
        packed = memory.empty(tiles, size, width, dtype=dtype)
    for tile in range(0, tiles, _TILES):  # a few at a time, so that hardly anything is in memory twice
        _fill(kernels, packed[tile : tile + _TILES], weight, tile * width, _KINDS[dtype])
    return PackedProduct(packed, _whole(bias, tiles * width), size, out, _KINDS[dtype])


def _whole(bias: Tensor | None, outputs: int) -> Tensor | None:
    """The bias as [outputs] float32, filled up with 0."""
    return None if bias is None else pad(bias.float(), (0, outputs - len(bias)))


def is_blocks(weight: Tensor) -> bool:
    """True if a weight is one of blocks, see `BlockType`."""
    return weight.dim() == 3


def _pack_blocks(kernels: Kernels, weight: Tensor, bias: Tensor | None, memory: WeightMemory) -> PackedProduct:
    out, blocks, size = weight.shape
    own = next(one for one in BLOCK_TYPES.values() if one.bytes == size)
    width = kernels.tile_width
    tiles = -(-out // width)
    packed = memory.empty(tiles, blocks, width * own.packed_bytes, dtype=torch.uint8)
    kernels.use_threads(torch.get_num_threads())
    for tile in range(0, tiles, _TILES):
        part = weight[tile * width : (tile + _TILES) * width]
        part = pad(part, (0, 0, 0, 0, 0, -len(part) % width))
        to = packed[tile : tile + _TILES]
        if own.inputs == GROUP:
            _fill_groups(to, part, kernels.byte_zero if own.kind == INT8 else 0)
        else:
            kernels.pack_superblocks(own.kind, address(part), len(to), blocks, address(to))
    return PackedProduct(packed, _whole(bias, tiles * width), blocks * own.inputs, out, own.kind)


def _fill_groups(packed: Tensor, blocks: Tensor, zero: int) -> None:
    """Write of each group the scales of all outputs, then their weights, four bytes of an output at a time.

    blocks: [tiles * width, groups, bytes], of Q4_0 or Q8_0. zero: what is added to each byte of weights.
    """
    tiles, groups, _ = packed.shape
    size = blocks.shape[2]
    parts = blocks.view(tiles, -1, groups, size).transpose(1, 2)
    width = parts.shape[2]
    packed[..., : 2 * width] = parts[..., :2].flatten(2)
    octets = parts[..., 2:].reshape(tiles, groups, width, (size - 2) // 4, 4).transpose(2, 3).flatten(2)
    packed[..., 2 * width :] = octets + zero  # bytes wrap around


def to_int8_blocks(weight: Tensor) -> Tensor:
    """A weight [out, in] float32 as blocks of Q8_0; `in` must be a multiple of their 32."""
    groups = weight.view(len(weight), -1, GROUP)
    scales = groups.abs().amax(dim=-1, keepdim=True) / 127
    whole = (groups / scales.where(scales > 0, torch.ones(()))).round().to(torch.int8)
    scales = scales.clamp(max=torch.finfo(torch.float16).max).half()
    return torch.cat((scales.view(torch.uint8), whole.view(torch.uint8)), dim=-1)


_TILES = 8
"""Tiles that are packed at once."""


def _fill(kernels: Kernels, packed: Tensor, weight: Tensor, first: int, kind: int) -> None:
    """Pack the outputs from `first` on, as many as there is room for."""
    width = kernels.tile_width
    count = len(packed) * width
    part = weight[first : first + count].float()
    if len(part) < count:
        part = torch.cat((part, part.new_zeros(count - len(part), weight.shape[1])))
    if kind in {INT8, INT4}:
        part = part.contiguous()  # a transformers' Conv1D has it the other way round
        kernels.pack_groups(kind, address(part), len(packed), part.shape[1], address(packed))
        return
    if packed.dim() == 4 and part.shape[1] % packed.shape[3]:
        part = pad(part, (0, 1))
    packed.view(*packed.shape[:3], -1).copy_(part.view(len(packed), width, packed.shape[1], -1).transpose(1, 2))


def interleaved(kernels: Kernels, gate: Tensor, up: Tensor) -> Tensor:
    """One weight [2 * in', ...] out of two [in, ...]: by turns a vector of gates and one of what they let through.

    in': the next multiple of a vector; what is added is 0.
    """
    lanes = kernels.tile_width // 2
    missing = -len(gate) % lanes
    parts = [torch.cat((part, part.new_zeros(missing, *part.shape[1:]))) for part in (gate, up)]
    vectors = [part.view(-1, lanes, *part.shape[1:]) for part in parts]
    return torch.stack(vectors, dim=1).flatten(0, 2)


def multiply(kernels: Kernels, product: PackedProduct, inputs: Tensor) -> Tensor:
    """inputs: [T, in] float32, contiguous. Returns [T, out] float32."""
    tokens = len(inputs)
    out = torch.empty(tokens, product.outputs, dtype=torch.float32)
    room = torch.empty(tokens, max(product.inputs, _FEWEST_WORDS), dtype=torch.float32)
    kernels.product(product.structure, address(inputs), tokens, STORE, address(out), product.outputs, address(room))
    return out


_PIECE = 64 << 20
"""Bytes taken at once: more than any C library keeps for later. What is not written to takes no memory."""

_LINE = 64
"""Bytes of a cache line, where every tensor begins."""


class WeightMemory:
    """Hands out tensors; their memory goes back with the last of each piece."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._free = torch.empty(0, dtype=torch.uint8)

    def empty(self, *size: int, dtype: torch.dtype) -> Tensor:
        """A tensor of that size with any content."""
        used = math.prod(size) * dtype.itemsize
        room = -(-used // _LINE) * _LINE
        if room > len(self._free):
            self._free = torch.empty(max(room, _PIECE), dtype=torch.uint8)
            self._kernels.prefer_large_pages(self._free.data_ptr(), len(self._free))  # before anything is written there
        own, self._free = self._free[:used], self._free[room:]
        return own.view(dtype).view(size)
