"""Kernels by themselves: ceilings of the device, equal bits of rows, pipeline stages, attention of prompts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lmtool.inference.engine.cuda.attention_backends import AttentionParams, triton_decode, triton_prefill
from lmtool.inference.engine.cuda.kernels.tiles import CaptureStream
from lmtool.inference.engine.cuda.products import product
from lmtool.inference.engine.cuda.step_rows import Part, Singles, build_parts
from lmtool.inference.engine.decoder import DecoderConfig, decoder_config
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.random_model import random_config

if TYPE_CHECKING:
    from tests.lab.gpu.sections.bench import Bench

STAGES = (2, 3, 4, 5)
CAPTURED_RUNS = 5
"""Of decode attention in one CUDA graph: the host takes longer to launch it than the device to compute it."""


class LeftOut(Exception):  # noqa: N818  # no error: the section does not apply here
    """Why a section measures nothing here."""


def need_triton() -> None:
    """Raise `LeftOut` where there is no Triton."""
    if importlib.util.find_spec("triton") is None:
        raise LeftOut("Triton is not installed")


def ceilings(bench: Bench) -> Iterator[dict[str, Any]]:
    """What the device does at all: bytes per second of copying and of reading, operations per second of products."""
    device, settings = bench.device, bench.settings
    yield _bandwidth(bench)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        left, right = (_random(device.device, dtype, settings.product_size, settings.product_size) for _ in range(2))
        times = device.times(partial(torch.nn.functional.linear, left, right), settings.moment)
        yield {"flop_per_s": {str(dtype).removeprefix("torch."): 2 * settings.product_size**3 / times.median}}
    empty = torch.empty(1, device=device.device)
    launch = device.host_seconds(empty.zero_)
    queued = device.times(empty.zero_, 0.01).median  # to the next small kernel, where the host launches each
    yield {"launch_us": 1e6 * launch, "queued_launch_us": 1e6 * queued}


def _bandwidth(bench: Bench) -> dict[str, float]:
    source = torch.randn(bench.settings.buffer_bytes // 4, device=bench.device.device)
    copied = bench.device.times(partial(torch.empty_like(source).copy_, source), bench.settings.moment)
    read = bench.device.times(source.sum, bench.settings.moment)
    return {"copy_bytes_per_s": 2 * source.nbytes / copied.median, "read_bytes_per_s": source.nbytes / read.median}


def _random(device: torch.device, dtype: torch.dtype, *size: int) -> Tensor:
    return torch.randn(size, device=device, dtype=torch.float32).to(dtype)


def shape_of(bench: Bench) -> DecoderConfig:
    """The sizes of the main model."""
    found = decoder_config(random_config(bench.settings.model).to_dict())
    assert found is not None
    return found


class Pages:
    """Random keys and values of one layer, and texts that lie in them one behind the other."""

    def __init__(self, bench: Bench, texts: int, length: int, dtype: torch.dtype) -> None:
        config = shape_of(bench)
        device, width = bench.device.device, -(-length // BLOCK_TOKENS)
        size = (texts * width + 1, BLOCK_TOKENS, config.kv_heads, config.head_dim)
        self.keys, self.values = (_random(device, dtype, *size) for _ in range(2))
        self.table = torch.arange(1, texts * width + 1, dtype=torch.int32, device=device).view(texts, width)
        self.lengths = torch.full((texts,), length, dtype=torch.int32, device=device)
        self.query = _random(device, dtype, texts, config.heads, config.head_dim)
        self.params = AttentionParams(config.head_dim**-0.5)

    @property
    def read_bytes(self) -> int:
        """Of all keys and values."""
        return self.keys.nbytes + self.values.nbytes

    def rows(self, start: int, end: int) -> Singles:
        """The last position of some of the texts."""
        return Singles(self.table[start:end], self.lengths[start:end])


def bits(bench: Bench) -> Iterator[dict[str, Any]]:
    """True if a row's bits depend on the rows beside it, in all that `--deterministic` stands on."""
    need_triton()
    for dtype in dict.fromkeys((torch.float32, bench.dtype)):
        name = str(dtype).removeprefix("torch.")
        for what, equal in (
            ("decode attention", _equal_decode),
            ("prefill attention", _equal_prefill),
            ("fixed product", partial(_equal_product, biased=False)),
            ("fixed product with bias", partial(_equal_product, biased=True)),
        ):
            yield {"equal": {f"{what}, {name}": equal(bench, dtype)}}
        from lmtool.inference.engine.cuda.kernels.products import fixed_matmul

        yield {"equal": {f"own product, {name}": _equal_rows(bench, dtype, lambda x, w: fixed_matmul(x, w, None))}}
        yield {"equal": {f"cuBLAS product, {name}": _equal_rows(bench, dtype, torch.nn.functional.linear)}}


def _equal_decode(bench: Bench, dtype: torch.dtype) -> bool:
    """A text alone, and as one of a crowd."""
    pages = Pages(bench, bench.settings.crowd, max(bench.settings.contexts[0], 40), dtype)
    decode = triton_decode()
    whole = decode(pages.query, pages.keys, pages.values, pages.rows(0, len(pages.query)), pages.params)
    alone = (
        decode(pages.query[i : i + 1], pages.keys, pages.values, pages.rows(i, i + 1), pages.params)[0]
        for i in (0, len(pages.query) - 1)
    )
    return all(torch.equal(one, whole[i]) for one, i in zip(alone, (0, -1), strict=True))


def _equal_prefill(bench: Bench, dtype: torch.dtype) -> bool:
    """A prompt whole, and cut in two."""
    length = max(bench.settings.contexts[0], 48) // BLOCK_TOKENS * BLOCK_TOKENS
    pages, config = Pages(bench, 1, length, dtype), shape_of(bench)
    query = _random(bench.device.device, dtype, length, config.heads, config.head_dim)
    whole = _attended(pages, query, 0, length)
    cut = length // 3 // BLOCK_TOKENS * BLOCK_TOKENS
    parts = [_attended(pages, query[:cut], 0, cut), _attended(pages, query[cut:], cut, length)]
    return torch.equal(torch.cat(parts), whole)


def _attended(pages: Pages, query: Tensor, start: int, end: int) -> Tensor:
    parts = build_parts([Part(pages.table[0].tolist(), start, end)], 0, query.device)
    assert parts is not None
    output = torch.zeros_like(query)
    triton_prefill()(query, pages.keys, pages.values, parts, pages.params, output)
    return output


def _equal_product(bench: Bench, dtype: torch.dtype, *, biased: bool) -> bool:
    size = shape_of(bench).hidden
    weight = _random(bench.device.device, dtype, size, size)
    bias = _random(bench.device.device, dtype, size) if biased else None
    made = product(weight, bias, deterministic=True)
    return _equal_rows(bench, dtype, lambda inputs, _: made(inputs))


def _equal_rows(bench: Bench, dtype: torch.dtype, compute: Callable[[Tensor, Tensor], Tensor]) -> bool:
    """True if rows of a product are the same alone, in three, in another order and among many."""
    size = shape_of(bench).hidden
    inputs, weight = (_random(bench.device.device, dtype, rows, size) for rows in (150, size))
    whole = compute(inputs, weight)
    same = [torch.equal(compute(inputs[:rows], weight), whole[:rows]) for rows in (1, 3, 64)]
    return all(same) and torch.equal(compute(inputs.flip(0), weight), whole.flip(0))


def stages(bench: Bench) -> Iterator[dict[str, Any]]:
    """Decode attention by the depth of its pipeline: microseconds, and bytes of keys and values per second."""
    need_triton()
    (first, second), last = bench.settings.contexts[:2], bench.settings.contexts[-1]
    crowd = bench.settings.crowd
    for texts, context in ((1, last), (crowd, first), (crowd, second)):
        pages = Pages(bench, texts, context, bench.dtype)
        for depth in (None, *STAGES):
            row = {"texts": texts, "context": context, "stages": depth}
            yield {"rows": [row | _staged_times(bench, pages, depth)]}


def _staged_times(bench: Bench, pages: Pages, depth: int | None) -> dict[str, Any]:
    """Of decode attention with so many stages; None: with the tiles that it chooses itself."""
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention, tile_choices

    rows = pages.rows(0, len(pages.query))
    if depth is None:
        run = partial(triton_decode(), pages.query, pages.keys, pages.values, rows, pages.params)
    else:
        tiles = replace(tile_choices(pages.query, pages.values)[0], stages=depth)
        run = partial(
            decode_attention, pages.query, pages.keys, pages.values, rows.table, rows.lengths,
            scaling=pages.params.scaling, tiles=tiles,
        )  # fmt: skip

    def runs() -> None:
        for _ in range(CAPTURED_RUNS):
            run()

    stream = CaptureStream(bench.device.device)
    try:
        run()  # compiled, and its tiles chosen, by then
        replay = stream.capture(runs)
        seconds = bench.device.times(replay, bench.settings.moment / 2).median / CAPTURED_RUNS
    except Exception as problem:  # noqa: BLE001  # Triton has errors of its own for more shared memory than there is
        return {"error": f"{type(problem).__name__}: {problem}"[:200]}
    return {"us": 1e6 * seconds, "bytes_per_s": pages.read_bytes / seconds}


def prompt_attention(bench: Bench) -> Iterator[dict[str, Any]]:
    """Attention of one prompt alone: operations per second, 4 for each query, visible key, head and dimension."""
    need_triton()
    config = shape_of(bench)
    for length in bench.settings.prompt_tokens:
        pages = Pages(bench, 1, length, bench.dtype)
        query = _random(bench.device.device, bench.dtype, length, config.heads, config.head_dim)
        parts = build_parts([Part(pages.table[0].tolist(), 0, length)], 0, bench.device.device)
        assert parts is not None
        attend, output = triton_prefill(), torch.empty_like(query)
        run = partial(attend, query, pages.keys, pages.values, parts, pages.params, output)
        seconds = bench.device.times(run, bench.settings.moment).median
        operations = 2 * length * length * config.heads * config.head_dim
        yield {"attention": [{"tokens": length, "ms": 1e3 * seconds, "flop_per_s": operations / seconds}]}
