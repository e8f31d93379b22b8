"""Transformers' `generate`: static batches; the reference for which ids are right."""

from __future__ import annotations

from typing import Any


class Peer:
    """A model as transformers loads it, with a dynamic cache and its own attention."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `dtype`, `threads`. Raises ValueError for a dtype that it does not have."""
        self._model = load(settings)

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
        """Greedy `ids`, and for each the `gaps`: how far the best logit is above the second, in standard deviations."""
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


def load(settings: dict[str, Any]) -> Any:
    """The model, with generation settings that are greedy and know no eos."""
    if settings["dtype"] not in {"float32", "bfloat16", "float16"}:
        raise ValueError(f"transformers has no {settings['dtype']} here")
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    torch.set_num_threads(settings["threads"])
    model = AutoModelForCausalLM.from_pretrained(settings["model"], dtype=getattr(torch, settings["dtype"])).eval()
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)
    return model
