"""What the messages promise about themselves."""

import dataclasses

import pytest

from lmtool.lmtp import messages
from lmtool.types import GenerateRequest


def test_messages_are_frozen():
    """A message cannot be changed once it is made."""
    message = messages.Generate(GenerateRequest("1", (1,)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.progress = True


def test_extension_names_are_unique():
    """MODEL_INFO tells each extension once."""
    assert len(set(messages.EXTENSIONS)) == len(messages.EXTENSIONS)
