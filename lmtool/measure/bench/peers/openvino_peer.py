"""OpenVINO GenAI: its continuous batching pipeline on a model that optimum-intel exports from the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmtool.measure.bench.peers.conversion import convert

EXPORT = "from optimum.commands.optimum_cli import main; main()"
WEIGHTS = {
    "float32": ["--weight-format", "fp32"],
    "bfloat16": ["--weight-format", "fp32"],
    "int8": ["--weight-format", "int8"],
    "int4": ["--weight-format", "int4", "--sym", "--group-size", "32", "--ratio", "1.0"],
}
"""How `optimum-cli export openvino` stores the weights. There is no bf16: the plugin converts them as it loads."""
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
"""What products and the KV cache are computed in. OpenVINO itself chooses with quantized weights, as for its users."""
BLOCK_TOKENS = 32
"""Of its KV cache on a CPU."""


class Peer:
    """A pipeline that batches whatever streams there are; it takes and gives token ids."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `work` (where the export goes), `dtype`, `threads`, `streams` and `tokens`.

        Exporting needs optimum-intel, with transformers and torch, in the same environment. Raises ValueError for a
        dtype that is not measured.
        """
        self._dtype = settings["dtype"]
        if self._dtype not in WEIGHTS:
            raise ValueError(f"OpenVINO computes no {self._dtype} on most processors, and does not say in what instead")
        import openvino_genai

        self._genai = openvino_genai
        exported = Path(settings["work"]) / "openvino"
        words = ["export", "openvino", "--model", settings["model"], "--task", "text-generation-with-past"]
        more = ["--disable-convert-tokenizer", *WEIGHTS[self._dtype], exported.name]
        convert(["-c", EXPORT, *words, *more], exported.parent, exported / "openvino_model.xml")
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.num_kv_blocks = settings["streams"] * (settings["tokens"] // BLOCK_TOKENS + 2)
        scheduling.max_num_seqs = settings["streams"]
        scheduling.max_num_batched_tokens = max(256, settings["streams"] * 16)
        scheduling.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(exported), scheduling, "CPU", _properties(self._dtype, settings["threads"])
        )

    def about(self) -> dict[str, Any]:
        """Versions and dtype."""
        import openvino

        versions = {"openvino": openvino.__version__, "openvino-genai": self._genai.__version__}
        return {"versions": versions, "dtype": self._dtype}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`."""
        import numpy as np
        from openvino import Tensor

        greedy = self._genai.GenerationConfig(max_new_tokens=output, do_sample=False, ignore_eos=True)
        inputs = [Tensor(np.array([prompt], np.int64)) for prompt in prompts]
        results = self._pipeline.generate(inputs, [greedy] * len(prompts))
        return [list(result.m_generation_ids[0]) for result in results]


def _properties(dtype: str, threads: int) -> dict[str, Any]:
    """Settings of OpenVINO's CPU plugin."""
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if dtype in PRECISIONS:
        properties |= dict.fromkeys(("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION"), PRECISIONS[dtype])
    return properties
