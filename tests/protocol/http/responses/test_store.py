"""What is remembered of answers."""

from __future__ import annotations

import pytest

from lmtool.core.types import ChatMessage
from lmtool.protocol.http.errors import ApiError
from lmtool.protocol.http.responses.server import Store, StoredResponse


def kept(number: str, text: str = "") -> StoredResponse:
    return StoredResponse({"id": number}, (ChatMessage("user", text),), ())


def test_it_is_bounded_in_number() -> None:
    """The one unused longest makes room."""
    store = Store(most=2)
    store.put(kept("a"))
    store.put(kept("b"))
    store.get("a")
    store.put(kept("c"))
    assert len(store) == 2
    assert store.get("a").response["id"] == "a"
    with pytest.raises(ApiError) as raised:
        store.get("b")
    assert (raised.value.status, raised.value.code) == (404, "previous_response_not_found")


def test_it_is_bounded_in_bytes() -> None:
    """Also by what conversations hold; one that is too large alone is not kept."""
    store = Store(max_bytes=500)
    store.put(kept("a", "x" * 300))
    store.put(kept("b", "x" * 300))
    assert len(store) == 1
    store.put(kept("c", "x" * 600))
    assert len(store) == 0


def test_it_forgets() -> None:
    """Once; and there is room again."""
    store = Store(max_bytes=400)
    store.put(kept("a", "x" * 300))
    store.delete("a")
    store.put(kept("b", "x" * 300))
    assert len(store) == 1
    with pytest.raises(ApiError):
        store.delete("a")
