"""The typer application: commands built when they are called, values converted without pydantic, settings files."""

import contextlib
import functools
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from lmtool import __version__
from lmtool.cli.commands import TREE, Command, Group, find
from lmtool.cli.common_options import ClientCommon, Common, RootOptions
from lmtool.cli.error_report import command_line_errors, reporting
from lmtool.cli.help import HELP, command_help, group_help, program_help
from lmtool.cli.options import SETTINGS, config_parameters, option_name, origin, set_parameters, with_common

CONTEXT = {"help_option_names": ["-h", "--help"]}


class _LeafCommand(TyperCommand):
    """A command with our help."""

    examples: Sequence[str] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(command_help(ctx, self.examples))


class _CommandGroup(TyperGroup):
    """A group of commands with our help."""

    entry: Group

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(group_help(ctx.command_path, self.entry))


class Program(TyperGroup):
    """The program; builds a command when it is called and lists the others by their summaries.

    Importing and building all commands takes longer than everything else that `lmtool COMMAND --help` does.
    """

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        for entry in TREE:
            placeholder = TyperCommand(entry.name, help=entry.summary, hidden=entry.hidden)
            self.commands[entry.name] = placeholder

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - as click calls it
        """Write the program's help."""
        formatter.write(program_help())

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Build the command that `args` names in place of its placeholder, then resolve it."""
        entry = find(args[0])
        if entry is not None:
            self.commands[entry.name] = build_entry(entry)
        if args[0] == "serve":
            args = [args[0], *_without_vllm_flags(args[1:], self.commands["serve"])]
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the program; errors of the command line are printed like all others."""
        words = (args, prog_name, complete_var, False, windows_expand_args)
        run = functools.partial(super().main, *words, **extra)
        return command_line_errors(run) if standalone_mode else run()

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error about a value that was not typed names the file or variable that set it."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as bad:
            if bad.ctx is not None and bad.param is not None and (where := origin(bad.ctx, bad.param)):
                bad.message = f"{bad.message} It is set in {where}."
            raise


def build() -> typer.Typer:
    """The application."""
    app = typer.Typer(
        name="lmtool",
        cls=Program,
        help=HELP,
        context_settings=CONTEXT,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(root)
    return app


def build_entry(entry: Command | Group) -> Any:
    """The click command of one entry of the tree."""
    app = typer.Typer(cls=_CommandGroup, context_settings=CONTEXT, rich_markup_mode=None, add_completion=False)
    commands = entry.commands if isinstance(entry, Group) else (entry,)
    for command in commands:
        adding = app.command(
            command.name,
            cls=_LeafCommand,
            short_help=command.summary,
            context_settings=CONTEXT,
            hidden=command.hidden,
        )
        adding(with_common(command.load()))
    if isinstance(entry, Command):
        built: Any = typer.main.get_command(app)
        built.examples = entry.examples
        return built
    app.callback(help=entry.summary, invoke_without_command=True)(_print_group_help)
    group: Any = typer.main.get_group(app)
    group.name, group.entry = entry.name, entry
    for command in commands:
        group.commands[command.name].examples = command.examples
    return group


def build_whole(program: Any = None) -> Any:
    """The click command of a program (default: this one) with every command built, to list all options."""
    group: Any = program or typer.main.get_command(build())
    for entry in TREE:
        if entry.name in group.commands:
            group.commands[entry.name] = build_entry(entry)
    return group


def _without_vllm_flags(words: list[str], command: Any) -> list[str]:
    """The words with options of `vllm serve` replaced by those of `lmtool serve`. command: the latter's."""
    from lmtool.cli.vllm_flags import translate

    options = [one for one in command.params if one.param_type_name == "option"]
    own = {name: not (one.is_flag or one.count) for one in options for name in (*one.opts, *one.secondary_opts)}
    with reporting(Common()):
        return translate(words, {"--help": False, **own})


def _print_group_help(ctx: typer.Context) -> None:
    """Print the help of a group that is called without a command."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


def root(**values: Any) -> None:
    """Keep the common options for the command; values from settings files become its defaults."""
    ctx: typer.Context = values.pop("ctx")
    if values.pop("version"):
        typer.echo(f"lmtool {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(program_help(options=False), nl=False)
        raise typer.Exit
    ctx.obj = ClientCommon(**values)
    from lmtool.cli.settings import load

    with reporting(ctx.obj):
        file = ctx.obj.settings or _settings_after_command(sys.argv) or os.environ.get("LMTOOL_SETTINGS")
        settings = ctx.meta[SETTINGS] = load(file)
        ctx.default_map = settings.default_map(option_names(build_whole(ctx.command))) if settings.values else {}


set_parameters(root, config_parameters(RootOptions))


def _settings_after_command(words: list[str]) -> str | None:
    """The value of `--settings` after the command's name; it is needed before the command's options are parsed."""
    for i, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("--settings="):
            return word.partition("=")[2]
        if word == "--settings" and i + 1 < len(words):
            return words[i + 1]
    return None


def option_names(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], dict[str, str]]:
    """For each command path, such as `("config", "show")`: option names in settings, to parameter names."""
    children = getattr(command, "commands", None)
    if children is None:
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        return {path: {option_name(option.name, option.opts): option.name for option in options}}
    names: dict[tuple[str, ...], dict[str, str]] = {}
    for name, child in children.items():
        names.update(option_names(child, (*path, name)))
    return names


class _PlainConverter:
    """Converts the values of parameters of one type in place of typer's converter, which needs pydantic."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The converted value, or a list of them for a repeatable parameter. Raises `BadParameter`."""
        if param.multiple or param.nargs == -1:
            values = value if isinstance(value, list | tuple) else [] if value is None else [value]
            return [self._one(v, param, ctx) for v in values]
        return None if value is None else self._one(value, param, ctx)

    def _one(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            converted = convert(self._kind, value)
        except ValueError as error:
            raise typer.BadParameter(f"{value!r} is not {error}.", ctx=ctx, param=param) from None
        least, most = getattr(param, "min", None), getattr(param, "max", None)
        if least is not None and converted < least:
            raise typer.BadParameter(f"{value} is less than {least}.", ctx=ctx, param=param)
        if most is not None and converted > most:
            raise typer.BadParameter(f"{value} is more than {most}.", ctx=ctx, param=param)
        return converted


def convert_without_pydantic() -> None:
    """Convert parameters of plain types with `_PlainConverter` from now on, the others as typer does.

    typer converts through pydantic, whose import is most of a short command's start-up: 150 of 270 ms of CPU for
    `lmtool chat` when this was written (typer 0.29.2). It has no public way to choose the converter, so its parameter
    classes get another method; with a later typer without that method only the time changes.
    """
    for kind in (TyperOption, TyperArgument):
        original = getattr(kind, "get_runtime_param", None)
        if original is not None:
            kind.get_runtime_param = functools.partialmethod(_runtime_param, original)  # type: ignore[method-assign, assignment] # see above


def _runtime_param(param: Any, original: Callable[[Any], Any]) -> Any:
    kind = param.type_descriptor.annotation
    return _PlainConverter(kind) if is_plain(kind) else original(param)


def is_plain(kind: Any) -> bool:
    """True if `convert` knows a type; other types are left to typer."""
    return (
        kind in _EXPECTED or get_origin(kind) is Literal or (get_origin(kind) is list and is_plain(get_args(kind)[0]))
    )


_EXPECTED = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
_TRUTH = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}


def convert(kind: Any, value: Any) -> Any:
    """A word, or a value of a settings file, as this type. Raises `ValueError` with the expected kind of value."""
    if get_origin(kind) is list:
        return convert(get_args(kind)[0], value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"one of {', '.join(map(str, get_args(kind)))}")
        return value
    expected = _EXPECTED[kind]
    if kind is bool and (word := str(value).strip().lower()) in _TRUTH:
        return _TRUTH[word]
    if kind is str and isinstance(value, str):
        return value
    if kind in {int, float} and isinstance(value, str | int | kind) and not isinstance(value, bool):
        with contextlib.suppress(ValueError):
            converted = kind(value)
            if math.isfinite(converted):
                return converted
            expected = "a finite number"
    raise ValueError(expected)
