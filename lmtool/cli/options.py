"""Turns a function into a command: options from `lmtool.settings.option`, environment variables, exit statuses."""

from __future__ import annotations

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
from lmtool.cli.help import help_text, placeholder
from lmtool.settings.option import Option, option_of, options_of

LARGEST_SHOWN = 65535
"""Configurations check larger limits themselves; in an error of the command line they would say nothing."""
SETTINGS = "lmtool.settings"
"""Key of the loaded settings in a context's `meta`."""


def with_common(function: Callable[..., Any]) -> Callable[..., None]:
    """Make a typer callback of a command whose first parameter is a `Common` or a subclass of it.

    Adds the shared options to its signature. A parameter whose default is an `lmtool.settings.option` becomes that
    option; a parameter that is a configuration (a dataclass with such fields) becomes the options of its fields. Every
    option gets its `LMTOOL_<OPTION>` environment variable. A coroutine is run to its end, and what the command raises
    becomes a message and an exit status.
    """
    hints = get_type_hints(function, include_extras=True)
    first, *own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(function).parameters.values()]
    common_class: type[Common] = first.annotation
    configs = {p.name: p.annotation for p in own if _is_config(p.annotation)}
    own = [each for p in own for each in _parameters_of(p)]
    shared = config_parameters(common_class)

    @functools.wraps(function)
    def callback(**values: Any) -> None:
        ctx: typer.Context = values.pop("ctx")
        shared_values = {p.name: values.pop(p.name) for p in shared}
        typed = frozenset(name for name in values if _source(ctx, name) == "COMMANDLINE")
        common = common_class(**shared_values, typed=typed, origins=_origins(ctx))
        with reporting(common := common.under(ctx.obj if isinstance(ctx.obj, Common) else None)):
            objects = {name: _config(kind, values) for name, kind in configs.items()}
            if not gc.isenabled():  # `main` has put it off; what was imported is left out of it
                gc.freeze()
                gc.enable()
            result = function(common, **values, **objects)
            if inspect.iscoroutine(result):
                import asyncio

                asyncio.run(result)

    del callback.__wrapped__  # inspect would otherwise show typer the signature of the bare function
    set_parameters(callback, [_with_environment(p) for p in (*own, *shared)])
    return callback


def set_parameters(callback: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> None:
    """Give a function the signature that typer reads: the context as `ctx`, then these, by keyword."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    context = inspect.Parameter("ctx", keyword, annotation=typer.Context)
    signature = inspect.Signature([context, *(p.replace(kind=keyword) for p in parameters)])
    callback.__signature__ = signature  # type: ignore[attr-defined]
    callback.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}


def _is_config(annotation: Any) -> bool:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _parameters_of(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """Parameters for typer: an argument unchanged, an option, or the options of a configuration."""
    if _is_config(parameter.annotation):
        return config_parameters(parameter.annotation)
    each = option_of(parameter.default)
    if each is None:
        return [parameter]
    return [_parameter(parameter.name, each, parameter.annotation, parameter.default.default)]


def config_parameters(config: type) -> list[inspect.Parameter]:
    """Signature parameters, in the form that typer reads, for the options of a configuration and of those inside it."""
    hints, options, parameters = get_type_hints(config), options_of(config), list[inspect.Parameter]()
    for field in fields(config):
        if each := options.get(field.name):
            parameters.append(_parameter(field.name, each, hints[field.name], field.default))
        elif _is_config(hints[field.name]):
            parameters += config_parameters(hints[field.name])
    return parameters


def _parameter(name: str, each: Option, kind: Any, default: Any) -> inspect.Parameter:
    flag = each.flag or f"--{name.replace('_', '-')}"
    has_negative = each.short is None and each.flag is None and not (kind is bool and default is False)
    info = typer.Option(
        *(() if has_negative else (flag,) if each.short is None else (flag, each.short)),
        help=help_text(each, default),
        metavar=placeholder(each, kind),
        min=each.minimum,
        max=None if each.maximum is None or each.maximum > LARGEST_SHOWN else each.maximum,
        show_default=False,
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
    """Settings file or environment variable that set an option; empty for typed options and defaults."""
    source = _source(ctx, param.name)
    if source == "ENVIRONMENT":
        return f"the environment, {param.envvar}"
    if source == "DEFAULT_MAP" and (settings := ctx.meta.get(SETTINGS)):
        return str(settings.origin(_path(ctx), option_name(param.name, param.opts)))
    return ""


def _path(ctx: Any) -> tuple[str, ...]:
    """Names of the command and its groups, without the program's."""
    return () if ctx.parent is None else (*_path(ctx.parent), ctx.info_name)


def _origins(ctx: Any) -> dict[str, tuple[str, str]]:
    """Origins of all long options that were not typed, each with the value as text."""
    options = [param for param in ctx.command.params if param.param_type_name == "option"]
    origins = {form: (origin(ctx, one), str(ctx.params.get(one.name))) for one in options for form in one.opts}
    return {form: place for form, place in origins.items() if place[0] and form.startswith("--")}


def _source(ctx: Any, name: str) -> str:
    source = ctx.get_parameter_source(name)
    return "" if source is None else str(source.name)


def option_name(name: str, forms: Sequence[str]) -> str:
    """An option's name in settings and environment: its long form, or the parameter's `name`."""
    long = next((form for form in forms if form.startswith("--")), name)
    return long.partition("/")[0].removeprefix("--").replace("-", "_")


def _with_environment(parameter: inspect.Parameter) -> inspect.Parameter:
    """The parameter with `LMTOOL_<OPTION>` as its variable; an argument has none."""
    info = get_args(parameter.annotation)[1]
    if isinstance(info, OptionInfo):  # inside Annotated, what would be the default is the first spelling
        forms = [form for form in (info.default, *(info.param_decls or ())) if isinstance(form, str)]
        info.envvar, info.show_envvar = f"LMTOOL_{option_name(parameter.name, forms).upper()}", False
    return parameter


def _config(config: type, values: dict[str, Any]) -> Any:
    """The configuration from the values of its options, which are removed from `values`. Raises what it raises."""
    own = {name: values.pop(name) for name in options_of(config)}
    hints = {name: hint for name, hint in get_type_hints(config).items() if name not in own and _is_config(hint)}
    inner = {name: _config(hint, values) for name, hint in hints.items() if config_parameters(hint)}
    return config(**{name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}, **inner)
