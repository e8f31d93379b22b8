"""The limits under which constraints are compiled and followed."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GuideConfig:
    """Settings of a `GuideCompiler`, each with its unit."""

    threads: int = 1 + (os.cpu_count() or 1) // 2
    """Constraints compiled at the same time."""
    fill_threads: int = max(1, (os.cpu_count() or 1) // 2)
    """Threads that fill the masks of one step."""
    max_waiting: int = 256
    """Different constraints that may wait for a thread; more are refused as overload."""
    deadline: float = 10.0
    """Seconds from the request to the guide; a constraint that takes longer is refused as too complex."""
    cache_bytes: int = 32 * 1024 * 1024
    """Bytes of compiled constraints that are kept, by estimate; the one unused longest goes first."""
    failure_seconds: float = 60.0
    """Seconds for which a failure is answered from memory."""
    late_seconds: float = 0.002
    """Seconds of one stream's mask from which its next one is found while nobody waits."""
    step_seconds: float = 0.05
    """Seconds that one stream's mask may take."""
    slow_steps: int = 3
    """Steps over `step_seconds` after which a stream is ended with an error."""
