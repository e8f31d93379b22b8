"""How a function becomes a command: its options from `lmtool.settings.option`, their variables, its exit status."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

from lmtool.cli.common_options import Common
from lmtool.cli.error_report import reporting
from lmtool.settings.option import Option, option_of, options_of

LARGEST_SHOWN = 65535
"""A limit above this is checked by the configuration itself: in `--help` it would say nothing."""
SETTINGS = "lmtool.settings"
"""Key of the loaded settings in a context's `meta`."""


def with_common(function: Callable[..., Any]) -> Callable[..., None]:
    """Make a typer callback of a command that takes `Common`, or a class of its own below it, as its first argument.

    Adds the shared options to its signature; a parameter whose default is an `lmtool.settings.option` becomes that
    option, and one that is a configuration (a dataclass with such fields) those of its fields. Gives every option its
    `LMTOOL_<OPTION>` environment variable, runs a coroutine to its end, and turns what it raises into a message and an
    exit status.
    """
    hints = get_type_hints(function, include_extras=True)
    first, *own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(function).parameters.values()]
    common_class: type[Common] = first.annotation
    configs = {p.name: p.annotation for p in own if isinstance(p.annotation, type) and is_dataclass(p.annotation)}
    own = [_with_environment(each) for p in own for each in _parameters_of(p)]
    shared = [_with_environment(p) for p in config_parameters(common_class)]

    @functools.wraps(function)
    def callback(**values: Any) -> None:
        ctx: typer.Context = values.pop("ctx")
        shared_values = {p.name: values.pop(p.name) for p in shared}
        typed = frozenset(name for name in values if _is_typed(ctx, name))
        common = common_class(**shared_values, typed=typed, origins=_origins(ctx))
        with reporting(common := common.under(ctx.obj if isinstance(ctx.obj, Common) else None)):
            objects = {name: _config(kind, values) for name, kind in configs.items()}
            _collect_garbage()
            _finish(function(common, **values, **objects))

    del callback.__wrapped__  # or inspect would look through to the bare function
    set_parameters(callback, [*own, *shared])
    return callback


def set_parameters(callback: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function the signature that typer reads: the context as `ctx`, then these, by keyword."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("ctx", keyword, annotation=typer.Context)
    signature = inspect.Signature([context, *(p.replace(kind=keyword) for p in parameters)])
    callback.__signature__ = signature  # type: ignore[attr-defined]
    callback.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}


def _parameters_of(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """What typer is given for a command's parameter: itself, an option, or the options of a configuration."""
    if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
        return config_parameters(parameter.annotation)
    each = option_of(parameter.default)
    if each is None:
        return [parameter]
    return [_parameter(parameter.name, each, parameter.annotation, parameter.default.default)]


def config_parameters(config: type) -> list[inspect.Parameter]:
    """Signature parameters for the options of a configuration, in the form that typer reads."""
    hints, defaults = get_type_hints(config), {field.name: field.default for field in fields(config)}
    return [_parameter(name, each, hints[name], defaults[name]) for name, each in options_of(config).items()]


def _parameter(name: str, each: Option, kind: Any, default: Any) -> inspect.Parameter:
    flag = each.flag or f"--{name.replace('_', '-')}"
    alone = each.short is None and each.flag is None and not (kind is bool and default is False)
    shown = each.shown_default
    info = typer.Option(
        *(() if alone else (flag,) if each.short is None else (flag, each.short)),  # alone: with a `--no-` of its own
        help=f"{each.help}  [default: {shown}]" if shown else each.help,
        metavar=each.metavar,
        min=each.minimum,
        max=None if each.maximum is None or each.maximum > LARGEST_SHOWN else each.maximum,
        show_default=shown is None,
        rich_help_panel=each.panel,
        hidden=each.hidden,
        count=each.count,
    )
    several = get_origin(kind) is tuple
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[list[str] if several else kind, info],
        default=list(default) if several else default,
    )


def origin(ctx: Any, param: Any) -> str:
    """The settings file or variable that an option's value comes from; empty for typed ones and defaults."""
    source = ctx.get_parameter_source(param.name)
    if source is not None and source.name == "ENVIRONMENT":
        return f"the environment, {param.envvar}"
    if source is not None and source.name == "DEFAULT_MAP" and (settings := ctx.meta.get(SETTINGS)):
        return str(settings.origin(_path(ctx), option_name(param.name, param.opts)))
    return ""


def _path(ctx: Any) -> tuple[str, ...]:
    """The names of the command and its groups, without the program's."""
    return () if ctx.parent is None else (*_path(ctx.parent), ctx.info_name)


def _origins(ctx: Any) -> dict[str, tuple[str, str]]:
    """The origins of all long options that have one, each with the value as text."""
    options = [param for param in ctx.command.params if param.param_type_name == "option"]
    origins = {form: (origin(ctx, one), str(ctx.params.get(one.name))) for one in options for form in one.opts}
    return {form: place for form, place in origins.items() if place[0] and form.startswith("--")}


def _is_typed(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def option_name(name: str, forms: Sequence[str]) -> str:
    """An option's name in settings and environment: its long form, or the parameter's `name`."""
    long = next((form for form in forms if form.startswith("--")), name)
    return long.partition("/")[0].removeprefix("--").replace("-", "_")


def _with_environment(parameter: inspect.Parameter) -> inspect.Parameter:
    """The same with `LMTOOL_<OPTION>` as its variable; an argument has none."""
    kind, info, *_ = get_args(parameter.annotation)
    if not isinstance(info, OptionInfo):
        return parameter
    info = copy.copy(info)
    # Inside Annotated, what would be the default is the first form.
    forms = [form for form in (info.default, *(info.param_decls or ())) if isinstance(form, str)]
    info.envvar, info.show_envvar = f"LMTOOL_{option_name(parameter.name, forms).upper()}", False
    return parameter.replace(annotation=Annotated[kind, info])


def _config(config: type, values: dict[str, Any]) -> Any:
    """The configuration from the values of its options, which are removed from `values`. Raises what it raises."""
    own = {name: values.pop(name) for name in options_of(config)}
    return config(**{name: tuple(value) if isinstance(value, list) else value for name, value in own.items()})


def _collect_garbage() -> None:
    """Collect it from now on, where `main` has put that off; all that was imported is left out."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def _finish(result: object) -> None:
    """Run a coroutine to its end; anything else has ended already."""
    if inspect.iscoroutine(result):
        import asyncio

        asyncio.run(result)
