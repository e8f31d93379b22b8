"""Forms of output."""

from __future__ import annotations

import pytest

from lmtool.cli.talking.showing import form_of
from lmtool.errors import UsageError


def test_one_form() -> None:
    """There is one form, text unless another was chosen; two are refused by name."""
    assert form_of() == "text"
    assert form_of(jsonl=True) == "jsonl"
    with pytest.raises(UsageError, match="--table and --raw"):
        form_of(table=True, raw=True)
