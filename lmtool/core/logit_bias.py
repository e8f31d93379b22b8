"""A `logit_bias` of many ids in a few bytes each, to be handed on without touching each of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

MANY = 256
"""Ids from which on a bias is packed."""


class PackedBias(Mapping[int, float]):
    """Token ids with nats, as two arrays.

    A dictionary of a whole vocabulary of 128,000 ids takes 5 ms to come from another process, and 25 ms until it is
    checked and a tensor; this takes half a millisecond.
    """

    __slots__ = ("_by_id", "json", "nats", "token_ids")

    def __init__(self, token_ids: array[int], nats: array[float], json: bytes | None = None) -> None:
        """token_ids: of type code `q`, no two the same. nats: of type code `d`, as many.

        json: what it was read from.
        """
        self.token_ids = token_ids
        self.nats = nats
        self.json = json
        """Its JSON text, for whoever passes it on; None where it has none."""
        self._by_id: dict[int, float] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return PackedBias, (self.token_ids, self.nats, self.json)

    def __getitem__(self, token: int) -> float:
        if self._by_id is None:
            self._by_id = dict(zip(self.token_ids, self.nats, strict=True))
        return self._by_id[token]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and len(other) == len(self) and dict(other) == dict(self)

    __hash__ = None  # type: ignore[assignment]  # as any mapping

    def __iter__(self) -> Iterator[int]:
        return iter(self.token_ids)

    def __len__(self) -> int:
        return len(self.token_ids)


def pack_bias(bias: dict[int, float], json: bytes | None = None) -> Mapping[int, float]:
    """The same bias, packed where it has many ids. json: its text."""
    return bias if len(bias) < MANY else PackedBias(array("q", bias), array("d", bias.values()), json)
