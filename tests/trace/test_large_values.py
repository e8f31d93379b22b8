"""Large values of payloads: taken out once, put back byte for byte."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from lmtool.trace.codec import LargeValues, may_be_large, put_back, reference, references
from lmtool.trace.events import Blob, Frame, JsonText, Request, Style
from tests.trace.strategies import style, values

MASK = {str(i): -100 for i in range(2000)}


def test_a_large_member_becomes_a_reference() -> None:
    """A member above 8,192 characters is replaced by {"$blob": hash}; small ones stay. Each value is written once."""
    values_once = LargeValues()
    frame = Frame(2, ">", 1, JsonText("GENERATE", {"prompt": [1], "logit_bias": MASK}, "py"))
    blob, light = values_once.take_out(frame)
    assert isinstance(blob, Blob)
    assert (blob.time, blob.value) == (2, MASK)
    assert light == replace(
        frame, content=JsonText("GENERATE", {"prompt": [1], "logit_bias": {"$blob": blob.sha256}}, "py")
    )
    assert references(light) == [blob.sha256]
    assert list(values_once.take_out(frame)) == [light]


@given(values, style)
def test_what_was_taken_out_is_put_back(value: object, name: Style) -> None:
    """The whole payload is the same again, whatever it is; also as an entry of a list, or in a request's body."""
    for payload in ({"a": value, "b": MASK}, [{"a": value, "b": MASK}, value], value):
        content = JsonText("X", payload, name)
        for event in (Frame(0, ">", 1, content), Request(0, 1, "POST", "/", {}, content)):
            *blobs, light = LargeValues().take_out(event)
            large = {blob.sha256: blob.value for blob in blobs if isinstance(blob, Blob)}
            assert may_be_large(event) >= bool(large)
            assert put_back(light, large.__getitem__) == event


def test_what_is_no_reference_names_none() -> None:
    """Only an object with the one member `$blob`, a string, is a reference."""
    assert reference({"$blob": "ab"}) == "ab"
    assert [reference(v) for v in ({"$blob": 1}, {"$blob": "a", "b": 1}, "$blob", None)] == [None] * 4
    assert references(Blob(0, 0, "ab", {"$blob": "cd"})) == []
    assert references(Frame(0, ">", 1, "text")) == []
