"""Transformers: `generate` with static batches, which is also the reference of right ids; and continuous batching."""

from __future__ import annotations

from typing import Any

PAGE_TOKENS = 256


class Peer:
    """A model as transformers loads it, with a dynamic cache and its own attention."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `dtype`, `threads`. Raises ValueError for a dtype that it does not have."""
        if settings["dtype"] not in {"float32", "bfloat16", "float16"}:
            raise ValueError(f"transformers has no {settings['dtype']} here")
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        torch.set_num_threads(settings["threads"])
        dtype = getattr(torch, settings["dtype"])
        self._model: Any = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=dtype).eval()
        self._model.generation_config = GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)

    def about(self) -> dict[str, Any]:
        """Versions and dtype."""
        import torch
        import transformers

        versions = {"torch": str(torch.__version__), "transformers": transformers.__version__}
        return {"versions": versions, "dtype": str(self._model.dtype).removeprefix("torch.")}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`. All prompts have one length."""
        return [ids[len(prompts[0]) :] for ids in self._run(prompts, output).sequences.tolist()]

    def reference(self, prompts: list[list[int]], output: int) -> dict[str, Any]:
        """Greedy `ids`, and for each the `gaps`: the best logit's lead over the second, in standard deviations."""
        result = self._run(prompts, output, output_logits=True)
        gaps: list[list[float]] = [[] for _ in prompts]
        for logits in result.logits:
            best = logits.float().topk(2, dim=-1).values
            shares = ((best[:, 0] - best[:, 1]) / logits.float().std(dim=-1)).tolist()
            for own, share in zip(gaps, shares, strict=True):
                own.append(share)
        return {"ids": [ids[len(prompts[0]) :] for ids in result.sequences.tolist()], "gaps": gaps}

    def _run(self, prompts: list[list[int]], output: int, **more: Any) -> Any:
        import torch

        ids = torch.tensor(prompts)
        with torch.inference_mode():
            return self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=output,
                return_dict_in_generate=True,
                **more,
            )


class BatchingPeer(Peer):
    """Continuous batching; its manager lives as long as the process, so that no run includes its start-up."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `dtype`, `threads`, `streams` and `tokens` (most at once, most in each)."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        super().__init__(settings)
        # By default it takes most of the memory for its cache; the runs need this many pages.
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

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`. Raises RuntimeError when a request fails."""
        names = [self._manager.add_request(list(prompt), max_new_tokens=output) for prompt in prompts]
        results: dict[str, list[int]] = {}
        while len(results) < len(names):
            result = self._manager.get_result(timeout=1.0)
            if result is None and not self._manager.is_running():
                raise RuntimeError("continuous batching stopped")
            if result is not None and result.is_finished():
                if result.error:
                    raise RuntimeError(result.error)
                results[result.request_id] = list(result.generated_tokens)
        return [results[name] for name in names]

    def close(self) -> None:
        """Stop the manager's thread, which would keep the process alive."""
        self._manager.stop(block=True, timeout=5.0)
