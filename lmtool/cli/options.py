"""Options that every command shares, and the wrapper that gives them to a command."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from lmtool.cli.invocation import DEFAULT_ENDPOINT, ColorWhen, Common
from lmtool.errors import LmtoolError

PANEL = "Everywhere"
SETTINGS = "lmtool.settings"
"""Under this name a context keeps what was read from settings files."""

EndpointOption = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        "-e",
        metavar="URL",
        help="Server to talk to: ws://, http://, HOST:PORT, or stdio:COMMAND.",
        show_default=DEFAULT_ENDPOINT,
        rich_help_panel=PANEL,
    ),
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        help="API key that a server requires and a client sends; better LMTOOL_API_KEY.",
        show_default=False,
        rich_help_panel=PANEL,
    ),
]
ColorOption = Annotated[ColorWhen | None, typer.Option("--color", help="When to use colours.", rich_help_panel=PANEL)]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No notes on stderr.", rich_help_panel=PANEL)]
VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose", "-v", count=True, show_default=False, help="Say more; -vv shows tracebacks.", rich_help_panel=PANEL
    ),
]
SettingsOption = Annotated[
    str | None,
    typer.Option(
        "--settings", metavar="FILE", help="Read settings from this file instead of lmtool.toml.", rich_help_panel=PANEL
    ),
]


def common_parameters() -> dict[str, inspect.Parameter]:
    """Signature parameters for the fields of `Common`, in the form that typer reads."""

    def shape(
        endpoint: EndpointOption = None,
        color: ColorOption = None,
        quiet: QuietOption = False,
        verbose: VerboseOption = 0,
        settings: SettingsOption = None,
        api_key: ApiKeyOption = None,
    ) -> None:
        """Carry the annotations."""

    return dict(inspect.signature(shape, eval_str=True).parameters)


def with_common(function: Callable[..., Any]) -> Callable[..., None]:
    """Make a typer callback of a command that takes `Common` as its first argument.

    Adds the shared options to its signature, gives every option its `LMTOOL_<OPTION>` environment variable, runs
    a coroutine function to its end, and turns what it raises into a message and an exit status.
    """
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    own = [p.replace(annotation=_with_environment(p.name, hints[p.name])) for p in own]
    shared = [p.replace(annotation=_with_environment(p.name, p.annotation)) for p in common_parameters().values()]
    context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *shared)]

    @functools.wraps(function)
    def callback(**given: Any) -> None:
        ctx: typer.Context = given.pop("ctx")
        said = {p.name: given.pop(p.name) for p in shared}
        typed = frozenset(name for name in given if _typed(ctx, name))
        common = Common(**said, typed=typed, origins=_origins(ctx))
        run(function, common.under(ctx.obj if isinstance(ctx.obj, Common) else None), given)

    callback.__signature__ = inspect.Signature([context, *parameters])  # type: ignore[attr-defined] # typer reads it
    callback.__annotations__ = {p.name: p.annotation for p in (context, *parameters)}
    del callback.__wrapped__  # or inspect would look through to the bare function
    return callback


def origin(ctx: Any, param: Any) -> str:
    """Where an option's value comes from, where nobody typed it: a settings file or a variable; else empty."""
    source = ctx.get_parameter_source(param.name)
    if source is not None and source.name == "ENVIRONMENT":
        return f"the environment, {param.envvar}"
    if source is not None and source.name == "DEFAULT_MAP" and (settings := ctx.meta.get(SETTINGS)):
        return str(settings.origin(_path(ctx), spelled(param.name, param.opts)))
    return ""


def _path(ctx: Any) -> tuple[str, ...]:
    """The command's name, below the program's."""
    return () if ctx.parent is None else (*_path(ctx.parent), ctx.info_name)


def _origins(ctx: Any) -> dict[str, tuple[str, str]]:
    """The same of every option that has a long form, with its value as text."""
    options = [param for param in ctx.command.params if param.param_type_name == "option"]
    found = {form: (origin(ctx, one), str(ctx.params.get(one.name))) for one in options for form in one.opts}
    return {form: where for form, where in found.items() if where[0] and form.startswith("--")}


def _typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def spelled(name: str, forms: Sequence[str]) -> str:
    """An option's name in settings and in the environment: its long form; name: the parameter's, where it has none."""
    long = next((form for form in forms if form.startswith("--")), name)
    return long.partition("/")[0].removeprefix("--").replace("-", "_")


def _with_environment(name: str, annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, info, *_ = get_args(annotation)
    if isinstance(info, OptionInfo | ArgumentInfo) and info.envvar is None and isinstance(info, OptionInfo):
        info = copy.copy(info)
        # Inside Annotated, what would be the default is the first form.
        forms = [form for form in (info.default, *(info.param_decls or ())) if isinstance(form, str)]
        info.envvar, info.show_envvar = f"LMTOOL_{spelled(name, forms).upper()}", False
    return Annotated[kind, info]


def run(function: Callable[..., Any], common: Common, given: dict[str, Any]) -> None:
    """Call a command, a coroutine function to its end, and turn what it raises into an exit status."""
    with reporting(common):
        result = function(common, **given)
        if inspect.iscoroutine(result):
            import asyncio

            asyncio.run(result)


@contextlib.contextmanager
def reporting(common: Common) -> Iterator[None]:
    """Print what is raised inside and end the process with the documented exit status.

    130 for Ctrl-C, 141 when the reader of stdout has gone, an error's own code, 70 for a mistake of ours.
    """
    from lmtool.cli.output import report_bug, report_error

    try:
        yield
    except LmtoolError as error:
        report_error(error, common)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        _discard_stdout()
        raise typer.Exit(141) from None
    except (typer.Exit, typer.BadParameter):
        raise
    except Exception as bug:  # noqa: BLE001 - the one place where an unforeseen error becomes a sentence
        report_bug(bug, common)
        raise typer.Exit(70) from None


def _discard_stdout() -> None:
    """Point stdout at nothing, or the interpreter would complain about the closed pipe while it exits."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
