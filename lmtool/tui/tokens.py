"""All tokens of all streams in order of arrival, twenty bytes each."""

from __future__ import annotations

import math
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_ID = -1
"""Ids below it stand for texts that came without an id (`Texts.intern`)."""


class TokenLog:
    """Columns with one row a token. What is rarely looked at (alternatives) stays in the frame that brought it."""

    __slots__ = ("frames", "ids", "logprobs", "streams")

    def __init__(self) -> None:
        self.streams = array("i")
        """Index into `State.streams`."""
        self.ids = array("i")
        """Token id; below `NO_ID` a text that had no id (`State.text_of` knows it)."""
        self.logprobs = array("d")
        """Natural logarithm, nan where none was told."""
        self.frames = array("i")
        """Index into `State.frames`: what brought it."""

    def __len__(self) -> int:
        return len(self.ids)

    def extend(
        self, streams: Iterable[int], ids: Iterable[int], logprobs: Iterable[float], frames: Iterable[int]
    ) -> None:
        """Take the next tokens: as many of each."""
        self.streams.extend(streams)
        self.ids.extend(ids)
        self.logprobs.extend(logprobs)
        self.frames.extend(frames)

    def logprob(self, row: int) -> float | None:
        """The token's logprob in nats; None where none was told."""
        value = self.logprobs[row]
        return None if math.isnan(value) else value
