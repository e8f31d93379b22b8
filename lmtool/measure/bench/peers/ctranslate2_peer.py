"""CTranslate2: the checkpoint is converted once into a folder beside the run's other files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Peer:
    """A CTranslate2 generator. It takes tokens as texts; ids are their positions in the vocabulary."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """settings: `model` (folder), `work` (where the conversion goes), `dtype`, `threads`.

        Converting needs transformers and torch in the same environment.
        """
        import ctranslate2

        converted = Path(settings["work"]) / "ctranslate2"
        if not (converted / "model.bin").is_file():
            ctranslate2.converters.TransformersConverter(settings["model"]).convert(str(converted), force=True)
        self._dtype = settings["dtype"]
        self._generator = ctranslate2.Generator(
            str(converted), device="cpu", compute_type=self._dtype, inter_threads=1, intra_threads=settings["threads"]
        )
        self._texts: list[str] = json.loads((converted / "vocabulary.json").read_text(encoding="utf-8"))

    def about(self) -> dict[str, Any]:
        """Version and dtype."""
        import ctranslate2

        return {"versions": {"ctranslate2": ctranslate2.__version__}, "dtype": self._dtype}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        """See `worker.Peer`."""
        results = self._generator.generate_batch(
            [[self._texts[token] for token in prompt] for prompt in prompts],
            max_length=output,
            min_length=output,
            beam_size=1,
            sampling_topk=1,
            include_prompt_in_result=False,
            end_token=[],
        )
        return [list(result.sequences_ids[0]) for result in results]
