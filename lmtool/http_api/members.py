"""Reads the members of a request's JSON object, each once, by name and type; what nobody reads is refused by name."""

from __future__ import annotations

import difflib
import json
import math
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import msgspec

from lmtool.http_api.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

HARMLESS = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
"""Members that say something about the request and change nothing about its answer."""
MOST_MEMBER_BYTES = 512 * 1024
"""Of a member that is handed on as it is, as JSON."""
_SHOWN = 80


def read_object(read: Callable[[Mapping[str, Any]], T], data: bytes) -> T:
    """What `read` makes of the JSON object in a request's body. Raises `ApiError`."""
    try:
        body = _json(data)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the request is not a JSON object")
    return read(body)


def _json(data: bytes) -> object:
    """The value of a JSON text. Raises `ValueError` or `RecursionError`."""
    try:
        value: object = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):  # Python's own reader takes more, and says where it went wrong
        value = json.loads(data)
    return value


class Members:
    """A request's members. `null` counts as absent. Every reader raises `ApiError` 400 that names the member."""

    def __init__(self, given: Mapping[str, object], inside: str = "") -> None:
        """inside: path of the object that they are members of, with its dot."""
        self._left = {name: value for name, value in given.items() if value is not None}
        self._known: set[str] = set()
        self._inside = inside

    def take(self, name: str) -> object:
        """The value as it is; None where there is none."""
        self._known.add(name)
        return self._left.pop(name, None)

    def text(self, name: str) -> str | None:
        """A text."""
        value = self.take(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.take(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return default if value is None else bool(value)

    def integer(self, name: str, least: int, most: int) -> int | None:
        """A whole number within bounds."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(name, value, f"a whole number from {least} to {most}")
        return value

    def number(self, name: str, least: float, most: float, default: float) -> float:
        """A number within bounds."""
        value = self.take(name)
        if value is None:
            return default
        if not _is_number(value) or not least <= value <= most:
            raise self.wrong(name, value, f"a number from {least:g} to {most:g}")
        return float(value)

    def texts(self, name: str, most: int) -> tuple[str, ...]:
        """A text, or a list of at most so many."""
        value = self.take(name)
        if value is None:
            return ()
        given = value if isinstance(value, list) else [value]
        texts = tuple(one for one in given if isinstance(one, str) and one)
        if len(texts) != len(given) or len(given) > most:
            raise self.wrong(name, value, f"a text, or up to {most} of them, none empty")
        return texts

    def inner(self, name: str) -> Members | None:
        """An object's own members."""
        value = self.take(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        return Members(value, f"{self._inside}{name}.")

    def objects(self, name: str, most: int, *, most_bytes: int | None = None) -> list[Members]:
        """The members of each object of a list of at most so many; none where there is no list.

        most_bytes: of the list as JSON; None: as many as the request may have.
        """
        value = self.take(name)
        if value is None:
            return []
        if not isinstance(value, list) or len(value) > most:
            raise self.wrong(name, value, f"a list of at most {most} objects")
        for at, one in enumerate(value):
            if not isinstance(one, dict):
                raise self.wrong(f"{name}[{at}]", one, "an object")
        if most_bytes is not None:
            self.check_size(name, value, most_bytes)
        return [Members(one, f"{self._inside}{name}[{at}].") for at, one in enumerate(value)]

    def mapping(self, name: str, *, most_bytes: int | None = MOST_MEMBER_BYTES) -> dict[str, object]:
        """An object as it is; empty where there is none. most_bytes: as JSON; None: as many as the request may have."""
        value = self.take(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(name, value, "an object")
        if most_bytes is not None:
            self.check_size(name, value, most_bytes)
        return value

    def check_size(self, name: str, value: object, most_bytes: int = MOST_MEMBER_BYTES) -> None:
        """Refuse a value of more bytes as JSON: what is handed on as it is must not have a million parts."""
        size = len(json.dumps(value))
        if size > most_bytes:
            param = f"{self._inside}{name}"
            raise ApiError(400, f"{param} has {size} bytes; expected at most {most_bytes}", param=param)

    def end(self) -> None:
        """Refuse what was not read: a misspelt parameter must not be ignored in silence."""
        unknown = sorted(self._left.keys() - (HARMLESS if not self._inside else set()))
        if unknown:
            near = difflib.get_close_matches(unknown[0], sorted(self._known), n=1)
            advice = f"; did you mean {near[0]}?" if near else ""
            name = f"{self._inside}{unknown[0]}"
            raise ApiError(400, f"{name} is not known here{advice}", param=name, code="unknown_parameter")

    def wrong(self, name: str, value: object, expected: str) -> ApiError:
        """The error for a member with a value that cannot be."""
        if isinstance(value, str | list):
            value = value[: _SHOWN + 1]  # of a million, the first ones are shown
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
        param = f"{self._inside}{name}"
        return ApiError(400, f"{param} is {shown}; expected {expected}", param=param, code="invalid_value")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
