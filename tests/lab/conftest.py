"""Runs the laboratory as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def lab(clean_environment: None, monkeypatch: pytest.MonkeyPatch):
    """Run `python -m tests.lab WORDS...` to its end in a clean environment; text in, text out."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(*words: str, timeout: float = PATIENCE, **env: str) -> subprocess.CompletedProcess[str]:
        words = (sys.executable, "-m", "tests.lab", *words)
        return subprocess.run(
            words, env={**os.environ, **env}, timeout=timeout, capture_output=True, text=True, check=False
        )

    return run
