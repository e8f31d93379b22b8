"""Loads the models that a server begins with, and reports them as one load."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from lmtool.core.errors import LmtoolError
from lmtool.core.types import LoadProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lmtool.core.types import ModelInfo
    from lmtool.inference.engine.model_manager import ModelManager

_log = logging.getLogger(__name__)


async def load_together(
    models: ModelManager, names: Sequence[str], on_progress: Callable[[LoadProgress], None]
) -> list[ModelInfo]:
    """Load as many of these models as fit; the descriptions of those that could be loaded, in their order.

    One that cannot is logged: its requests get the error, and try again after a pause. Raises the first error where
    none can.
    """
    begun = models.preload(names)
    joint = JointProgress(begun, on_progress)
    unsubscribes = [models.subscribe(name, joint.update) for name in begun]
    try:
        results = await asyncio.gather(*(models.info(name) for name in begun), return_exceptions=True)
    finally:
        for unsubscribe in unsubscribes:
            unsubscribe()
    errors = {name: result for name, result in zip(begun, results, strict=True) if isinstance(result, BaseException)}
    for name, error in errors.items():
        if len(errors) == len(begun) or not isinstance(error, LmtoolError):
            raise error
        _log.warning("%s is not in memory: %s", name, error.sentence)
    return [result for result in results if not isinstance(result, BaseException)]


class JointProgress:
    """The loads of several models as one: it is over when the last of them is, and failed where all have."""

    def __init__(self, names: Sequence[str], listener: Callable[[LoadProgress], None]) -> None:
        self._loads = {name: LoadProgress(name, "waiting") for name in names}
        self._listener = listener

    def update(self, progress: LoadProgress) -> None:
        """Take the progress of one of them."""
        self._loads[progress.model] = progress
        self._listener(progress if len(self._loads) == 1 else self._joint(progress))

    def _joint(self, latest: LoadProgress) -> LoadProgress:
        loads = self._loads.values()
        going = [load.model for load in loads if load.phase not in {"ready", "failed"}]
        phases = {load.phase for load in loads}
        over = replace(latest, phase="ready" if "ready" in phases else "failed")
        joint = over if not going else replace(latest, phase="loading" if phases != {"waiting"} else "waiting")
        return replace(
            joint,
            model=", ".join(going or self._loads),
            done_bytes=sum(load.done_bytes for load in loads),
            total_bytes=sum(load.total_bytes for load in loads),
        )
