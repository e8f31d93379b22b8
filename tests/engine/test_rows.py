"""Some rows of a tensor."""

from __future__ import annotations

import pytest
import torch

from lmtool.engine.rows import put_rows, rows_of

TABLE = torch.arange(12.0).view(4, 3)


@pytest.mark.parametrize("members", [[0, 1, 2, 3], [1, 2], [3], [2, 0], [0, 2, 1, 3]])
def test_taken_and_put_back(members):
    """Rows come in the order asked for, and go back to where they came from."""
    taken = rows_of(TABLE, members)
    assert taken.tolist() == [TABLE[member].tolist() for member in members]
    copied = torch.zeros(4, 3)
    put_rows(copied, members, taken)
    assert copied.tolist() == [TABLE[row].tolist() if row in members else [0.0] * 3 for row in range(4)]


def test_rows_in_a_row_are_no_copy():
    """What follows each other is a view."""
    assert rows_of(TABLE, [1, 2]).data_ptr() == TABLE[1].data_ptr()
