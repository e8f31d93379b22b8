"""Bars become progress, and nothing is drawn."""

from __future__ import annotations

import logging

import pytest
from transformers.utils import logging as transformers_logging

from lmtool.core.types import LoadProgress
from lmtool.inference.engine.checkpoint import Progress, quiet


@pytest.fixture
def seen():
    """What was reported."""
    return []


def test_read(seen):
    """Bytes in proportion to the weights read, at most a hundred reports."""
    progress = Progress("m", 5000, seen.append)
    progress.start()
    assert list(progress.read(range(1000))) == list(range(1000))
    assert seen[0] == LoadProgress("m", "loading", 0, 5000, "reading m")
    assert len(seen) == 101
    assert seen[50].done_bytes == 2500
    assert seen[-1].done_bytes == 5000


def test_download(seen, capsys):
    """Files of the hub count together, from where a broken download goes on; reading them then has their size."""
    progress = Progress("m", 0, seen.append)
    bar = progress.bar()
    with bar(total=100, initial=40, unit="B", unit_scale=True, desc="model-1") as one:
        one.update(60)
    with bar(total=300, unit="B", desc="model-2") as two:
        two.update(300)
    assert [(one.done_bytes, one.total_bytes) for one in seen] == [(40, 100), (100, 100), (100, 400), (400, 400)]
    assert seen[0].message == "downloading m"
    list(progress.read("ab"))
    assert (seen[-1].done_bytes, seen[-1].total_bytes, seen[-1].message) == (400, 400, "reading m")
    assert capsys.readouterr() == ("", "")


def test_watching(seen, capsys):
    """Transformers' bar over the weights is followed while a load lasts; others draw nothing."""
    progress = Progress("m", 10, seen.append)
    with progress.watching():
        assert list(transformers_logging.tqdm("ab", desc="Loading weights")) == ["a", "b"]
        assert list(transformers_logging.tqdm("ab", desc="Something else")) == ["a", "b"]
    assert [one.done_bytes for one in seen] == [5, 10]
    assert capsys.readouterr() == ("", "")


def test_quiet():
    """Transformers' own log level is lowered for the length of a load only."""
    before = transformers_logging.get_verbosity()
    with quiet():
        assert transformers_logging.get_verbosity() == logging.ERROR
    assert transformers_logging.get_verbosity() == before
