"""Transformers: `generate` with static batches, which is also the reference of right ids; and continuous batching."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

PAGE_TOKENS = 256
GPU_BATCH_TOKENS = 2048
"""Of a step with prompts on a GPU: as many as ours takes."""


class Peer:
    """A model as transformers loads it, with a dynamic cache and its own attention."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder, or `random:NAME`), `dtype`, `threads`, `device` (cpu where it is missing).

        Raises ValueError for a dtype that it does not have.
        """
        if settings["dtype"] not in {"float32", "bfloat16", "float16"}:
            raise ValueError(f"transformers has no {settings['dtype']} here")
        import torch
        from transformers import GenerationConfig

        torch.set_num_threads(settings["threads"])
        self._device = torch.device(settings.get("device", "cpu"))
        self._model: Any = _loaded(settings["model"], getattr(torch, settings["dtype"]), self._device)
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

        ids = torch.tensor(prompts, device=self._device)
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
        known = {field.name for field in fields(ContinuousBatchingConfig)}
        newer = "page_size" in known
        page: dict[str, Any] = {"page_size" if newer else "block_size": PAGE_TOKENS}
        if self._device.type == "cuda":  # else it looks for flash-attn's kernels in the hub
            self._model.set_attn_implementation("sdpa" if newer else "paged|sdpa")
        config = ContinuousBatchingConfig(
            **page,
            num_blocks=pages,
            max_batch_tokens=max(GPU_BATCH_TOKENS if self._device.type == "cuda" else 256, settings["streams"] * 16),
            allow_block_sharing=False,
        )
        greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=settings["tokens"])
        self._manager = self._model.init_continuous_batching(greedy, continuous_batching_config=config)
        self._manager.start()

    @property
    def details(self) -> dict[str, Any]:
        """Which attention it runs with, and whether in CUDA graphs."""
        own = getattr(self._manager, "continuous_batching_config", None)
        return {
            "attention": self._model.config._attn_implementation,  # noqa: SLF001  # no public name
            "cuda_graphs": str(getattr(own, "use_cuda_graph", None)),
            "asynchronous": str(getattr(own, "use_async_batching", None)),
        }

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


def _loaded(name: str, dtype: Any, device: Any) -> Any:
    """The model on its device, made there where it is a random one."""
    from transformers import AutoModelForCausalLM

    from lmtool.inference.engine.random_model import is_random, random_model

    if is_random(name):
        return random_model(name, dtype, device, attention="sdpa")
    return AutoModelForCausalLM.from_pretrained(name, dtype=dtype).eval().to(device)
