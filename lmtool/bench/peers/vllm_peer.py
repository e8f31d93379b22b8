"""vLLM's engine core in this process, so that its CPU time can be measured."""

from __future__ import annotations

import os
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
        self._model = LLM(
            settings["model"],
            skip_tokenizer_init=True,
            dtype=self._dtype,
            max_model_len=max(64, settings["tokens"]),
            max_num_seqs=settings["streams"],
            enable_prefix_caching=False,
            disable_log_stats=True,
            **more,
        )

    def about(self) -> dict[str, Any]:
        """Version and dtype."""
        import vllm

        return {"versions": {"vllm": vllm.__version__}, "dtype": self._dtype}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`."""
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = self._model.generate(requests, greedy, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]
