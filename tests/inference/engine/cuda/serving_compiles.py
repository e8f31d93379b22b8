"""Counts what Triton would compile while a model is served, without a GPU: nothing, once the runner is prepared.

Run by test_interpreted.py in an environment with Triton. A stand-in for Triton's driver says which GPU to compile for;
launches only ask Triton's cache for their kernel, and what it lacks is noted and counts as compiled from then on.
Prints one line of JSON for each kind of runner: kernels that were missing until it was prepared, and afterwards.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver, jit

from lmtool.inference.engine.cuda import graphs
from lmtool.inference.engine.cuda import runner as runner_module
from lmtool.inference.engine.cuda.attention_backends import AttentionBackend, triton_decode, triton_prefill
from lmtool.inference.engine.cuda.forward import CudaLlamaForward
from lmtool.inference.engine.cuda.runner import CudaRunner
from lmtool.inference.engine.decoder import DecoderConfig
from lmtool.inference.engine.kv_cache import LayerShape, PagedCache
from lmtool.inference.engine.plan import Limits, Sequence
from lmtool.inference.engine.prefix_cache import BlockAllocator, PrefixCache
from lmtool.inference.engine.scheduler import Scheduler

STREAMS, CONTEXT, BLOCKS = 16, 600, 200
SHAPE = DecoderConfig("LlamaForCausalLM", 101, 32, 48, 4, 2, 8, 1e-6, tied=False, windows=(None, 5))
CPU = torch.device("cpu")


class Hopper:
    """A driver for a GPU that is not there."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


missing: list[str] = []
launch = jit.JITFunction.run


def look_up(self, *arguments, grid, warmup, **settings):
    """Find the kernel of a launch, which computes nothing."""
    return launch(self, *arguments, grid=grid, warmup=True, **settings)


def note(self, key, signature, device, constexprs, options, attrs, warmup):
    """Note a kernel that is missing."""
    missing.append(self.__name__)
    self.device_caches[device][0][key] = kernel = SimpleNamespace()
    return kernel


def weights():
    """The checkpoint of a model of that shape."""
    sizes = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
    inner = {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
    own = {"model.embed_tokens.weight": (101, 32), "model.norm.weight": (32,), "lm_head.weight": (101, 32)}
    for layer in range(2):
        at = f"model.layers.{layer}."
        own |= {f"{at}self_attn.{name}.weight": size for name, size in sizes.items()}
        own |= {f"{at}mlp.{name}.weight": size for name, size in inner.items()}
        own |= {f"{at}input_layernorm.weight": (32,), f"{at}post_attention_layernorm.weight": (32,)}
    return {name: torch.rand(size) for name, size in own.items()}


def make_runner(*, deterministic):
    """A runner over pages, on the CPU."""
    forward = CudaLlamaForward(SHAPE, weights(), torch.ones(4), CONTEXT, deterministic=deterministic)
    cache = PagedCache([(layer, LayerShape(2, 8, 8)) for layer in forward.layers], BLOCKS, torch.float32, CPU)
    backend = AttentionBackend("Triton", triton_decode(), "Triton", triton_prefill())
    return CudaRunner(forward, cache, CPU, 16, 1, backend, deterministic)


def serve(runner, steps):
    """Random streams: prompts in parts, decoding, drafts, SCORE, preemption; ids are random too."""
    dice = random.Random(1)
    limits = Limits(STREAMS, max_batch_tokens=150, chunk_tokens=16, block_tokens=16, max_scored_rows=64)
    scheduler = Scheduler(limits, BlockAllocator(BLOCKS // 2), PrefixCache(16))
    for number in range(10, 10 + steps):
        if dice.random() < 0.5:
            tokens = [dice.randrange(3, 99) for _ in range(dice.choice([2, 5, 17, 80, 300]))]
            scoring = dice.random() < 0.2
            ends = len(tokens) + (0 if scoring else dice.randrange(1, 30))
            scheduler.add(Sequence(number, tokens, 1 if scoring else len(tokens), max_length=ends, scoring=scoring))
        for sequence in scheduler.decoding():
            sequence.draft = [5] * dice.choice([0, 0, 0, 1, 3])
        plan = scheduler.plan()
        if plan.spans:
            runner.run(plan)
            yields = [span.sequence.generates and len(span.logits) > 0 for span in plan.spans]
            scheduler.commit(plan, [[dice.randrange(3, 99)] if one else [] for one in yields])


def main():
    """Prepare, serve, print."""
    driver.set_active(Hopper())
    jit.JITFunction.run, jit.JITFunction._do_compile = look_up, note
    runner_module._difference = lambda *logits: (0.0, 1.0)
    graphs._PART_TOKENS, graphs._PART_SINGLES = (64,), (8,)
    with torch.inference_mode():
        for deterministic in (False, True):
            plain = make_runner(deterministic=deterministic)
            prepared = plain.prepared(STREAMS, CONTEXT)
            assert prepared.graphs is not None
            counts = [len(missing)]
            serve(prepared, 150)
            serve(replace(prepared, graphs=None), 150)
            afterwards = missing[counts[0] :]
            json.dump({"deterministic": deterministic, "prepared": counts[0], "afterwards": afterwards}, sys.stdout)
            sys.stdout.write("\n")
            missing.clear()


main()
