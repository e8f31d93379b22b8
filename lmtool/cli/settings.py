"""Where settings come from: option > environment > nearest lmtool.toml > the user's lmtool.toml > default."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmtool.errors import FileError

FILE_NAME = "lmtool.toml"
KEYS = ("inspect", "keys")
"""The table that gives the inspector's actions other keys: its names are actions, not options."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value from a settings file."""

    value: Any
    origin: Path
    """The file it was read from."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Values per command path, such as `("chat", "max_tokens")`; `("endpoint",)` holds for every command."""

    values: Mapping[tuple[str, ...], Setting] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    """What was read, strongest first."""

    @property
    def keys(self) -> dict[str, str]:
        """Actions of the inspector to the keys that a settings file gives them."""
        return {path[-1]: str(found.value) for path, found in self.values.items() if path[:-1] == KEYS}

    def find(self, command: tuple[str, ...], option: str) -> Setting | None:
        """What is set for an option of a command."""
        return self.values.get((*command, option)) or self.values.get((option,))

    def origin(self, command: tuple[str, ...], option: str) -> Path | None:
        """The file in which that is."""
        found = self.find(command, option)
        return None if found is None else found.origin

    def default_map(self, options: Mapping[tuple[str, ...], Mapping[str, str]]) -> dict[str, Any]:
        """Nested defaults as click reads them. options: of each command path, names as spelled and of parameters.

        Raises `FileError` for a name that no command has.
        """
        for path, setting in self.values.items():
            self._check(path, setting, options)
        tree: dict[str, Any] = {}
        for command, names in options.items():
            node = tree
            for part in command:
                node = node.setdefault(part, {})
            for name, parameter in names.items():
                found = self.find(command, name)
                if found is not None:
                    node[parameter] = found.value
        return tree

    def _check(
        self, path: tuple[str, ...], setting: Setting, options: Mapping[tuple[str, ...], Mapping[str, str]]
    ) -> None:
        known = {(*command, name) for command, names in options.items() for name in names}
        known |= {(name,) for names in options.values() for name in names}
        if path in known or path[: len(KEYS)] == KEYS:
            return
        import difflib

        near = difflib.get_close_matches(".".join(path), [".".join(k) for k in known], n=1)
        raise FileError(
            f"{setting.origin}: no option is called {'.'.join(path)!r}",
            *([f"did you mean:  {near[0]}"] if near else []),
            "all names:     lmtool config show",
        )


def load(explicit: str | None = None) -> Settings:
    """Read the settings files: the explicit one alone, or the nearest project file and the user's.

    Raises `FileError` when a file cannot be read or is not TOML.
    """
    files = [Path(explicit)] if explicit else [p for p in (project_file(Path.cwd()), user_file()) if p and p.is_file()]
    values: dict[tuple[str, ...], Setting] = {}
    for file in reversed(files):
        values.update({path: Setting(value, file) for path, value in _leaves(_read(file))})
    return Settings(values, tuple(files))


def project_file(start: Path) -> Path | None:
    """Return the nearest `lmtool.toml` in `start` or a folder above it."""
    return next((d / FILE_NAME for d in (start, *start.parents) if (d / FILE_NAME).is_file()), None)


def user_file() -> Path:
    """Return the user's settings file in the platform's configuration folder, whether it exists or not."""
    if sys.platform == "win32":
        base = Path(os.environ.get("APPDATA") or Path.home() / "AppData/Roaming")
    elif sys.platform == "darwin":
        base = Path.home() / "Library/Application Support"
    else:
        base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "lmtool" / FILE_NAME


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read settings file {file}: {error.strerror}", "check --settings") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{file} is not valid TOML: {error}", "see https://toml.io for the format") from error


def _leaves(table: Mapping[str, Any], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key, value in table.items():
        here = (*path, key.replace("-", "_"))
        found += _leaves(value, here) if isinstance(value, dict) else [(here, value)]
    return found
