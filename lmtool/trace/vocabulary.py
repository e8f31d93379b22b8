"""What token ids mean, told once each before the event that first names them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from lmtool.trace.events import Frame, Parsed, Vocab, token_entries
from lmtool.trace.redaction import spoken_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lmtool.trace.events import Event

Spell: TypeAlias = "Callable[[int], bytes]"
"""The bytes that a token id adds to a text."""

_PROMPTS = ("prompt", "scored")


class Explainer:
    """Knows which ids have been explained; nothing here reads or writes a file."""

    def __init__(self, spell: Spell) -> None:
        """Explain ids by `spell`."""
        self._spell = spell
        self._explained: set[int] = set()

    def new_ids(self, event: Event) -> list[int]:
        """The ids that an event names and that have not been explained, each once."""
        if not isinstance(event, Frame):
            return []
        explained = self._explained
        if event.direction == "<":
            named = [i for entry in token_entries(event) for i in spoken_ids(entry) if i not in explained]
        else:
            named = [i for i in _asked_ids(event) if i not in explained]
        return list(dict.fromkeys(named))

    def vocab(self, time: float, ids: Iterable[int]) -> Vocab | None:
        """The event that explains these ids, which count as explained from now on; None for no ids."""
        told = {i: _text(self._spell(i)) for i in ids}
        self._explained.update(told)
        return Vocab(time, 0, told) if told else None


def _asked_ids(frame: Frame) -> list[int]:
    payload = frame.content.value if isinstance(frame.content, Parsed) else None
    if not isinstance(payload, dict):
        return []
    lists = [payload.get(name) for name in _PROMPTS]
    return [i for ids in lists if isinstance(ids, list) for i in ids if type(i) is int and i >= 0]


def _text(piece: bytes) -> str | bytes:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return piece
