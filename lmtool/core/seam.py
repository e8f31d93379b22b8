"""Where another model went on with an answer that broke off, as every wire of a pool tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seam:
    """Where another model of a pool went on with an answer that broke off."""

    at: int
    """Characters (code points) of the answer's text before it."""
    before: str
    """The member of the pool whose text ends there."""
    after: str
    """The member whose text begins there."""

    @classmethod
    def read(cls, value: object) -> Seam | None:
        """The seam that a JSON value is; None where it is none."""
        match value:
            case {"at": int(at), "before": str(before), "after": str(after)} if at >= 0:
                return cls(at, before, after)
        return None
