"""SGLang's engine on a GPU; it runs its scheduler in a process of its own, so that its CPU time is not this one's."""

from __future__ import annotations

from typing import Any

GPU_SHARE = 0.4
"""Of a GPU's memory, as of vLLM."""


class Peer:
    """An SGLang engine on token ids. No test of ours has run it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `dtype`, `streams` and `tokens` (most at once, most in each)."""
        import sglang

        self._dtype = settings["dtype"]
        self._engine = sglang.Engine(
            model_path=settings["model"],
            skip_tokenizer_init=True,
            dtype=self._dtype,
            context_length=max(64, settings["tokens"]),
            max_running_requests=settings["streams"],
            mem_fraction_static=GPU_SHARE,
            disable_radix_cache=True,
            log_level="error",
        )

    def about(self) -> dict[str, Any]:
        """Version and dtype."""
        import sglang

        return {"versions": {"sglang": sglang.__version__}, "dtype": self._dtype}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`."""
        greedy = {"temperature": 0.0, "max_new_tokens": output, "ignore_eos": True}
        results = self._engine.generate(input_ids=prompts, sampling_params=greedy)
        return [list(result["output_ids"]) for result in results]

    def close(self) -> None:
        """End its processes."""
        self._engine.shutdown()
