"""Backends of paged attention, and which of them work on this machine for a model's layers.

For single queries: flash-attn 3, then our Triton kernel. For parts of prompts: flash-attn 3, FlashInfer, our Triton
kernel. (flash-attn 2 needs pages of 256 positions, ours have 16; FlashInfer plans a decode step on the host, which a
CUDA graph cannot.) Each must first give the numbers of plain attention here.

flash-attn and FlashInfer themselves have not run in any test of ours; Triton's kernels have, in its interpreter.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from lmtool.inference.engine.cuda.step_rows import Part, Parts, Singles, build_parts
from lmtool.inference.engine.kv_cache import BLOCK_TOKENS
from lmtool.inference.engine.model_runner import attend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.inference.engine.cuda.kernels.tiles import Tiles

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """A layer's parameters of attention."""

    scaling: float
    """Factor on the dot products."""
    window: int | None = None
    """Number of positions that a query sees, itself included; None for all."""
    softcap: float | None = None
    """Scores are squeezed into plus or minus this by tanh; None: not at all."""


class DecodeAttention(Protocol):
    """Attention of single queries."""

    def __call__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        rows: Singles,
        params: AttentionParams,
        scales: Tensor | None = None,
    ) -> Tensor:
        """[N, H, Dv]. query: [N, H, D]. keys, values, scales: see `PagedCache`; only our own kernels know scales."""


class PrefillAttention(Protocol):
    """Attention of parts of prompts."""

    def __call__(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        parts: Parts,
        params: AttentionParams,
        output: Tensor,
        scales: Tensor | None = None,
    ) -> None:
        """Fill `output[parts.first:]`, [.., H, Dv]. query: [T, H, D], single rows included."""


@dataclass(frozen=True, slots=True)
class AttentionBackend:
    """The chosen functions of attention."""

    decode_name: str
    decode: DecodeAttention
    prefill_name: str
    prefill: PrefillAttention

    @property
    def own(self) -> bool:
        """True if both are ours, which never read what lies after a text's end."""
        return self.decode_name == self.prefill_name == "Triton"


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """The shapes and parameters of a model's layer, to try a backend with."""

    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    params: AttentionParams


_Maker: TypeAlias = Callable[[], Any]


def choose_backend(
    cases: Sequence[AttentionCase], dtype: torch.dtype, device: torch.device, *, deterministic: bool
) -> AttentionBackend | None:
    """The first of each kind that works for every case; None where there is none. Logs the choice.

    deterministic: only those that give a row the same bits in any batch: our own.
    """
    singles: dict[str, _Maker] = {"Triton": triton_decode}
    parts: dict[str, _Maker] = {"Triton": triton_prefill}
    if not deterministic:
        singles = {"flash-attn 3": flash_decode, **singles}
        parts = {"flash-attn 3": flash_prefill, "FlashInfer": flashinfer_prefill, **parts}
    single = _first(singles, _check_decode, cases, dtype, device)
    part = _first(parts, _check_prefill, cases, dtype, device)
    if single is None or part is None:
        _logger.warning("no paged attention works on %s; keys and values are gathered at each step, slowly", device)
        return None
    _logger.info("attention on %s: %s for decode, %s for prompts", device, single[0], part[0])
    return AttentionBackend(*single, *part)


def _first(
    makers: dict[str, _Maker],
    check: Callable[[Any, AttentionCase, torch.dtype, torch.device], float],
    cases: Sequence[AttentionCase],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[str, Any] | None:
    allowed = _ALLOWED[dtype]
    for name, make in makers.items():
        try:
            attention = make()
            error = max(check(attention, case, dtype, device) for case in cases)
        except ImportError:
            continue
        except Exception as problem:  # noqa: BLE001  # whatever a foreign kernel raises means: not here
            _logger.info("%s attention does not work here: %s: %s", name, type(problem).__name__, problem)
            continue
        if error <= allowed:
            return name, attention
        _logger.warning("%s attention is not used: it is off by %.3g, where %.2g is allowed", name, error, allowed)
    return None


def triton_decode() -> DecodeAttention:
    """Our kernel; a text is cut the same way in any batch. Raises `ImportError` without Triton.

    Its tiles are those that are fastest on this GPU, which the first call for a kind of layer measures.
    """
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention, default_tiles

    measured: dict[Any, Tiles] = {}

    def run(
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        rows: Singles,
        params: AttentionParams,
        scales: Tensor | None = None,
    ) -> Tensor:
        kind = (query.dtype, query.shape[1:], keys.dtype, values.shape[2:])
        tiles = measured.get(kind)
        if tiles is None:
            capturing = query.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            tiles = default_tiles(query, values) if capturing else _fastest_tiles(query, keys, values, params, scales)
            measured[kind] = tiles
        return decode_attention(
            query, keys, values, rows.table, rows.lengths,
            scaling=params.scaling, window=params.window, softcap=params.softcap, scales=scales, tiles=tiles,
        )  # fmt: skip

    return run


_TIMED_ROWS, _TIMED_PAGES = 32, 32
"""Texts, and pages of each, with which tiles are timed: more bytes than a GPU's caches hold."""


def _fastest_tiles(
    query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams, scales: Tensor | None
) -> Tiles:
    """The decode kernel's tiles that take the least time for layers like this one; the first choice on a CPU."""
    from lmtool.inference.engine.cuda.kernels.attention import decode_attention, tile_choices
    from lmtool.inference.engine.cuda.kernels.tiles import fastest

    choices = tile_choices(query, values)
    if query.device.type != "cuda":
        return choices[0]
    pages = _TIMED_ROWS * _TIMED_PAGES
    queries = query.new_zeros(_TIMED_ROWS, *query.shape[1:])
    own_keys, own_values = (own.new_zeros(pages, *own.shape[1:]) for own in (keys, values))
    table = torch.arange(pages, dtype=torch.int32, device=query.device).view(_TIMED_ROWS, -1)
    lengths = torch.full((_TIMED_ROWS,), _TIMED_PAGES * BLOCK_TOKENS, dtype=torch.int32, device=query.device)

    def run(tiles: Tiles) -> None:
        decode_attention(
            queries, own_keys, own_values, table, lengths,
            scaling=params.scaling, softcap=params.softcap, scales=scales, tiles=tiles,
        )  # fmt: skip

    tiles = fastest(choices, run, query.device)
    _logger.info("decode attention of %d x %d heads: %s", *query.shape[1:], tiles)
    return tiles


def triton_prefill() -> PrefillAttention:
    """Our kernel. Raises `ImportError` without Triton."""
    from lmtool.inference.engine.cuda.kernels.attention import prefill_attention

    def run(
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        parts: Parts,
        params: AttentionParams,
        output: Tensor,
        scales: Tensor | None = None,
    ) -> None:
        prefill_attention(
            query, keys, values, parts.table, parts.tiles, output,
            scaling=params.scaling, window=params.window, softcap=params.softcap, scales=scales,
        )  # fmt: skip

    return run


def flash_decode() -> DecodeAttention:
    """flash-attn 3's. Raises `ImportError` where it is not installed."""
    import flash_attn_interface

    def run(
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        rows: Singles,
        params: AttentionParams,
        scales: Tensor | None = None,
    ) -> Tensor:
        assert scales is None, "rounded keys and values are for our own kernels"
        output: Tensor = flash_attn_interface.flash_attn_with_kvcache(
            query.unsqueeze(1), keys, values, cache_seqlens=rows.lengths, page_table=rows.table, **_flash(params)
        )
        return output.squeeze(1)

    return run


def flash_prefill() -> PrefillAttention:
    """flash-attn 3's. Raises `ImportError` where it is not installed."""
    import flash_attn_interface

    def run(
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        parts: Parts,
        params: AttentionParams,
        output: Tensor,
        scales: Tensor | None = None,
    ) -> None:
        assert scales is None, "rounded keys and values are for our own kernels"
        output[parts.first :] = flash_attn_interface.flash_attn_with_kvcache(
            query[parts.first :], keys, values, cache_seqlens=parts.lengths, page_table=parts.table,
            cu_seqlens_q=parts.bounds, max_seqlen_q=parts.longest, **_flash(params),
        )  # fmt: skip

    return run


def _flash(params: AttentionParams) -> dict[str, Any]:
    window = (-1, -1) if params.window is None else (params.window - 1, 0)
    softcap = params.softcap or 0.0
    return {"softmax_scale": params.scaling, "causal": True, "window_size": window, "softcap": softcap}


def flashinfer_prefill() -> PrefillAttention:
    """FlashInfer's, planned once a step and kind of layer. Raises `ImportError` where it is not installed."""
    import flashinfer

    plans: dict[AttentionParams, tuple[Parts, Any]] = {}

    def plan(query: Tensor, keys: Tensor, parts: Parts, params: AttentionParams) -> Any:  # noqa: ANN401  # untyped library
        last, wrapper = plans.get(params, (None, None))
        if last is parts:
            return wrapper
        if wrapper is None:
            workspace = torch.empty(128 << 20, dtype=torch.uint8, device=query.device)
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        pages = (parts.lengths + BLOCK_TOKENS - 1) // BLOCK_TOKENS
        used = torch.arange(parts.table.shape[1], device=query.device) < pages.unsqueeze(1)
        wrapper.plan(
            parts.bounds, torch.nn.functional.pad(pages.cumsum(0), (1, 0)).int(), parts.table[used],
            (parts.lengths - 1) % BLOCK_TOKENS + 1, query.shape[1], keys.shape[2], query.shape[2], BLOCK_TOKENS,
            causal=True, sm_scale=params.scaling, window_left=-1 if params.window is None else params.window - 1,
            logits_soft_cap=params.softcap, q_data_type=query.dtype, kv_data_type=keys.dtype,
        )  # fmt: skip
        plans[params] = (parts, wrapper)
        return wrapper

    def run(
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        parts: Parts,
        params: AttentionParams,
        output: Tensor,
        scales: Tensor | None = None,
    ) -> None:
        assert scales is None, "rounded keys and values are for our own kernels"
        output[parts.first :] = plan(query, keys, parts, params).run(query[parts.first :].contiguous(), (keys, values))

    return run


_ALLOWED = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Tolerance for a head's output, relative to its length as a vector.

Kernels that round weights of keys and outputs to the dtype are off by at most 0.006 in bfloat16 and 0.0006 in float16,
emulated on a CPU for heads of 8 to 256 and scalings up to 1. Wrong ones by 0.6 and more for a wrong page, 0.2 for a key
too few or too many, 0.07 for a scaling that is a tenth too large.
"""

_CHECK_LENGTHS = (1, 16, 37, 150, 300)
"""Positions of the texts that a backend is tried with: one, a whole page, several, more than a tile, several parts."""


def _check_decode(attention: DecodeAttention, case: AttentionCase, dtype: torch.dtype, device: torch.device) -> float:
    """Largest distance of a head's output from plain attention, relative to its length as a vector."""
    trial = _Trial(case, dtype, device)
    query = trial.random(len(_CHECK_LENGTHS), case.heads, case.key_dim)
    output = attention(query, trial.keys, trial.values, Singles(trial.table, trial.lengths), case.params)
    expected = [trial.plain(query[i : i + 1], i, length - 1) for i, length in enumerate(_CHECK_LENGTHS)]
    return _distance(output, torch.cat(expected))


def _check_prefill(attention: PrefillAttention, case: AttentionCase, dtype: torch.dtype, device: torch.device) -> float:
    trial = _Trial(case, dtype, device)
    texts = zip(trial.table.tolist(), _CHECK_LENGTHS, strict=True)
    pieces = [Part(blocks, length // 3, length) for blocks, length in texts]
    parts = build_parts(pieces, 0, device)
    assert parts is not None, "there are some"
    counts = [piece.end - piece.start for piece in pieces]
    query = trial.random(sum(counts), case.heads, case.key_dim)
    output = query.new_zeros(len(query), case.heads, case.value_dim)
    attention(query, trial.keys, trial.values, parts, case.params, output)
    expected = [trial.plain(own, i, pieces[i].start) for i, own in enumerate(torch.split(query, counts))]
    return _distance(output, torch.cat(expected))


def _distance(ours: Tensor, plain: Tensor) -> float:
    """Largest relative distance of a head's output [.., Dv]."""
    off = (ours.float() - plain).norm(dim=-1) / plain.norm(dim=-1)
    return float(off.nan_to_num(nan=torch.inf).max())


class _Trial:
    """Random pages and texts that lie in them out of order."""

    def __init__(self, case: AttentionCase, dtype: torch.dtype, device: torch.device) -> None:
        self._case = case
        self._generator = torch.Generator().manual_seed(0)
        self._like = torch.empty(0, dtype=dtype, device=device)
        width = -(-max(_CHECK_LENGTHS) // BLOCK_TOKENS)
        pages = width * len(_CHECK_LENGTHS)
        self.keys = self.random(pages + 1, BLOCK_TOKENS, case.kv_heads, case.key_dim)
        self.values = self.random(pages + 1, BLOCK_TOKENS, case.kv_heads, case.value_dim)
        order = torch.randperm(pages, generator=self._generator) + 1
        self.table = order.view(len(_CHECK_LENGTHS), width).int().to(device)
        self.lengths = torch.tensor(_CHECK_LENGTHS, dtype=torch.int32, device=device)

    def random(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self._generator).to(self._like)

    def plain(self, query: Tensor, text: int, start: int) -> Tensor:
        """Plain attention [Q, H, Dv] float32 of the queries [Q, H, D] at positions from `start` on.

        In float32 throughout: scores rounded to half precision are off by as much as a wrong kernel's, once they are
        large.
        """
        case, pages = self._case, self.table[text].long()
        keys, values = (part[pages].flatten(0, 1).transpose(0, 1).float() for part in (self.keys, self.values))
        positions = torch.arange(keys.shape[1], device=query.device)
        queries = (start + torch.arange(len(query), device=query.device)).unsqueeze(1)
        mask = positions > queries
        if case.params.window is not None:
            mask |= positions <= queries - case.params.window
        grouped = query.float().view(1, len(query), case.kv_heads, -1, case.key_dim)
        output = attend(grouped, keys, values, mask.unsqueeze(0), case.params.scaling, case.params.softcap)
        return output.reshape(len(query), case.heads, case.value_dim)
