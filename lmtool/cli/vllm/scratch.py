"""The folder that a worker shares with the processes of vLLM's engine: the model's description, and sockets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.cli.vllm.told import Told

if TYPE_CHECKING:
    from lmtool.types import ModelInfo

KEY = "lmtool"
"""Under which vLLM's `additional_config` has the folder, and a request's `extra_args` what holds it."""
PROCESSOR = "lmtool.cli.vllm.processor:GuideProcessor"
EXTENSION = "lmtool.cli.vllm.extension.GuideExtension"


@dataclass(frozen=True, slots=True)
class Settings:
    """What the engine's processes must know to hold streams."""

    vocab_size: int
    eos_ids: tuple[int, ...]
    tokenizer: str | None
    """The text of its tokenizer.json; without one nothing can be constrained."""


class Scratch:
    """A folder of this worker's own, see `start`; belongs to the worker's event loop."""

    def __init__(self, path: Path) -> None:
        """path: the folder, empty or not."""
        self.path = path
        self.told = Told(path / "told")

    def describe(self, info: ModelInfo, tokenizer: str | None) -> None:
        """Leave word of the model there, before the first request."""
        settings = {"vocab_size": info.vocab_size, "eos_ids": info.eos_token_ids, "tokenizer": tokenizer}
        (self.path / "settings.json").write_text(json.dumps(settings), encoding="utf-8")

    @property
    def options(self) -> dict[str, Any]:
        """What vLLM's engine must be told for streams to be held."""
        return {
            "logits_processors": [PROCESSOR],
            "worker_extension_cls": EXTENSION,
            "additional_config": {KEY: str(self.path)},
        }

    def close(self) -> None:
        """Hear no more of the engine."""
        self.told.close()


def settings_of(folder: str) -> Settings:
    """What a worker left for its engine."""
    told = json.loads(Path(folder, "settings.json").read_text(encoding="utf-8"))
    return Settings(told["vocab_size"], tuple(told["eos_ids"]), told["tokenizer"])
