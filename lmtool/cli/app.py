"""The typer application over the tree of commands."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from lmtool import __version__
from lmtool.cli.commands import TREE, Command, Group, find
from lmtool.cli.invocation import Common
from lmtool.cli.options import (
    SETTINGS,
    ApiKeyOption,
    ColorOption,
    EndpointOption,
    QuietOption,
    SettingsOption,
    VerboseOption,
    origin,
    spelled,
    with_common,
)

if TYPE_CHECKING:
    from typing import Any, Literal

HELP = "Load a language model once, in a long-lived process; stream its tokens to everything else."
EPILOG = "Every option can also be set as LMTOOL_<OPTION> in the environment, or in lmtool.toml (see: lmtool config)."
CONTEXT = {"help_option_names": ["-h", "--help"]}


class LazyGroup(TyperGroup):
    """Builds a command when it is asked for by name; the list of commands shows the others' sentences only.

    Importing and building all of them takes longer than the rest of `lmtool --help`.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Replace the placeholder of the command that `args` names by the real one, then go on as typer does."""
        entry = find(args[0])
        if entry is not None:
            self.commands[entry.name] = build_entry(entry)
        if args[0] == "serve":
            args = [args[0], *_in_our_words(args[1:])]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Go on as typer does; a bad value that nobody typed is told with the place where it was found."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as bad:
            if bad.ctx is not None and bad.param is not None and (where := origin(bad.ctx, bad.param)):
                bad.message = f"{bad.message} It is set in {where}."
            raise


def build() -> typer.Typer:
    """Make the application, with rich panels only where a person reads them."""
    app = typer.Typer(
        name="lmtool",
        cls=LazyGroup,
        help=HELP,
        epilog=EPILOG,
        context_settings=CONTEXT,
        rich_markup_mode=_markup(),
        pretty_exceptions_enable=False,
    )
    app.callback(invoke_without_command=True)(root)
    for entry in TREE:
        hidden = isinstance(entry, Command) and entry.hidden
        app.command(entry.name, help=entry.summary, rich_help_panel=entry.panel, hidden=hidden)(_placeholder)
    return app


def build_entry(entry: Command | Group) -> Any:
    """Make the click command of one entry of the tree."""
    app = typer.Typer(context_settings=CONTEXT, rich_markup_mode=_markup(), add_completion=False)
    commands = entry.commands if isinstance(entry, Group) else (entry,)
    for command in commands:
        app.command(command.name, context_settings=CONTEXT, hidden=command.hidden)(with_common(command.load()))
    if isinstance(entry, Group):
        app.callback(help=entry.summary, no_args_is_help=True)(_placeholder)
        group = typer.main.get_group(app)
        group.name = entry.name
        return group
    return typer.main.get_command(app)


def build_whole(program: Any = None) -> Any:
    """Return the click command of a program (this one), every command built: for those who look at all options."""
    group: Any = program or typer.main.get_command(build())
    for entry in TREE:
        if entry.name in group.commands:
            group.commands[entry.name] = build_entry(entry)
    return group


def _in_our_words(words: list[str]) -> list[str]:
    """Words of `vllm serve` as those of `lmtool serve`."""
    from lmtool.cli.options import reporting
    from lmtool.cli.serving.vllm_words import translate

    with reporting(Common()):
        return translate(words)


def _markup() -> Literal["rich"] | None:
    return "rich" if sys.stdout.isatty() and os.environ.get("TYPER_USE_RICH", "1") != "0" else None


def _placeholder() -> None:
    """Stand for a command that is not built."""


def root(
    ctx: typer.Context,
    *,
    endpoint: EndpointOption = None,
    color: ColorOption = None,
    quiet: QuietOption = False,
    verbose: VerboseOption = 0,
    settings: SettingsOption = None,
    api_key: ApiKeyOption = None,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version and exit.")] = False,
) -> None:
    """Keep the shared options for the command, and lay the settings files under its options."""
    if version:
        typer.echo(f"lmtool {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit
    ctx.obj = Common(endpoint, color, quiet, verbose, settings, api_key)
    ctx.default_map = _defaults(ctx, settings or _settings_after_command(sys.argv))


def _defaults(ctx: typer.Context, explicit: str | None) -> dict[str, Any]:
    from lmtool.cli.options import reporting
    from lmtool.cli.settings import load

    with reporting(ctx.obj):
        settings = ctx.meta[SETTINGS] = load(explicit or os.environ.get("LMTOOL_SETTINGS"))
        return settings.default_map(option_names(build_whole(ctx.command))) if settings.values else {}


def _settings_after_command(words: list[str]) -> str | None:
    """Find `--settings` behind the command's name: it must be known before the command's own options are."""
    for i, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("--settings="):
            return word.partition("=")[2]
        if word == "--settings" and i + 1 < len(words):
            return words[i + 1]
    return None


def option_names(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], dict[str, str]]:
    """Names of all options as spelled, and of their parameters, by command path (`("config", "show")`)."""
    children = getattr(command, "commands", None)
    if children is None:
        options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
        return {path: {spelled(option.name, option.opts): option.name for option in options}}
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for name, child in children.items():
        found.update(option_names(child, (*path, name)))
    return found
