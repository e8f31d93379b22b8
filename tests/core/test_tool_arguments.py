"""Arguments of calls, whatever a model wrote."""

from __future__ import annotations

import json

import pytest

from lmtool.core.tool_arguments import arguments_object, object_text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": {"b": 1e3}}', {"a": {"b": 1000.0}}),
        (' {"a": "é"}\n', {"a": "é"}),
        ("", {}),
        (" ", {}),
        ("null", {}),
        ("{}", {}),
        ('{"a": "cut o', {"INVALID_JSON": '{"a": "cut o'}),
        ('{"a": NaN}', {"INVALID_JSON": '{"a": NaN}'}),
        ('["a"]', {"INVALID_JSON": '["a"]'}),
        ("7", {"INVALID_JSON": "7"}),
        ("[" * 100_000, {"INVALID_JSON": "[" * 100_000}),
        ('{"INVALID_JSON": "x"}', {"INVALID_JSON": "x"}),
    ],
)
def test_objects(text: str, expected: dict[str, object]) -> None:
    """An object is itself, to the byte; nothing is an empty one; anything else is kept as a text in one."""
    assert arguments_object(text) == expected
    assert json.loads(object_text(text)) == expected
    if expected and "INVALID_JSON" not in expected:
        assert object_text(text) == text
