"""Settings files. Precedence: option, environment, nearest lmtool.toml, the user's lmtool.toml, default."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmtool.core.errors import FileError

FILE_NAME = "lmtool.toml"
KEYS = ("inspect", "keys")
"""Table of the inspector's key bindings; its names are actions, not options."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value from a settings file."""

    value: Any
    origin: Path
    """File that sets it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Values per command path, such as `("chat", "max_tokens")`; `("endpoint",)` applies to every command."""

    values: Mapping[tuple[str, ...], Setting] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    """Files that were read, highest precedence first."""

    @property
    def keys(self) -> dict[str, str]:
        """Key bindings of the inspector: action to key."""
        return {path[-1]: str(setting.value) for path, setting in self.values.items() if path[:-1] == KEYS}

    def find(self, command: tuple[str, ...], option: str) -> Setting | None:
        """Setting of a command's option, or None."""
        return self.values.get((*command, option)) or self.values.get((option,))

    def origin(self, command: tuple[str, ...], option: str) -> Path | None:
        """File with the setting of a command's option, or None."""
        setting = self.find(command, option)
        return None if setting is None else setting.origin

    def default_map(self, options: Mapping[tuple[str, ...], Mapping[str, str]]) -> dict[str, Any]:
        """Nested defaults as click reads them. options: for each command path, option names to parameter names.

        Raises `FileError` for an unknown option.
        """
        for path, setting in self.values.items():
            self._check(path, setting, options)
        tree: dict[str, Any] = {}
        for command, names in options.items():
            node = tree
            for part in command:
                node = node.setdefault(part, {})
            for name, parameter in names.items():
                own = self.find(command, name)
                if own is not None:
                    node[parameter] = own.value
        return tree

    def _check(
        self, path: tuple[str, ...], setting: Setting, options: Mapping[tuple[str, ...], Mapping[str, str]]
    ) -> None:
        all_paths = {(*command, name) for command, names in options.items() for name in names}
        all_paths |= {(name,) for names in options.values() for name in names}
        if path in all_paths or path[: len(KEYS)] == KEYS:
            return
        import difflib

        near = difflib.get_close_matches(".".join(path), [".".join(k) for k in all_paths], n=1)
        raise FileError(
            f"{setting.origin}: unknown option {'.'.join(path)!r}",
            *([f"did you mean:  {near[0]}"] if near else []),
            "list all names:  lmtool config show",
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
    """The nearest `lmtool.toml` in `start` or its parents, or None."""
    return next((d / FILE_NAME for d in (start, *start.parents) if (d / FILE_NAME).is_file()), None)


def user_file() -> Path:
    """The user's settings file in the platform's configuration folder, whether it exists or not."""
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
    leaves: list[tuple[tuple[str, ...], Any]] = []
    for key, value in table.items():
        here = (*path, key.replace("-", "_"))
        leaves += _leaves(value, here) if isinstance(value, dict) else [(here, value)]
    return leaves
