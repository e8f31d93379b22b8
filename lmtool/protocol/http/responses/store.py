"""What was answered, kept within bounds, so that later requests can go on from it."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lmtool.net.access.caller import caller_name
from lmtool.protocol.http.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lmtool.core.types import ChatMessage

MAX_RESPONSES = 1000
MAX_BYTES = 64 << 20
"""Of their JSON and their conversations together."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One answer."""

    response: Mapping[str, Any]
    turns: tuple[ChatMessage, ...]
    """The conversation with it, without instructions."""
    items: str
    """What was sent for it, as JSON."""

    @property
    def size(self) -> int:
        """Estimated bytes."""
        characters = sum(
            len(turn.content) + sum(len(call.arguments) for call in turn.tool_calls) for turn in self.turns
        )
        return characters + len(self.items) + len(json.dumps(self.response, default=dict))


class Store:
    """Answers by id, of each key its own; the one unused longest makes room."""

    def __init__(self, most: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._responses: OrderedDict[tuple[str, str], tuple[StoredResponse, int]] = OrderedDict()
        self._most = most
        self._max_bytes = max_bytes
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def memory_bytes(self) -> int:
        """Of all answers, estimated."""
        return self._bytes

    def put(self, stored: StoredResponse) -> None:
        """Keep an answer, if it is not larger than everything together may be."""
        size = stored.size
        self._responses[caller_name(), stored.response["id"]] = (stored, size)
        self._bytes += size
        while self._responses and (len(self._responses) > self._most or self._bytes > self._max_bytes):
            _, (_, freed) = self._responses.popitem(last=False)
            self._bytes -= freed

    def get(self, number: str) -> StoredResponse:
        """The answer of this id. Raises `ApiError` 404."""
        try:
            stored, _ = self._responses[caller_name(), number]
            self._responses.move_to_end((caller_name(), number))
        except KeyError:
            raise _unknown(number) from None
        return stored

    def items(self, ids: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """The items of these ids that the caller's answers consist of. Raises `ApiError` 404."""
        wanted = set(ids)
        found: dict[str, Mapping[str, Any]] = {}
        for (caller, _), (stored, _) in reversed(self._responses.items()):
            if caller == caller_name():
                found |= {item["id"]: item for item in stored.response["output"] if item["id"] in wanted}
            if len(found) == len(wanted):
                return found
        missing = next(number for number in ids if number not in found)
        raise ApiError(
            404,
            f"no item {missing[:80]!r} of an answer is kept here: send the item itself, or store: true for its answer",
            param="input",
            code="item_not_found",
        )

    def delete(self, number: str) -> None:
        """Forget it. Raises `ApiError` 404."""
        if (caller_name(), number) not in self._responses:
            raise _unknown(number)
        _, size = self._responses.pop((caller_name(), number))
        self._bytes -= size


def _unknown(number: str) -> ApiError:
    return ApiError(
        404,
        f"no response {number[:80]!r} is kept here: send store: true, and the whole conversation where it is long ago",
        param="previous_response_id",
        code="previous_response_not_found",
    )
