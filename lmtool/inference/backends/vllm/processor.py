"""lmtool's guides as a logits processor of vLLM; imported by vLLM in its engine processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

from lmtool.core.errors import LmtoolError
from lmtool.core.logits_processors import Processors, processors_from
from lmtool.inference.backends.vllm.engine_guides import (
    BatchState,
    RowState,
    compile_constraint,
    engine_settings,
    guide_compiler,
)
from lmtool.inference.backends.vllm.shared_directory import KEY, STEP_SOCKET, StepSender

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMPILE_TIMEOUT = 15.0
"""Seconds to wait for a constraint that was compiled before the request came, and then evicted from the cache."""


class GuideProcessor(LogitsProcessor):  # type: ignore[misc]  # vLLM is not in the environment that checks types
    """Applies constraints and installed processors to requests that name them in `extra_args`; ignores others."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002  # vLLM's call
        self._directory = vllm_config.additional_config[KEY]
        self._state: BatchState | None = None

    def is_argmax_invariant(self) -> bool:
        """False: greedy requests need it too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Track vLLM's requests as they are added, moved and removed."""
        if batch_update is None:  # while vLLM warms up: the worker has not described the model yet
            return
        if self._state is None:
            settings = engine_settings()
            sender = StepSender(Path(self._directory) / STEP_SOCKET) if _first_rank() else None
            self._state = BatchState(settings.vocab_size, settings.eos_ids, sender)
        process_dict_updates(self._state.rows, batch_update, self._row)

    def apply(self, logits: Any) -> Any:
        """Mask and process the rows of one step. logits: [N, V] float32."""
        if self._state is not None and self._state.rows:
            self._state.apply(logits, guide_compiler())
        return logits

    def _row(self, params: Any, _: Sequence[int] | None, output: Sequence[int]) -> RowState | None:
        text = (params.extra_args or {}).get(KEY)
        if text is None:
            return None
        arguments = json.loads(text)
        constraint, processors = arguments.pop("constraint"), arguments.pop("processors")
        row = RowState(output=output, bias=params.logit_bias or {}, **arguments)
        try:
            if processors:
                row.processors = Processors(processors_from(processors))
                if output:  # vLLM had put the request off, and its row was given up
                    row.processors.resume(output)
            if constraint is not None:
                row.guide = compile_constraint(constraint).result(_COMPILE_TIMEOUT)
        except LmtoolError as problem:
            row.failure = problem
        return row


def _first_rank() -> bool:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return bool(get_tensor_model_parallel_rank() == 0)
