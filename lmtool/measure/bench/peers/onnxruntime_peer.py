"""ONNX Runtime GenAI: static batches on a model that its own model builder makes from the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lmtool.measure.bench.peers.conversion import convert

BUILDER = "onnxruntime_genai.models.builder"
PRECISIONS = {"float32": "fp32", "int8": "int8", "int4": "int4"}
"""Those that the builder has for processors."""


class Peer:
    """An ONNX model with its generator, which takes all prompts of a batch at once."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `work` (where the ONNX model goes), `dtype`, `threads`.

        Building needs onnx, onnx-ir, transformers and torch in the same environment. Raises ValueError for a dtype that
        there is not.
        """
        self._dtype = settings["dtype"]
        if self._dtype not in PRECISIONS:
            raise ValueError(f"its model builder has no {self._dtype} for processors, only fp32, int8 and int4")
        import onnxruntime_genai

        self._genai = onnxruntime_genai
        built = Path(settings["work"]) / "onnx"
        words = ["-i", settings["model"], "-o", built.name, "-p", PRECISIONS[self._dtype], "-e", "cpu", "-c", "cache"]
        convert(["-m", BUILDER, *words], built.parent, built / "genai_config.json")
        size = json.loads((built / "genai_config.json").read_text(encoding="utf-8"))["model"]["vocab_size"]
        config = onnxruntime_genai.Config(str(built))
        config.overlay(json.dumps({"model": _overlay(settings["threads"], size)}))
        self._model = onnxruntime_genai.Model(config)

    def about(self) -> dict[str, Any]:
        """Versions and dtype."""
        import onnxruntime

        versions = {"onnxruntime": onnxruntime.__version__, "onnxruntime-genai": self._genai.__version__}
        return {"versions": versions, "dtype": self._dtype}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`. All prompts have one length."""
        import numpy as np

        params = self._genai.GeneratorParams(self._model)
        length = len(prompts[0]) + output
        params.set_search_options(batch_size=len(prompts), min_length=length, max_length=length, do_sample=False)
        generator = self._genai.Generator(self._model, params)
        generator.append_tokens(np.array(prompts, np.int32))
        ids: list[list[int]] = [[] for _ in prompts]
        for _ in range(output):
            generator.generate_next_token()
            for own, token in zip(ids, generator.get_next_tokens(), strict=True):
                own.append(int(token))
        return ids


def _overlay(threads: int, vocab_size: int) -> dict[str, Any]:
    """What replaces the builder's configuration: the threads, and another eos id.

    It cannot go on behind an eos, only be kept from it, nor do without one: the last id is the least missed.
    """
    options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
    return {"eos_token_id": [vocab_size - 1], "decoder": {"session_options": options}}
