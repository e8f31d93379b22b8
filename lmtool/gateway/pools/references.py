"""References in a configuration's texts: `${env:NAME}`, `${file:PATH}`, `$NAME`, and `$$` for a dollar sign."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from lmtool.net.access.secret import Secret

_REFERENCE = re.compile(
    r"\$\$|\$\{(?P<kind>env|file):(?P<place>[^}]*)\}|\$(?P<name>[A-Za-z_][A-Za-z0-9_]*)|\$\{[^}]*\}?"
)
MAX_FILE_BYTES = 64 * 1024
"""Of a file that a reference names: a key or a text, not a data set."""


class ReferenceFailedError(Exception):
    """A reference to something that is not there; its text is a sentence for the configuration's author."""


def expand(text: str) -> str:
    """The text with its references replaced. Raises `ReferenceFailedError`."""
    return _REFERENCE.sub(_value, text)


def _value(match: re.Match[str]) -> str:
    if match[0] == "$$":
        return "$"
    if match["kind"] == "file":
        return _file(match["place"])
    name = match["place"] if match["kind"] == "env" else match["name"]
    if name is None:
        raise ReferenceFailedError(
            f"{match[0]} is no reference; expected ${{env:NAME}} or ${{file:PATH}}, $$ for a dollar"
        )
    value = os.environ.get(name)
    if value is None:
        raise ReferenceFailedError(f"the environment variable {name} is not set")
    return value


def _file(place: str) -> str:
    """A file's text without the newline at its end."""
    path = Path(place).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ReferenceFailedError(f"cannot read the file {place}: {(error.strerror or 'error').lower()}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ReferenceFailedError(f"the file {place} has more than {MAX_FILE_BYTES} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ReferenceFailedError(f"the file {place} is no UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")


@dataclass(frozen=True, slots=True, repr=False)
class SecretSource:
    """Where a secret comes from. Equal where its text and its value are."""

    template: str
    """As it was written: a literal key, or references."""
    secret: Secret
    """Its value when the configuration was read."""

    @classmethod
    def read(cls, template: str) -> SecretSource:
        """The secret of a text with references. Raises `ReferenceFailedError`."""
        return cls(template, Secret(expand(template)))

    def again(self) -> SecretSource:
        """The secret as it is now: a file may have been replaced. The same where it cannot be read any more."""
        try:
            return SecretSource.read(self.template)
        except ReferenceFailedError:
            return self

    def __repr__(self) -> str:
        return f"SecretSource({self.secret!r})"
