"""The file of `--api-keys`: TOML with one table for each key; each fault is reported with its line."""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import FileError, UsageError
from lmtool.net.access.credentials import checked_key
from lmtool.net.access.keys import Key, KeyRing, Limits, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_BYTES = 4 << 20
"""Of the file."""
MAX_KEYS = 1000
"""Each request is compared with all of them."""
_LIMITS = tuple(each.name for each in fields(Limits))
_KEY_MEMBERS = ("name", "key", "hash", "models", "priority", "watch", "admin", *_LIMITS)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_HASH = re.compile(r"sha256:([0-9a-fA-F]{64})")
_LARGEST = 2**31
_SHOWN = 10
"""Most faults that one error lists."""


def read_keys(path: str) -> KeyRing:
    """The keys of a file. Raises `FileError` that names the file and the line of each fault, and never a secret."""
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error)).lower()
        raise FileError(f"cannot read the keys in {path}: {reason}", "check --api-keys") from None
    if len(data) > MAX_BYTES:
        raise FileError(f"{path} has more than {MAX_BYTES} bytes", "check --api-keys")
    return parse_keys(text, path)


def parse_keys(text: str, name: str) -> KeyRing:
    """The keys of a text. name: of its file, for errors. Raises as `read_keys`."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _not_toml(name, error, text.count("\n") + 1) from None
    reader = _Reader(text.splitlines())
    ring = reader.ring(tables)
    if reader.faults:
        sentences = [f"{name}:{line}: {sentence}" for line, sentence in sorted(reader.faults)]
        raise FileError(sentences[0], *sentences[1:_SHOWN])
    return ring


def _not_toml(name: str, error: tomllib.TOMLDecodeError, lines: int) -> FileError:
    """The error for a text that is no TOML; nothing of the text is repeated. lines: how many it has."""
    message, _, place = str(error).partition(" (at ")
    match = re.match(r"line (\d+)", place)
    message = re.sub(r"'.*'|\".*\"", "...", message)
    line = lines if match is None else int(match[1])
    return FileError(f"{name}:{line}: this is no TOML: {message}", "see https://toml.io for the format")


@dataclass(frozen=True, slots=True)
class _Place:
    """A table of the file: its name, which of several it is, and for sentences what it is."""

    table: str
    number: int
    what: str


class _Reader:
    """Reads the tables, and collects their faults with lines."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self.faults: list[tuple[int, str]] = []

    def ring(self, tables: Mapping[str, Any]) -> KeyRing:
        """All keys; incomplete where there are faults."""
        for name in tables.keys() - {"address", "limits", "keys"}:
            near = difflib.get_close_matches(name, ["address", "limits", "keys"], n=1)
            hint = f"; did you mean {near[0]}?" if near else "; there are [address], [limits] and [[keys]]"
            self.faults.append((self._line_of(name), f"this table is not known{hint}"))
        address = self._limits(tables.get("address", {}), _Place("address", 0, "[address]"))
        usual = self._limits(tables.get("limits", {}), _Place("limits", 0, "[limits]"))
        entries = tables.get("keys", [])
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            self.faults.append((self._line_of("keys"), "keys are tables, each under a heading [[keys]]"))
            entries = []
        if not entries and not self.faults:
            self.faults.append((1, "there is no key; a key begins with [[keys]], then name and key or hash"))
        if len(entries) > MAX_KEYS:
            self.faults.append((1, f"there are {len(entries)} keys; expected at most {MAX_KEYS}"))
        keys = [self._key(entry, _Place("keys", at, "this key"), usual) for at, entry in enumerate(entries)]
        self._check_unique(keys)
        return KeyRing(tuple(key for key in keys if key is not None), address)

    def _key(self, entry: Mapping[str, Any], place: _Place, usual: Limits) -> Key | None:
        self._check_members(entry, _KEY_MEMBERS, place)
        before = len(self.faults)
        name = entry.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self._fault(place, "name", "name is missing, or none of 1 to 64 letters, digits and _ . @ -")
        digest = self._digest(entry, place)
        models = self._models(entry, place)
        priority = entry.get("priority")
        if priority is not None and (type(priority) is not int or not -_LARGEST <= priority < _LARGEST):
            self._fault(place, "priority", "priority is no integer of 32 bits")
        watch, admin = (self._flag(entry, place, name) for name in ("watch", "admin"))
        limits = self._limits({name: entry[name] for name in _LIMITS if name in entry}, place, usual)
        if len(self.faults) > before or digest is None:
            return None
        return Key(str(name), digest, limits, priority, models, watch, admin)

    def _flag(self, entry: Mapping[str, Any], place: _Place, name: str) -> bool:
        if not isinstance(value := entry.get(name, False), bool):
            self._fault(place, name, f"{name} is neither true nor false")
        return value is True

    def _digest(self, entry: Mapping[str, Any], place: _Place) -> bytes | None:
        """The hash of the secret. No sentence has a part of it."""
        if ("key" in entry) == ("hash" in entry):
            self._fault(place, "hash", "there is either key, the key itself, or hash, sha256: and its SHA-256 in hex")
            return None
        if "hash" in entry:
            match = _HASH.fullmatch(entry["hash"]) if isinstance(entry["hash"], str) else None
            if match is None:
                self._fault(place, "hash", "hash is not sha256: and 64 hex digits")
            return None if match is None else bytes.fromhex(match[1])
        try:
            return digest_of(checked_key(entry["key"] if isinstance(entry["key"], str) else ""))
        except UsageError as error:
            self._fault(place, "key", error.sentence)
            return None

    def _models(self, entry: Mapping[str, Any], place: _Place) -> tuple[str, ...] | None:
        models = entry.get("models")
        if models is None:
            return None
        if not isinstance(models, list) or not all(isinstance(name, str) and name for name in models):
            self._fault(place, "models", 'models is no list of names, such as ["lmtool-tiny", "Qwen/*"]')
            return None
        return tuple(models)

    def _limits(self, table: object, place: _Place, usual: Limits | None = None) -> Limits:
        """The limits of a table, `usual` where it does not say."""
        if not isinstance(table, dict):
            self.faults.append((self._line_of(place.table), f"{place.what} is no table"))
            return Limits()
        if place.table != "keys":
            self._check_members(table, _LIMITS, place)
        values = {name: getattr(usual or Limits(), name) for name in _LIMITS}
        for name in _LIMITS:
            value = table.get(name)
            if value is None:
                continue
            if type(value) is not int or not 0 < value < _LARGEST:
                self._fault(place, name, f"{name} is no whole number from 1 on; without it there is no limit")
            values[name] = value
        return Limits(**values)

    def _check_members(self, table: Mapping[str, Any], known: tuple[str, ...], place: _Place) -> None:
        for name in table.keys() - set(known):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            self._fault(place, name, f"{place.what} has a member that is not known here; {hint}")

    def _check_unique(self, keys: list[Key | None]) -> None:
        attributes: tuple[tuple[str, Callable[[Key], object], str], ...] = (
            ("name", lambda key: key.name, "another key has this name"),
            ("key", lambda key: key.digest, "another key has this secret"),
        )
        for member, attribute, sentence in attributes:
            known: set[object] = set()
            for at, key in enumerate(keys):
                if key is not None and attribute(key) in known:
                    self._fault(_Place("keys", at, "this key"), member, sentence)
                if key is not None:
                    known.add(attribute(key))

    def _fault(self, place: _Place, member: str, sentence: str) -> None:
        self.faults.append((self._line_of(place.table, place.number, member), sentence))

    def _line_of(self, table: str, number: int = 0, member: str | None = None) -> int:
        """The line of a member of a table, else of the table, else the first; numbers from 1.

        The parser of the standard library knows no lines, so this looks for headings as people write them.
        """
        heading = re.compile(rf"\s*(\[\[?\s*[\"']?{re.escape(table)}[\"']?\s*\]\]?|{re.escape(table)}\s*=)")
        starts = [at for at, line in enumerate(self._lines) if heading.match(line)]
        if not starts:
            return 1
        start = starts[min(number, len(starts) - 1)]
        if member is None:
            return start + 1
        own = re.compile(rf"\s*[\"']?{re.escape(member)}[\"']?\s*=")
        for at in range(start + 1, len(self._lines)):
            if own.match(self._lines[at]):
                return at + 1
            if re.match(r"\s*\[", self._lines[at]):
                break
        return start + 1
