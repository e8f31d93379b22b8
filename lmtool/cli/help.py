"""What `--help` prints: a sentence, examples, then arguments and options in groups, in words that people know."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from lmtool.settings.terminal import wants_color

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

WIDEST = 100
"""Columns: longer lines are hard to read."""
TERM_COLUMNS = 28
"""Of an option with its value; a longer one has its help on the next line."""
_PLACEHOLDERS: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT"}

Rows = Sequence[tuple[str, str]]


class HelpfulCommand(TyperCommand):
    """A command whose help has examples."""

    examples: Sequence[str] = ()
    """Command lines."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(_text(_command_help(self, ctx)))


class HelpfulGroup(TyperGroup):
    """A group of commands, or the program."""

    examples: Sequence[str] = ()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help."""
        formatter.write(_text(_group_help(self, ctx)))

    def brief_help(self, ctx: Any) -> str:
        """What to do first: the commands and the examples, without the options."""
        return _text(_group_help(self, ctx, options=False))


def printing_errors(run: Callable[[], Any]) -> NoReturn:
    """Run a command outside its standalone mode, which prints errors in a form of its own, and exit."""
    try:
        status = run()
    except typer.Abort:
        status = 1
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        _report(error)
        status = getattr(error, "exit_code", 2)
    sys.exit(status if isinstance(status, int) else 0)


def _report(error: Any) -> None:
    """Print what is wrong with a command line as any other error, and where its help is."""
    from lmtool.cli.common_options import Common
    from lmtool.cli.error_report import report_error
    from lmtool.core.errors import UsageError

    message = str(error.format_message()).strip()
    ctx = getattr(error, "ctx", None)
    hints = () if ctx is None else (f"see:  {ctx.command_path} --help",)
    sentence = message if ". " in message else message.removesuffix(".")
    report_error(UsageError(f"{sentence[:1].lower()}{sentence[1:]}", *hints), Common())


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _width() -> int:
    return max(40, min(WIDEST, shutil.get_terminal_size().columns))


def _heading(title: str) -> str:
    return f"\x1b[1m{title}:\x1b[0m" if wants_color(sys.stdout, None) else f"{title}:"


def _command_help(command: HelpfulCommand, ctx: Any) -> Iterator[str]:
    params = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    arguments = [param for param in params if param.param_type_name == "argument"]
    words = " ".join([ctx.command_path, "[OPTIONS]", *map(_in_usage, arguments)])
    yield f"usage: {words}"
    yield from _paragraphs(command.help or "")
    yield from _examples(command.examples)
    yield from _section("Arguments", [(_bare(param), _help_of(param)) for param in arguments])
    yield from _options(params)


def _group_help(group: HelpfulGroup, ctx: Any, *, options: bool = True) -> Iterator[str]:
    yield f"usage: {ctx.command_path} COMMAND ..."
    yield from _paragraphs(group.help or "")
    if options:
        yield from _examples(group.examples)
    panels: dict[str, list[tuple[str, str]]] = {}
    for name in group.list_commands(ctx):
        command: Any = group.get_command(ctx, name)
        if command is not None and not command.hidden:
            summary = command.get_short_help_str(limit=WIDEST)
            panels.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append((name, summary))
    width = max(len(name) for rows in panels.values() for name, _ in rows) + 2
    for title, rows in panels.items():
        yield from _section(title, rows, width)
    if not options:  # at the end, where a small terminal shows them
        yield from _examples(group.examples)
    else:
        yield from _options([param for param in group.get_params(ctx) if not getattr(param, "hidden", False)])
    yield from _paragraphs(group.epilog or "")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in textwrap.dedent(text.partition("\f")[0]).strip().split("\n\n"):
        if paragraph:
            yield ""
            yield from _wrapped(paragraph.strip().replace("\n", " "), _width())


def _examples(examples: Sequence[str]) -> Iterator[str]:
    if examples:
        yield ""
        yield _heading("Example" if len(examples) == 1 else "Examples")
        yield from (f"  {line}" for line in examples)


def _options(params: Sequence[Any]) -> Iterator[str]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        if param.param_type_name == "option":
            panels.setdefault(getattr(param, "rich_help_panel", None) or "Options", []).append(
                (_term(param), _help_of(param))
            )
    width = min(TERM_COLUMNS, max((len(term) for rows in panels.values() for term, _ in rows), default=0) + 2)
    for title in sorted(panels, key="Everywhere".__eq__):
        yield from _section(title, panels[title], width)


def _section(title: str, rows: Rows, width: int = 0) -> Iterator[str]:
    """Two columns. width: of the first one; 0: as wide as its widest entry."""
    if not rows:
        return
    yield ""
    yield _heading(title)
    width = width or min(TERM_COLUMNS, max(len(term) for term, _ in rows) + 2)
    for term, text in rows:
        lines = _wrapped(text, max(20, _width() - width - 2)) or [""]
        beside = lines[0] if len(term) + 2 <= width else ""
        yield f"  {term:<{width}}{beside}".rstrip()
        yield from (f"  {'':<{width}}{line}" for line in lines[1 if beside else 0 :])


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a help; a default is not broken."""
    held = re.sub(r"\[default: [^]]{1,30}\]", lambda found: found[0].replace(" ", "\xa0"), text)
    return [line.replace("\xa0", " ") for line in textwrap.wrap(held, width, break_on_hyphens=False)]


def _term(param: Any) -> str:
    """An option's spellings with its value, such as `-p, --port N` or `--[no-]template`."""
    forms = sorted(param.opts, key=len)
    if param.secondary_opts:
        forms = [f"--[no-]{forms[-1].removeprefix('--')}"]
    return f"{', '.join(forms)} {_placeholder(param)}".rstrip()


def _placeholder(param: Any) -> str:
    """What stands for an option's value; empty for one that has none."""
    if getattr(param, "is_flag", False) or getattr(param, "count", False):
        return ""
    if param.metavar:
        return str(param.metavar)
    kind = param.type_descriptor.annotation
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return _PLACEHOLDERS.get(kind, "FILE" if getattr(kind, "__name__", "") == "Path" else "VALUE")


def _bare(param: Any) -> str:
    """An argument's name without what says how often it may stand, unless that has several."""
    name = str(param.metavar or param.name.upper())
    return name if " " in name else name.strip("[]").replace("]...", "").removesuffix("...").strip("[]")


def _in_usage(param: Any) -> str:
    """An argument as the first line has it: `FILE`, `[MODEL]`, `URL...`, `[PROMPT]...`."""
    name = str(param.metavar or "")
    if " " in name:  # says it all itself
        return name
    several = "..." if param.nargs == -1 else ""
    return f"{_bare(param)}{several}" if param.required else f"[{_bare(param)}]{several}"


def _help_of(param: Any) -> str:
    return "  ".join(filter(None, (param.help or "", _default(param))))


def _default(param: Any) -> str:
    """An option's default, where its help does not tell it and it is something to know."""
    shown, value = param.show_default, param.default
    if isinstance(shown, str):
        return f"[default: {shown}]"
    if not shown or value is None or value in ("", (), []) or "default:" in (param.help or ""):
        return ""
    if isinstance(value, bool):
        return f"[default: {'on' if value else 'off'}]" if param.secondary_opts else ""
    return f"[default: {value:g}]" if isinstance(value, float) else f"[default: {value}]"
