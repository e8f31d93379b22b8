"""A step's attention stores the new keys and values, then looks at each row's own pages."""

from __future__ import annotations

import pytest
import torch

from lmtool.inference.engine.cuda import attention_backends as backends
from lmtool.inference.engine.cuda import step_rows
from lmtool.inference.engine.kv_cache import LayerShape, PagedCache
from lmtool.inference.engine.model_runner import AttentionCall, BlockAttention
from lmtool.inference.engine.model_runner import build as build_plain
from lmtool.inference.engine.plan import Plan, Sequence, Span

pytestmark = pytest.mark.cuda


def test_equals_gathered_attention(device):
    """Decoding streams and parts of prompts in one step have the output of attention over gathered blocks."""
    from lmtool.inference.engine.cuda.forward import PagedAttention

    layer, shape = object(), LayerShape(2, 16, 16)
    case = backends.AttentionCase(4, 2, 16, 16, backends.AttentionParams(0.25))
    backend = backends.choose_backend([case], torch.float32, device, deterministic=True)
    running = Sequence(1, list(range(20)), prompt_length=5, max_length=50, blocks=[3, 1])
    starting = Sequence(2, list(range(40)), prompt_length=40, max_length=50, blocks=[2, 5, 4])
    plan = Plan([Span(starting, 0, 32), Span(running, 19, 1)])
    generator = torch.Generator().manual_seed(0)
    pages = torch.randn(2, 6, 16, 2, 16, generator=generator).to(device)
    query, key, value = (torch.randn(heads, 33, 16, generator=generator).to(device) for heads in (4, 2, 2))

    def cache():
        made = PagedCache([(layer, shape)], 5, torch.float32, device)
        for own, given in zip(made.memory(layer), pages, strict=True):
            own.copy_(given)
        return made

    batch, rows = step_rows.build(plan, device)
    assert int(batch.positions[0, 0]) == 19, "the decoding stream's row comes first here, and last in a plain batch"
    paged = PagedAttention(cache(), rows, backend)
    ours = paged.attend(AttentionCall(layer, query, key, value, 0.25))
    plain_batch = build_plain(plan, 64, 1, device)
    moved = torch.tensor([*range(1, 33), 0], device=device)
    gathered = BlockAttention(cache(), plain_batch.slots, plain_batch.groups)
    theirs = gathered.attend(AttentionCall(layer, query[:, moved], key[:, moved], value[:, moved], 0.25))
    torch.testing.assert_close(ours[moved], theirs, atol=1e-5, rtol=1e-5)
    assert paged.mask({}) is None
