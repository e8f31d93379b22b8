"""Transformers' own continuous batching."""

from __future__ import annotations

from typing import Any

PAGE_TOKENS = 256


class Peer:
    """One manager that lives as long as the worker, so that a run has no start-up in it."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `dtype`, `threads`, `streams` and `tokens` (most at once, most in each)."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        from lmtool.bench.peers.transformers_peer import load

        self._model = load(settings)
        # Its own choice is a cache of most of the memory; as many pages as the runs can fill are asked for.
        pages = settings["streams"] * (settings["tokens"] // PAGE_TOKENS + 1) + 1
        config = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=pages,
            max_batch_tokens=max(256, settings["streams"] * 16),
            allow_block_sharing=False,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=settings["tokens"])
        self._manager = self._model.init_continuous_batching(greedy, continuous_batching_config=config)
        self._manager.start()

    def about(self) -> dict[str, Any]:
        """Versions and dtype."""
        import torch
        import transformers

        versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
        return {"versions": versions, "dtype": str(self._model.dtype).removeprefix("torch.")}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`. Raises RuntimeError when a request fails."""
        names = [self._manager.add_request(list(prompt), max_new_tokens=output) for prompt in prompts]
        results: dict[str, list[int]] = {}
        while len(results) < len(names):
            result = self._manager.get_result(timeout=1.0)
            if result is None and not self._manager.is_running():
                raise RuntimeError("continuous batching has stopped")
            if result is not None and result.is_finished():
                if result.error:
                    raise RuntimeError(result.error)
                results[result.request_id] = list(result.generated_tokens)
        return [results[name] for name in names]

    def close(self) -> None:
        """Stop the manager's thread, which would keep the process alive."""
        self._manager.stop(block=True, timeout=5.0)
