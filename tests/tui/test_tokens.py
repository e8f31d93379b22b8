"""Columns of tokens."""

from __future__ import annotations

from lmtool.tui.tokens import TokenLog


def test_rows_in_order_of_arrival() -> None:
    """A row a token; a logprob that was not told is None, others keep the precision of a float32."""
    log = TokenLog()
    log.extend([0, 1], [5, -2], [-0.1, float("nan")], [3, 3])
    log.extend((0,), (7,), (-12.5,), (4,))
    assert len(log) == 3
    assert (log.streams.tolist(), log.ids.tolist(), log.frames.tolist()) == ([0, 1, 0], [5, -2, 7], [3, 3, 4])
    assert [log.logprob(row) is None for row in range(3)] == [False, True, False]
    assert abs((log.logprob(0) or 0) + 0.1) < 1e-7
    assert log.logprob(2) == -12.5
