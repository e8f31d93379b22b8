"""What a worker shares with the processes of vLLM's engine: a directory with step channel and log, and settings."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lmtool.inference.backends.vllm.step_channel import StepReceiver

if TYPE_CHECKING:
    from lmtool.core.types import ModelInfo

KEY = "lmtool"
"""Names the directory in vLLM's `additional_config`, and our processor's arguments in a request's `extra_args`."""
PROCESSOR = "lmtool.inference.backends.vllm.processor:GuideProcessor"
EXTENSION = "lmtool.inference.backends.vllm.extension.GuideExtension"
STEP_SOCKET = "steps"
MAX_LOG_BYTES = 4 * 1024 * 1024
"""Size above which the log is emptied: a server runs for months, and /tmp may be in memory."""
TAIL_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the engine's processes must know of the model to apply constraints."""

    vocab_size: int
    eos_ids: tuple[int, ...]
    tokenizer: str | None
    """The text of its tokenizer.json; without one nothing can be constrained."""

    @classmethod
    def of(cls, info: ModelInfo, tokenizer: str | None) -> EngineSettings:
        """Those of a model."""
        return cls(info.vocab_size or 0, info.eos_token_ids, tokenizer)

    def to_json(self) -> str:
        """As a text that another process reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EngineSettings:
        """Those that `to_json` wrote."""
        members = json.loads(text)
        return cls(members["vocab_size"], tuple(members["eos_ids"]), members["tokenizer"])


class SharedDirectory:
    """The worker's side; belongs to its event loop. `worker` makes the directory."""

    def __init__(self, path: Path) -> None:
        """path: of the directory, which must exist."""
        self.path = path
        self.steps = StepReceiver(path / STEP_SOCKET)

    @property
    def engine_options(self) -> dict[str, Any]:
        """Options of vLLM's engine that load our processor and extension into its processes."""
        return {
            "logits_processors": [PROCESSOR],
            "worker_extension_cls": EXTENSION,
            "additional_config": {KEY: str(self.path)},
        }


class EngineLog:
    """Redirects stdout and stderr, of this process and of all that it starts from now on, to a file.

    The file's end says why vLLM failed.
    """

    def __init__(self, directory: Path, *, verbose: bool) -> None:
        """directory: shared with the engine's processes. verbose: redirect both to stderr, and keep nothing."""
        self.wire: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
        """The original stdout: for the protocol alone."""
        self.stderr: TextIO = os.fdopen(os.dup(2), "w", encoding="utf-8")
        """The original stderr: the server's log."""
        self._path = Path(os.devnull) if verbose else directory / "vllm.log"
        log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if not verbose:
            os.dup2(log, 2)
        os.dup2(2, 1)
        os.close(log)

    def report(self, kind: str, message: str, *hints: str) -> None:
        """Write a sentence to the original stderr. kind: `error` or `warning`."""
        self.stderr.write("\n  ".join([f"{kind}: {message}", *hints]) + "\n")
        self.stderr.flush()

    def tail(self) -> str:
        """The last lines that were printed."""
        with self._path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            return file.read().decode("utf-8", "replace")

    def trim(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        """Empty the file if it is larger; processes that have it open go on writing at its new end."""
        if self._path.stat().st_size > max_bytes:
            os.truncate(self._path, 0)
