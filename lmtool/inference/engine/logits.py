"""Operations on rows of logits in torch: argmax, k highest, penalties, masks, top-k/top-p/min-p, and sampling."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lmtool.inference.engine.cpu.library import address, kernels
from lmtool.inference.engine.device import put_rows, select_rows, to_device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from lmtool.core.types import SamplingParams


_CANDIDATES = (256, 2048)
"""Numbers of likeliest tokens that are tried; a row whose cut lies beyond the last of them is sorted whole."""

_BLOCK = 256
"""Tokens that are reduced together first: to their sum when sampling, to their highest for argmax."""

_TOP_BLOCK = 128
"""Tokens reduced together for the k highest."""

_MIN_BLOCKS_A_TOKEN = 4
"""Blocks for each of the k tokens from which two levels pay."""

_MIN_BLOCKS = 16
"""Blocks from which two levels pay for argmax."""

_LOST = -80.0
"""Exponent from which down a term is lost in any sum that has a 1 in it; `exp` is slow where its value is 0."""


def logsumexp(logits: Tensor) -> Tensor:
    """[R] float32, summed in an order that does not depend on the batch: on CPU torch's, on a GPU our kernel's.

    logits: [R, V] float32; anything for a row that is no distribution. On CPU what torch.logsumexp gives, bit for bit,
    but a masked row takes no longer than another (there: five times).
    """
    if logits.device.type != "cpu":
        return _logsumexp_kernel()(logits.contiguous())
    highest = logits.amax(dim=-1, keepdim=True)
    weights = (logits - highest).clamp_(min=_LOST).exp_()
    return weights.sum(dim=-1).log_().add_(highest.squeeze(-1))


@functools.cache
def _logsumexp_kernel() -> Callable[[Tensor], Tensor]:
    """Ours; torch's, which sums by the batch, where there is no Triton."""
    try:
        from lmtool.inference.engine.cuda.kernels.sampling import logsumexp as kernel
    except ImportError:
        return functools.partial(torch.logsumexp, dim=-1)
    return kernel


def most_likely(logits: Tensor) -> Tensor:
    """The first highest of each row. logits: [n, V] float32. Returns [n] int64; any id for a row with NaN.

    Two levels, because torch finds a maximum ten times faster than its place: first which block, then where in it.
    """
    rows, vocabulary = logits.shape
    whole = vocabulary // _BLOCK * _BLOCK
    if whole < _MIN_BLOCKS * _BLOCK:
        return torch.argmax(logits, dim=-1)
    highest = logits[:, :whole].reshape(rows, -1, _BLOCK).amax(dim=-1)
    block = torch.argmax(highest, dim=-1, keepdim=True)
    inside = logits.gather(1, block * _BLOCK + torch.arange(_BLOCK, device=logits.device))
    token = block * _BLOCK + torch.argmax(inside, dim=-1, keepdim=True)
    if whole == vocabulary:
        return token.view(rows)
    rest = torch.argmax(logits[:, whole:], dim=-1, keepdim=True) + whole
    return torch.where(logits.gather(1, rest) > logits.gather(1, token), rest, token).view(rows)


def truncate(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply top-k, then top-p of the rest, then min-p. Rows on a GPU are sorted whole, so that it is not waited for.

    logits: [n, V] float32, temperature applied. params: one for each row.
    Returns [n, V] float32, -inf for what is cut; at least the most likely token stays.
    """
    normaliser = logsumexp(logits).unsqueeze(-1)
    result = torch.full_like(logits, float("-inf"))
    rows = list(range(len(params)))
    for count in (*(_CANDIDATES if logits.device.type == "cpu" else ()), logits.shape[-1]):
        own = select_rows(logits, rows)
        values, ids = top_tokens(own, min(count, logits.shape[-1]))
        stays, sure = _staying(values, select_rows(normaliser, rows), [params[row] for row in rows], logits.shape[-1])
        rest = torch.full_like(own, float("-inf")).scatter_(1, ids, values.masked_fill(~stays, float("-inf")))
        put_rows(result, rows, rest)
        if count >= logits.shape[-1] or all(0 < params[row].top_k <= count for row in rows):  # all that top-k leaves
            break
        rows = [row for row, enough in zip(rows, sure.tolist(), strict=True) if not enough]
        if not rows:
            break
    return result


def top_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` highest of each row, best first: values [n, count] and ids [n, count] int64. logits: [n, V] float32.

    Two levels where it pays: the highest ones lie in the blocks with the highest maxima. Three times as fast for 20 of
    128k (measured: 32 rows in 3.2 ms).
    """
    rows, vocabulary = logits.shape
    if count == vocabulary:
        return torch.sort(logits, dim=-1, descending=True, stable=True)
    blocks, rest = divmod(vocabulary, _TOP_BLOCK)
    if count * _MIN_BLOCKS_A_TOKEN > blocks or not logits.is_contiguous():
        return torch.topk(logits, count, dim=-1)
    parts = logits[:, : blocks * _TOP_BLOCK].view(rows, blocks, _TOP_BLOCK)
    best = torch.topk(parts.amax(dim=-1), count, dim=-1, sorted=False).indices.unsqueeze(-1)
    ids = (best * _TOP_BLOCK + torch.arange(_TOP_BLOCK, device=logits.device)).view(rows, -1)
    if rest:
        tail = torch.arange(vocabulary - rest, vocabulary, device=logits.device)
        ids = torch.cat((ids, tail.expand(rows, -1)), dim=-1)
    values, places = torch.topk(logits.gather(1, ids), count, dim=-1)
    return values, ids.gather(1, places)


def _staying(
    values: Tensor, normaliser: Tensor, params: Sequence[SamplingParams], vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Mask of the best candidates that stay.

    values: [n, C] logits, best first. normaliser: [n, 1], log of the sum over the whole vocabulary.
    Returns [n, C] bool, and [n] bool: whether no candidate beyond these could have stayed.
    """
    device, width = values.device, values.shape[-1]
    ks = [p.top_k if 0 < p.top_k < vocabulary else vocabulary for p in params]
    top_k = to_device(ks, torch.int64, device)
    top_p = to_device([p.top_p for p in params], values.dtype, device).unsqueeze(-1)
    min_p = to_device([p.min_p for p in params], values.dtype, device).unsqueeze(-1)
    stays = torch.arange(width, device=device) < top_k.unsqueeze(-1)
    all_of_top_k = top_k <= width
    mass = logsumexp(values.masked_fill(~stays, float("-inf"))).unsqueeze(-1)
    probabilities = torch.exp(values - torch.where(all_of_top_k.unsqueeze(-1), mass, normaliser))
    widened = torch.float64 if device.type != "cpu" else None  # there, the order of summing depends on the batch
    before = torch.cumsum(probabilities, dim=-1, dtype=widened) - probabilities
    nucleus = (before < top_p) | (top_p >= 1)
    likely = probabilities >= min_p * probabilities[:, :1]
    stays = stays & nucleus & likely
    stays[:, 0] = True
    whole_mass = (top_k == vocabulary) | (top_p.squeeze(-1) >= 1)  # else top-p counts what only all of top-k tells
    sure = all_of_top_k | (whole_mass & ~stays[:, -1]) if width < vocabulary else torch.ones_like(all_of_top_k)
    return stays, sure


def sample_rows(logits: Tensor, uniforms: Tensor) -> Tensor:
    """One token a row: where the cumulative sum of probabilities passes the row's uniform number.

    logits: [n, V] float32. uniforms: [n] float64 in [0, 1). Returns [n] int64.

    Two levels, because a running sum over a whole vocabulary is slow and loses small probabilities in float32: first
    which block of tokens, in float64, then which token of it.
    """
    rows, vocabulary = logits.shape
    blocks = -(-vocabulary // _BLOCK)
    probabilities = torch.softmax(logits, dim=-1)
    if vocabulary % _BLOCK:
        probabilities = torch.nn.functional.pad(probabilities, (0, blocks * _BLOCK - vocabulary))
    padded = probabilities.view(rows, blocks, _BLOCK)
    sums = padded.sum(dim=-1).to(torch.float64).cumsum(dim=-1)
    goal = uniforms.unsqueeze(-1) * sums[:, -1:]
    block = torch.searchsorted(sums, goal, right=True).clamp(max=blocks - 1)
    below = torch.where(block > 0, sums.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = padded.gather(1, block.unsqueeze(-1).expand(-1, -1, _BLOCK)).squeeze(1)
    steps = inside.to(torch.float64).cumsum(dim=-1)
    token = torch.searchsorted(steps, goal - below, right=True)
    last = (inside > 0).to(torch.int64).mul(torch.arange(_BLOCK, device=logits.device)).amax(dim=-1, keepdim=True)
    return (block * _BLOCK + torch.minimum(token, last)).squeeze(-1)


_CHUNK_BYTES = 2**21
"""Logits per chunk, so that intermediate results stay in the cache (32 rows of 128k in half the time)."""


def row_chunks(rows: list[int], logits: Tensor) -> Iterator[list[int]]:
    """The rows a few at a time, so that intermediate results stay in a CPU's cache; a GPU takes all at once."""
    size = len(rows) if logits.is_cuda else max(1, _CHUNK_BYTES // (logits.shape[-1] * logits.element_size()))
    for start in range(0, len(rows), max(1, size)):
        yield rows[start : start + size]


def penalise(
    logits: Tensor,
    params: SamplingParams,
    known_ids: Collection[int],
    counts: Mapping[int, int],
    barred: Collection[int],
) -> None:
    """Apply penalties, then make barred ids impossible. logits: [V], changed in place. The rest: see `sampler.Row`."""
    device = logits.device
    if params.repetition_penalty != 1 and known_ids:
        ids = to_device(list(known_ids), torch.int64, device)
        values = logits[ids]
        logits[ids] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and counts:
        ids = to_device(list(counts), torch.int64, device)
        often = to_device(list(counts.values()), logits.dtype, device)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * often
    if barred:
        logits.index_fill_(0, to_device(list(barred), torch.int64, device), float("-inf"))


def apply_masks(logits: Tensor, rows: list[int], masks: Tensor) -> None:
    """Make -inf, in these rows, every id whose bit is 0.

    logits: [R, V] float32, changed in place. masks: [len(rows), ceil(V / 32)] int32 on CPU.
    Without kernels, eight ids at a time by a table: 12 times as fast as shifting bits.
    """
    by_kernel = apply_masks_on_cpu if logits.device.type == "cpu" else apply_masks_on_gpu
    if by_kernel(logits, rows, masks):
        return
    table = to_device(_BYTE_TABLE, torch.float32, logits.device)
    octets = to_device(masks.view(torch.uint8), torch.int32, logits.device)
    for part in row_chunks(list(range(len(rows))), logits):
        added = table.index_select(0, octets[part[0] : part[-1] + 1].flatten()).view(len(part), -1)
        for row, own in zip(part, added, strict=True):
            logits[rows[row]] += own[: logits.shape[-1]]


def apply_masks_on_cpu(logits: Tensor, rows: list[int], masks: Tensor) -> bool:
    """`apply_masks` by the C kernel; False, and nothing done, where there is none."""
    library = kernels()
    if library is None or logits.dtype != torch.float32 or not logits.is_contiguous():
        return False
    at = torch.tensor(rows)
    count, width = masks.shape
    library.apply_masks(address(logits), address(at), address(masks), count, logits.shape[-1], width)
    return True


def apply_masks_on_gpu(logits: Tensor, rows: list[int], masks: Tensor) -> bool:
    """`apply_masks` by the Triton kernel; False, and nothing done, where there is no Triton."""
    try:
        from lmtool.inference.engine.cuda.kernels.sampling import apply_masks as kernel
    except ImportError:
        return False
    device = logits.device
    kernel(logits, to_device(rows, torch.int64, device), to_device(masks.contiguous(), torch.int32, device))
    return True


_BITS = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
_BYTE_TABLE = torch.zeros(256, 8, dtype=torch.float32).masked_fill_(_BITS == 0, float("-inf"))
"""[256, 8] float32: what eight ids get for a byte of a mask, lowest bit first; 0 or -inf."""
