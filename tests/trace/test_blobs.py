"""Large values of payloads: taken out once, put back byte for byte."""

from __future__ import annotations

from hypothesis import given

from lmtool.trace import blobs
from lmtool.trace.events import Blob, Frame, Parsed
from lmtool.trace.styles import Style
from tests.trace.strategies import style, values

MASK = {str(i): -100 for i in range(2000)}


def test_a_large_member_becomes_a_reference() -> None:
    """A member above 8,192 characters is replaced by {"$blob": hash}; small ones stay."""
    kept: dict[str, object] = {}
    light = blobs.take_out(Parsed("GENERATE", {"prompt": [1], "logit_bias": MASK}, "py"), kept.__setitem__)
    (sha256,) = kept
    assert light.value == {"prompt": [1], "logit_bias": {"$blob": sha256}}
    assert kept == {sha256: MASK}
    assert blobs.references(Frame(0, ">", 1, light)) == [sha256]


@given(values, style)
def test_what_was_taken_out_is_put_back(value: object, name: Style) -> None:
    """The whole payload is the same again, whatever it is; also as an entry of a list."""
    for payload in ({"a": value, "b": MASK}, [{"a": value, "b": MASK}, value], value):
        kept: dict[str, object] = {}
        parsed = Parsed("X", payload, name)
        light = blobs.take_out(parsed, kept.__setitem__)
        assert blobs.put_back(light, kept.__getitem__).json == parsed.json


def test_what_is_no_reference_names_none() -> None:
    """Only an object with the one member `$blob`, a string, is a reference."""
    assert blobs.reference({"$blob": "ab"}) == "ab"
    assert [blobs.reference(v) for v in ({"$blob": 1}, {"$blob": "a", "b": 1}, "$blob", None)] == [None] * 4
    assert blobs.references(Blob(0, 0, "ab", {"$blob": "cd"})) == []
    assert blobs.references(Frame(0, ">", 1, "text")) == []
