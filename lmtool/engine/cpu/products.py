"""Weights in the layout of the C kernels, and the products with them.

A product's row has the same bits whatever the other rows are, and in a batch of one as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from lmtool.engine.cpu.library import BFLOAT16, FLOAT32, INT4, INT8, STORE, CProduct, address
from lmtool.engine.cpu.weight_memory import WeightMemory

if TYPE_CHECKING:
    from lmtool.engine.cpu.library import Kernels

_KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.int8: INT8, torch.uint8: INT4}
"""Dtype of packed weights to their format; torch has no operators for 4 bits, so they lie in bytes."""

INT4_DTYPE: torch.dtype = vars(torch)["int4"]
"""Names the format; no tensor of ours has it. Torch's own types do not know it."""

GROUP = 32
"""Inputs whose int8 or int4 weights share a scale."""

_GROUP_BYTES = {torch.int8: 2 + GROUP, INT4_DTYPE: 2 + GROUP // 2}
"""Of an output: a scale in float16, and the weights."""

_STORED = {torch.int8: torch.int8, INT4_DTYPE: torch.uint8}
"""Formats of groups to the dtype of their bytes."""

BLOCK_BYTES = {"Q4_0": _GROUP_BYTES[INT4_DTYPE], "Q8_0": _GROUP_BYTES[torch.int8]}
"""Types of llama.cpp's blocks that are packed as they are, and the bytes of one: a float16 scale, then the weights of
a group. A weight of blocks is [out, groups, bytes] uint8; rows of zeros are 0."""

_FEWEST_WORDS = 10
"""Room for a row of inputs, of 4 bytes: a group takes so many."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedProduct:
    """A linear layer's weights in tiles, and its bias."""

    weights: Tensor
    """[tiles, in, width] float32 or bfloat16, [tiles, in / 2, width, 2] bfloat16 where the kernels multiply pairs,
    [tiles, groups, 34 * width] int8, or [tiles, groups, 18 * width] uint8 of int4, see products.c; outputs behind the
    last one are 0, and so is what fills up an odd last pair or a last group."""
    bias: Tensor | None
    """[tiles * width] float32"""
    inputs: int
    outputs: int

    @property
    def structure(self) -> CProduct:
        """For C; good as long as this object lives."""
        return CProduct(
            weights=address(self.weights),
            bias=address(self.bias),
            inputs=self.inputs,
            outputs=self.outputs,
            kind=_KINDS[self.weights.dtype],
        )

    def rows(self, outputs: Tensor) -> Tensor:
        """Weights of these outputs [n] int64, as they were before packing: [n, in] float32. Of float32 and bfloat16."""
        width = self.weights.shape[2]
        return self.weights[outputs // width, :, outputs % width].flatten(1)[:, : self.inputs].float()


def pack(
    kernels: Kernels, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, memory: WeightMemory | None = None
) -> PackedProduct:
    """weight: [out, in]; not kept. bias: [out]. dtype: what to store: float32, bfloat16, int8, or int4. memory: where.

    int8: each group's weights are -127 to 127 times a scale in float16, which the largest one decides. int4: -8 to 7
    times the one of several scales whose squared error is the least. A weight of blocks (see `BLOCK_BYTES`) is stored
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
        packed = memory.empty(tiles, -(-size // GROUP), width * _GROUP_BYTES[dtype], dtype=_STORED[dtype])
    elif dtype == torch.bfloat16 and kernels.paired:
        packed = memory.empty(tiles, -(-size // 2), width, 2, dtype=dtype)
    else:
        packed = memory.empty(tiles, size, width, dtype=dtype)
    for tile in range(0, tiles, _TILES):  # a few at a time, so that hardly anything is in memory twice
        _fill(kernels, packed[tile : tile + _TILES], weight, tile * width)
    return PackedProduct(packed, _whole(bias, tiles * width), size, out)


def _whole(bias: Tensor | None, outputs: int) -> Tensor | None:
    """The bias as [outputs] float32, filled up with 0."""
    return None if bias is None else pad(bias.float(), (0, outputs - len(bias)))


def is_blocks(weight: Tensor) -> bool:
    """Whether a weight is one of blocks, see `BLOCK_BYTES`."""
    return weight.dim() == 3


def _pack_blocks(kernels: Kernels, weight: Tensor, bias: Tensor | None, memory: WeightMemory) -> PackedProduct:
    """In tiles: of each group the scales of all outputs, then their weights, four bytes of an output at a time."""
    out, groups, size = weight.shape
    width = kernels.tile_width
    tiles = -(-out // width)
    form = INT4_DTYPE if size == _GROUP_BYTES[INT4_DTYPE] else torch.int8
    packed = memory.empty(tiles, groups, width * size, dtype=torch.uint8)
    for tile in range(0, tiles, _TILES):
        part = weight[tile * width : (tile + _TILES) * width]
        part = pad(part, (0, 0, 0, 0, 0, -len(part) % width)).view(-1, width, groups, size).transpose(1, 2)
        to = packed[tile : tile + _TILES]
        to[..., : 2 * width] = part[..., :2].flatten(2)
        to[..., 2 * width :] = part[..., 2:].reshape(-1, groups, width, (size - 2) // 4, 4).transpose(2, 3).flatten(2)
        if form == torch.int8:
            to[..., 2 * width :] += kernels.byte_zero  # bytes wrap around
    return PackedProduct(packed.view(_STORED[form]), _whole(bias, tiles * width), groups * GROUP, out)


def to_int8_blocks(weight: Tensor) -> Tensor:
    """A weight [out, in] float32 as blocks of Q8_0; `in` must be a multiple of their 32."""
    groups = weight.view(len(weight), -1, GROUP)
    scales = groups.abs().amax(dim=-1, keepdim=True) / 127
    whole = (groups / scales.where(scales > 0, torch.ones(()))).round().to(torch.int8)
    scales = scales.clamp(max=torch.finfo(torch.float16).max).half()
    return torch.cat((scales.view(torch.uint8), whole.view(torch.uint8)), dim=-1)


def unpacked_blocks(weight: Tensor) -> Tensor:
    """The numbers of a weight of blocks: [out, in] float32."""
    scales = weight[..., :2].contiguous().view(torch.float16).float()
    rest = weight[..., 2:]
    if weight.shape[-1] == _GROUP_BYTES[torch.int8]:
        return (rest.contiguous().view(torch.int8).float() * scales).flatten(1)
    return ((torch.cat((rest & 15, rest >> 4), dim=-1).float() - 8) * scales).flatten(1)


_TILES = 8
"""Tiles that are packed at once."""


def _fill(kernels: Kernels, packed: Tensor, weight: Tensor, first: int) -> None:
    """Pack the outputs from `first` on, as many as there is room for."""
    width = kernels.tile_width
    count = len(packed) * width
    part = weight[first : first + count].float()
    if len(part) < count:
        part = torch.cat((part, part.new_zeros(count - len(part), weight.shape[1])))
    if packed.dtype in _STORED.values():
        part = part.contiguous()  # a transformers' Conv1D has it the other way round
        kernels.pack_groups(_KINDS[packed.dtype], address(part), len(packed), part.shape[1], address(packed))
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
