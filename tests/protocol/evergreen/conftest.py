"""Models for the tests of actions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lmtool.inference.tiny.path import MODEL_DIR
from tests.protocol.evergreen.models import Only


@pytest.fixture(scope="session")
def tiny() -> Iterator[Only]:
    """The embedded model, which has a chat template and 512 tokens of context."""
    import torch

    from lmtool.inference.engine.config import EngineConfig
    from lmtool.serving.composition import Loader

    threads = torch.get_num_threads()
    model = Loader(EngineConfig(device="cpu", threads=1)).load(str(MODEL_DIR), lambda _: None)
    yield Only(model, "lmtool-tiny")
    model.close()
    torch.set_num_threads(threads)
