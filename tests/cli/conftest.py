"""Commands read settings files, variables and the current folder: each test of one gets its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _isolated(clean_environment: None) -> None:
    """Use `clean_environment` in every test of this folder."""
