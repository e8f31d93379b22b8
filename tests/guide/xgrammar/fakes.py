"""The library's stand-in, for this process and for those that compile."""

from __future__ import annotations

from pathlib import Path

from lmtool.guide.xgrammar.worker import Settings

FAKE = Path(__file__).with_name("fake")
"""The folder that has a module `xgrammar`."""
VOCABULARY = [*(bytes([code]) for code in range(128)), b"yes", b"", b""]
EOS = [129, 130]
SETTINGS = Settings(VOCABULARY, EOS, threads=1, step_seconds=0.05, slow_steps=3, memory_bytes=1 << 32)
"""What a process is prepared for."""
