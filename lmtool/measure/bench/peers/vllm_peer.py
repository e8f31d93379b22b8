"""vLLM's engine core in this process, so that its CPU time can be measured."""

from __future__ import annotations

import os
import time
from typing import Any

GPU_SHARE = 0.4
"""Of a GPU's memory: the other engines have theirs beside it."""

GIB_TOKENS = 8192
"""Tokens whose keys and values fit into a GiB: those of Llama 8B in bfloat16. What is not used is not touched."""


class Peer:
    """A vLLM engine on token ids."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `dtype`, `threads`, `streams` and `tokens` (most at once, most in each)."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        room = -(-settings["streams"] * max(64, settings["tokens"]) // GIB_TOKENS)
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(room))  # with less, streams would wait for each other
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        on_gpu = settings.get("device", "cpu") != "cpu"
        more = {"gpu_memory_utilization": GPU_SHARE} if on_gpu else {}
        from vllm import LLM

        self._dtype = settings["dtype"]
        model = LLM(
            settings["model"],
            skip_tokenizer_init=True,
            dtype=self._dtype,
            max_model_len=max(64, settings["tokens"]),
            max_num_seqs=settings["streams"],
            enable_prefix_caching=False,
            disable_log_stats=True,
            **more,
        )
        self._engine = model.llm_engine
        self._runs = 0
        self.times: list[list[float]] = []

    def about(self) -> dict[str, Any]:
        """Version and dtype."""
        import vllm

        return {"versions": {"vllm": vllm.__version__}, "dtype": self._dtype}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`. Steps the engine itself, as `LLM.generate` would, which tells of ended streams only."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        greedy = SamplingParams(
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        self._runs += 1
        numbers = {f"{self._runs}-{number}": number for number in range(len(prompts))}
        for name, number in numbers.items():
            self._engine.add_request(name, {"prompt_token_ids": prompts[number]}, greedy)
        ids: list[list[int]] = [[] for _ in prompts]
        self.times = [[] for _ in prompts]
        while self._engine.has_unfinished_requests():
            for result in self._engine.step():
                number = numbers[result.request_id]
                new = result.outputs[0].token_ids
                ids[number] += new
                self.times[number] += [time.perf_counter()] * len(new)
        return ids
