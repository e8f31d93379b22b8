"""Streams whose workers are killed, through a balancer; `python -m tests.lab.kills` kills one every second."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmtool.core.interfaces import TokenModel
from tests.lab import kills as kill_load
from tests.lab import resuming as resume_load


@pytest.fixture
def stories() -> Iterator[TokenModel]:
    """The stories model, whose kernels use one thread."""
    import torch

    threads = torch.get_num_threads()
    model = resume_load.load()
    yield model
    model.close()  # type: ignore[attr-defined]  # a LoadedModel
    torch.set_num_threads(threads)


async def test_processes_that_are_killed(stories: TokenModel) -> None:
    """Of every kind of stream the ids, logprobs and texts are those of the run that nobody disturbs, to the bit."""
    outcome, kills = await kill_load.run(stories, len(resume_load.KINDS), kills=3, tokens=100, seconds=0.3)
    assert outcome.differences == []
    assert outcome.streams.keys() == resume_load.KINDS.keys()
    assert kills >= 3
    assert outcome.repeated > 0
