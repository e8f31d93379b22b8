"""The tree of errors."""

from __future__ import annotations

import inspect

import pytest

from lmtool.core import errors
from lmtool.core.errors import LmtoolError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, LmtoolError)]
EXIT_CODES = {1, 2, 3, 4, 5, 6, 7, 8}
"""What the README documents for ends that an error causes."""


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_each_class_has_a_documented_exit_code_and_a_wire_name(kind: type[LmtoolError]) -> None:
    """An error ends a command with a documented status and names its kind on the wire."""
    assert kind.exit_code in EXIT_CODES
    assert kind.code.isidentifier()
    assert kind.__doc__


def test_an_error_says_what_and_what_next() -> None:
    """The message is what `str` gives; hints are apart, one line each."""
    error = errors.ConnectError("no server at ws://x/", "start one: lmtool serve", "or --endpoint")
    assert str(error) == error.message == "no server at ws://x/"
    assert error.hints == ("start one: lmtool serve", "or --endpoint")


def test_what_a_client_did_wrong_is_told_from_what_the_server_lacks() -> None:
    """A bad request is exit 4 and never a missing resource; a model that cannot be loaded is exit 8."""
    assert errors.ContextOverflowError.exit_code == 4
    assert not issubclass(errors.RequestError, errors.ResourceError)
    assert errors.ModelNotFoundError.exit_code == 8
    assert errors.ModelNotFoundError.code == "model_load"
