"""The library's stand-in, for this process and for the program that compiles."""

from __future__ import annotations

from pathlib import Path

FAKE = Path(__file__).with_name("fake")
"""The folder that has a module `xgrammar`."""
VOCABULARY = [*(bytes([code]) for code in range(128)), b"yes", b"", b""]
EOS = [129, 130]
SETTINGS = {
    "vocabulary": [token.decode("latin-1") for token in VOCABULARY],
    "eos": EOS,
    "threads": 1,
    "step_seconds": 0.05,
    "slow_steps": 3,
    "niceness": 0,
    "memory_bytes": 1 << 32,
}
"""What the program is told first."""
