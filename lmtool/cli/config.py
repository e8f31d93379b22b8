"""`lmtool config`: the effective settings and their sources."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from lmtool.cli.app import build_whole, convert, is_plain, option_names
from lmtool.cli.common_options import Common
from lmtool.cli.options import option_name
from lmtool.cli.settings import Settings, load, user_file
from lmtool.core.errors import UsageError
from lmtool.net.access.outgoing import split_url


def show(
    common: Common,
    command: Annotated[
        str | None, typer.Argument(help="Print this command's options only.", show_default=False)
    ] = None,
) -> None:
    """Print settings as TOML: set values with their source, environment or file; defaults as comments."""
    tree = build_whole()
    commands = {".".join(path): _params(tree, path) for path in option_names(tree)}
    if command is not None and command not in commands:
        raise UsageError(f"unknown command {command!r}", f"commands: {', '.join(commands)}")
    out, settings = common.output(), load(common.settings)
    for name, params in commands.items():
        if command in {None, name}:
            out.line(f"[{name}]")
            for param in params:
                out.line(_line(param, *_effective(param, tuple(name.split(".")), settings)))
            out.line()


def path(common: Common) -> None:
    """Print the settings files in use, highest precedence first, and the path of your own."""
    out, files = common.output(), load(common.settings).files
    for file in files:
        out.line(str(file))
    if user_file() not in files:
        out.note(f"your own settings file would be {user_file()}")


def _line(param: Any, value: Any, origin: str | Path | None) -> str:
    """A setting as a line of TOML; a comment if it is a default or a secret."""
    name = option_name(param.name, param.opts)
    if param.name == "api_key" and value:
        return f"# {name} is set in {origin}; its value is not shown"
    if origin is None:
        return f"# {name} = {_toml(_without_secrets(param, value))}".rstrip()
    return f"{name} = {_toml(_without_secrets(param, value))}  # {origin}"


def _toml(value: Any) -> str:
    """A value in TOML; empty for None, which TOML does not have."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool | int | float):
        return str(value).lower()
    return json.dumps(str(value), ensure_ascii=False)


def _params(tree: Any, path: tuple[str, ...]) -> list[Any]:
    node = tree
    for part in path:
        node = node.commands[part]
    return [p for p in node.params if p.param_type_name == "option" and p.name != "help"]


def _without_secrets(param: Any, value: Any) -> Any:
    """The value without credentials in a URL."""
    if param.metavar != "URL":
        return value
    if isinstance(value, list | tuple):
        return [_without_secrets(param, one) for one in value]
    return split_url(value)[0] if isinstance(value, str) and not value.startswith("stdio:") else value


def _effective(param: Any, command: tuple[str, ...], settings: Settings) -> tuple[Any, str | Path | None]:
    """A setting's value and its source; None for a default."""
    variable, kind = os.environ.get(str(param.envvar)) if param.envvar else None, param.type_descriptor.annotation
    if variable:
        value: Any = variable
        with contextlib.suppress(ValueError):  # the command itself will refuse it
            value = convert(kind, variable) if is_plain(kind) else variable
        return value, f"environment {param.envvar}"
    setting = settings.find(command, option_name(param.name, param.opts))
    if setting:
        return setting.value, setting.origin
    return param.default, None
