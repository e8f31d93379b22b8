"""Requests as structs, and what is told of those that are none."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from lmtool.protocol.http.decoding import Body, Fields, check_range, check_size, decode, read_object
from lmtool.protocol.http.errors import ApiError


class Inner(Fields):
    """A part."""

    name: Annotated[str, Meta(min_length=1, description="the name of a part")]
    size: int | None = None


class First(msgspec.Struct, tag_field="type", tag="first"):
    """One of two kinds."""

    count: int


class Second(msgspec.Struct, tag_field="type", tag="second"):
    """The other."""

    text: str


class Request(Body, kw_only=True):
    """All that a request can have."""

    share: Annotated[float, Meta(ge=0, le=1)] | None = None
    count: Annotated[int, Meta(ge=0, le=9)] | None = None
    flag: bool | None = None
    text: str | None = None
    word: Literal["a", "b"] | None = None
    parts: Annotated[list[Inner], Meta(max_length=2)] | None = None
    kinds: list[First | Second] | None = None
    more: dict[str, Any] | None = None
    several: str | list[int] | None = None


class TestDecode:
    """`decode`: a struct, or an error with the field's name, the value and what may stand there."""

    def test_values(self) -> None:
        """Each has its type; null and nothing are the same, also of names that are not known."""
        found = decode(Request, {"share": 1, "count": 3, "parts": [{"name": "x", "size": None}], "text": None})
        assert (found.share, found.count, found.parts, found.text) == (1.0, 3, [Inner(name="x")], None)
        assert decode(Request, {"unheard_of": None, "more": {"a": None}, "parts": [{"name": "x", "b": None}]}).parts

    @pytest.mark.parametrize(
        ("body", "param", "sentence"),
        [
            ({"share": 1.5}, "share", "share is 1.5; expected a number from 0 to 1"),
            ({"share": "0.5"}, "share", "share is '0.5'; expected a number from 0 to 1"),
            ({"share": float("nan")}, "share", "share is nan; expected a number from 0 to 1"),
            ({"count": 10}, "count", "count is 10; expected a whole number from 0 to 9"),
            ({"count": 1.5}, "count", "count is 1.5; expected a whole number from 0 to 9"),
            ({"count": True}, "count", "count is True; expected a whole number from 0 to 9"),
            ({"flag": "yes"}, "flag", "flag is 'yes'; expected true or false"),
            ({"text": 1}, "text", "text is 1; expected a text"),
            ({"word": "c"}, "word", "word is 'c'; expected one of a, b"),
            ({"more": []}, "more", r"more is \[\]; expected an object"),
            ({"several": {}}, "several", "several is {}; expected a text, or a list, each a whole number"),
            ({"parts": 1}, "parts", "parts is 1; expected a list of at most 2, each an object with name"),
            ({"parts": [{}] * 3}, "parts", "expected a list of at most 2"),
            ({"parts": ["x"]}, "parts[0]", r"parts\[0\] is 'x'; expected an object with name"),
            ({"parts": [{}]}, "parts[0].name", r"parts\[0\].name is missing; expected the name of a part"),
            ({"parts": [{"name": ""}]}, "parts[0].name", r"parts\[0\].name is ''; expected the name of a part"),
            ({"kinds": [{"type": "first", "count": "x"}]}, "kinds[0].count", "expected a whole number"),
            ({"kinds": [{"type": "second", "text": 5}]}, "kinds[0].text", "is 5; expected a text"),
            (
                {"kinds": [{"type": "third"}]},
                "kinds[0].type",
                "is 'third'; expected one of first, second",
            ),
            ({"cuont": 3}, "cuont", "cuont is not known here; did you mean count"),
            (
                {"parts": [{"name": "x", "siez": 3}]},
                "parts[0].siez",
                "is not known here; did you mean size",
            ),
            ({"text": ["z" * 5000]}, "text", "text is "),
        ],
    )
    def test_what_is_wrong_is_named(self, body: dict[str, Any], param: str, sentence: str) -> None:
        """400, with a sentence that is never long."""
        with pytest.raises(ApiError, match=sentence) as raised:
            decode(Request, body)
        assert (raised.value.status, raised.value.param) == (400, param)
        assert len(raised.value.message) < 200
        code = "unknown_parameter" if "not known" in sentence else "invalid_value"
        assert raised.value.code == code

    def test_the_path_of_what_is_inside(self) -> None:
        """An object that is decoded by itself says where it stands."""
        with pytest.raises(ApiError, match=r"^input\[3\]\.size is 'x'"):
            decode(Inner, {"name": "x", "size": "x"}, "input[3]")

    def test_fields_that_change_nothing(self) -> None:
        """What says something about the request is taken from anybody."""
        decode(Request, {"user": "me", "metadata": {}, "store": True, "service_tier": "auto", "prompt_cache_key": "x"})


def test_a_body_is_an_object() -> None:
    """Anything else is no request; what only Python's reader takes is read all the same."""
    assert read_object(dict, b'{"a": "\\ud800"}') == {"a": "\ud800"}
    for body in (b"[]", b"{", b"", b'"x"', b"[" * 100_000):
        with pytest.raises(ApiError, match="the request is not") as raised:
            read_object(dict, body)
        assert raised.value.status == 400


def test_limits_that_the_server_sets() -> None:
    """Numbers above one, and values with too many bytes."""
    check_range("top", 3, 0, 3)
    check_range("top", None, 0, 3)
    with pytest.raises(ApiError, match="top is 4; expected a whole number from 0 to 3"):
        check_range("top", 4, 0, 3)
    check_size("tools", ["x" * 5], 10)
    with pytest.raises(ApiError, match="tools has 13 bytes; expected at most 10") as raised:
        check_size("tools", ["x" * 9], 10)
    assert raised.value.param == "tools"


def test_half_a_surrogate_pair_in_a_name() -> None:
    """JSON may spell it, and no name of a field can have it: the request is refused, and is no fault of the server."""
    with pytest.raises(ApiError, match=r"a name in the request has U\+D800, half a surrogate pair") as refused:
        read_object(lambda body: decode(Inner, body), b'{"name": "a", "\\ud800": 1}')
    assert refused.value.status == 400
