"""What was answered, kept within bounds, so that later requests can go on from it."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.http_api.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lmtool.types import ChatMessage

MOST_RESPONSES = 1000
MOST_BYTES = 64 << 20
"""Of their JSON and their conversations together."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One answer."""

    response: Mapping[str, Any]
    turns: tuple[ChatMessage, ...]
    """The conversation with it, without instructions."""
    items: str
    """What was sent for it, as JSON."""

    @property
    def size(self) -> int:
        """Estimated bytes."""
        said = sum(len(turn.content) + sum(len(call.arguments) for call in turn.tool_calls) for turn in self.turns)
        return said + len(self.items) + len(json.dumps(self.response, default=dict))


class Store:
    """Answers by id; the one unused longest makes room."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._kept: OrderedDict[str, tuple[Kept, int]] = OrderedDict()
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, kept: Kept) -> None:
        """Keep an answer, if it is not larger than everything together may be."""
        size = kept.size
        self._kept[kept.response["id"]] = (kept, size)
        self._bytes += size
        while self._kept and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            _, (_, freed) = self._kept.popitem(last=False)
            self._bytes -= freed

    def get(self, number: str) -> Kept:
        """The answer of this id. Raises `ApiError` 404."""
        try:
            kept, _ = self._kept[number]
            self._kept.move_to_end(number)
        except KeyError:
            raise _unknown(number) from None
        return kept

    def delete(self, number: str) -> None:
        """Forget it. Raises `ApiError` 404."""
        if number not in self._kept:
            raise _unknown(number)
        _, size = self._kept.pop(number)
        self._bytes -= size


def _unknown(number: str) -> ApiError:
    return ApiError(
        404,
        f"no response {number[:80]!r} is kept here: send store: true, and the whole conversation where it is long ago",
        param="previous_response_id",
        code="previous_response_not_found",
    )
