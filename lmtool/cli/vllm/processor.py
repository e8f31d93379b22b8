"""Our guides as a logits processor of vLLM; vLLM imports it in its engine's processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

from lmtool.cli.vllm.extension import begin, compiler
from lmtool.cli.vllm.held import HeldRow, HeldRows, processors_of
from lmtool.cli.vllm.scratch import KEY, settings_of
from lmtool.cli.vllm.told import Teller
from lmtool.errors import LmtoolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lmtool.interfaces import GuideCompiler

_PATIENCE = 15.0
"""Seconds to wait for a constraint that was compiled before the request came, and that the cache lost again."""


class GuideProcessor(LogitsProcessor):  # type: ignore[misc]  # vLLM is not in the environment that checks types
    """Holds the requests whose `extra_args` say so, and leaves all others alone."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:  # noqa: ARG002  # vLLM's call
        self._folder = vllm_config.additional_config[KEY]
        self._rows: HeldRows | None = None

    def is_argmax_invariant(self) -> bool:
        """Whether greedy requests can do without: they cannot."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow vLLM's requests as they come, move and go."""
        if batch_update is not None:  # warming up changes nothing, and the worker has not said what the model is
            process_dict_updates(self._held.rows, batch_update, self._row)

    def apply(self, logits: Any) -> Any:
        """Hold the rows of one step. logits: [N, V] float32."""
        if self._rows is not None and self._rows.rows:
            guides: GuideCompiler | None = compiler(self._folder)
            self._rows.apply(logits, guides)
        return logits

    @property
    def _held(self) -> HeldRows:
        if self._rows is None:
            settings = settings_of(self._folder)
            teller = Teller(Path(self._folder) / "told") if _first_rank() else None
            self._rows = HeldRows(settings.vocab_size, settings.eos_ids, teller)
        return self._rows

    def _row(self, params: Any, _: Sequence[int] | None, output: Sequence[int]) -> HeldRow | None:
        given = (params.extra_args or {}).get(KEY)
        if given is None:
            return None
        told = json.loads(given)
        row = HeldRow(
            told["name"],
            output,
            bias=params.logit_bias or {},
            min_tokens=told["min_tokens"],
            stop_ids=told["stop_ids"],
            ignore_eos=told["ignore_eos"],
            best=told["best"],
        )
        try:
            row.processors = processors_of(told["processors"])
            if told["constraint"] is not None:
                row.guide = begin(self._folder, told["constraint"]).result(_PATIENCE)
        except LmtoolError as problem:
            row.problem = problem
        return row


def _first_rank() -> bool:
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return bool(get_tensor_model_parallel_rank() == 0)
