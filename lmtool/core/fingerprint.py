"""A model's fingerprint: a hash of everything that decides the ids and logprobs of its streams.

Two servers with one fingerprint give a stream the same bits, wherever each of them gives it the same bits twice: always
on a CPU, and with `deterministic` on a GPU. So either may go on with a stream of the other
(`GenerateRequest.generated`). The reverse does not hold: what differs in a version, a processor or a thread count may
well compute the same, but nothing says so. Nobody is kept from forging one: it tells servers of one operator apart.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def fingerprint(parts: Mapping[str, object]) -> str:
    """The SHA-256 of these parts, in hex. Their order means nothing; what is no JSON counts by its `str`."""
    text = json.dumps(parts, sort_keys=True, default=str, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
