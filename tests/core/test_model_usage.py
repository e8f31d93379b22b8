"""What a model tells of its memory."""

from __future__ import annotations

from lmtool.core.model_usage import ModelUsage, usage_of


class Telling:
    """A model that tells."""

    usage_now = ModelUsage(1, 2, 300)


def test_a_model_that_tells_nothing_holds_nothing_known() -> None:
    """Unknown bytes are None and no zero; one that tells is believed."""
    assert usage_of(object()) == ModelUsage(0, 0, None, None, None, None)
    assert usage_of(Telling()) == (1, 2, 300, None, None, None)
