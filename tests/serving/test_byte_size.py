"""Sizes in bytes as people write them."""

from __future__ import annotations

import pytest

from lmtool.core.errors import UsageError
from lmtool.serving.config import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GB", 4_000_000_000),
        ("512MiB", 512 << 20),
        ("1000", 1000),
        ("1000 B", 1000),
        ("1.5 GiB", 3 << 29),
        ("2g", 2_000_000_000),
        ("3 kib", 3072),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Units of 1000 and of 1024, in any case, with and without a blank; a bare number is bytes."""
    assert parse_bytes(text, "--memory") == size


@pytest.mark.parametrize(
    "text", ["", "GB", "-1GB", "4 apples", "0", "0.1B", "1e9", "9" * 40, "2000000TB", "4GBB", "inf"]
)
def test_no_sizes(text: str) -> None:
    """Anything else is an error that names the option, the value and what was expected."""
    with pytest.raises(UsageError, match=r"--memory is '.*'; expected a size in bytes") as refused:
        parse_bytes(text, "--memory")
    assert "4GB" in refused.value.hints[0]
