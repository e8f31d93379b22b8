"""`lmtool config`: the effective settings and their origins."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmtool.cli.common_options import Common
from lmtool.cli.options import option_name

if TYPE_CHECKING:
    from lmtool.cli.settings import Settings


def show(
    common: Common,
    command: Annotated[str | None, typer.Argument(help="Only this command's options.", show_default=False)] = None,
) -> None:
    """Print each option's effective value and its origin: environment, settings file, or default."""
    from lmtool.cli.app import build_whole, option_names
    from lmtool.cli.settings import load
    from lmtool.errors import UsageError

    tree = build_whole()
    commands = {".".join(path): _params(tree, path) for path in option_names(tree)}
    if command is not None and command not in commands:
        raise UsageError(f"no command is called {command!r}", f"commands: {', '.join(commands)}")
    out, settings = common.output(), load(common.settings)
    for name, params in commands.items():
        if command in {None, name}:
            out.line(f"[{name}]")
            for param in params:
                value, origin = _effective(param, tuple(name.split(".")), settings)
                out.line(f"{option_name(param.name, param.opts)} = {_without_secrets(param, value)!r}  # {origin}")


def path(common: Common) -> None:
    """Print the settings files in use, highest precedence first, and the path of the user's own."""
    from lmtool.cli.settings import load, user_file

    out, files = common.output(), load(common.settings).files
    for file in files:
        out.line(str(file))
    if user_file() not in files:
        out.note(f"your own settings file would be {user_file()}")


def _params(tree: Any, path: tuple[str, ...]) -> list[Any]:
    node = tree
    for part in path:
        node = node.commands[part]
    return [p for p in node.params if p.param_type_name == "option" and p.name != "help"]


def _without_secrets(param: Any, value: Any) -> Any:
    """The value without keys, and without credentials in a URL."""
    from lmtool.access.outgoing import split_url

    if param.name == "api_key":
        return value and "(set)"
    if param.metavar != "URL":
        return value
    if isinstance(value, list | tuple):
        return [_without_secrets(param, one) for one in value]
    return split_url(value)[0] if isinstance(value, str) and not value.startswith("stdio:") else value


def _effective(param: Any, command: tuple[str, ...], settings: Settings) -> tuple[Any, str | Path]:
    variable = os.environ.get(str(param.envvar)) if param.envvar else None
    if variable:
        return variable, f"environment {param.envvar}"
    setting = settings.find(command, option_name(param.name, param.opts))
    if setting:
        return setting.value, setting.origin
    return param.default, "default"
