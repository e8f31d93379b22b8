"""What members of a pool think, for streams that ask for it."""

from __future__ import annotations

from typing import cast

import pytest

from lmtool.gateway.pool_answer import PoolAnswer
from lmtool.gateway.pool_stream import Outputs
from lmtool.providers.answer_events import TextDelta


class Answered:
    """An answer without seams."""

    seams = ()


@pytest.mark.parametrize("shown", [True, False])
def test_it_passes_through(shown: bool) -> None:
    """As `reasoning`, apart from the text; a stream that does not ask gets the text alone."""
    outputs = Outputs(1, cast("PoolAnswer", Answered()), shows_reasoning=shown)
    found = outputs.of([TextDelta(0, "Hm", (), "reasoning"), TextDelta(0, "Yes", ())])
    assert [(one.reasoning, one.text) for one in found] == ([("Hm", "")] if shown else []) + [(None, "Yes")]
