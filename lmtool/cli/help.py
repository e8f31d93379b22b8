"""Text of `--help`: usage, description, examples, then arguments and options in sections. Needs no typer."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from lmtool.cli.commands import TREE, Command, Group
from lmtool.cli.common_options import RootOptions
from lmtool.settings.option import options_of
from lmtool.settings.terminal import wants_color

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lmtool.settings.option import Option

WIDEST = 100
"""Columns; longer lines are hard to read."""
TERM_COLUMNS = 28
"""Widest first column; a longer option has its help on the next line."""
HELP = "Load a language model once, in a long-lived process; stream its tokens to everything else."
EXAMPLES = (
    'lmtool chat "Tell me a story about a fox."   an answer now, without a server',
    "lmtool serve                                 keep a model loaded for clients",
    "lmtool inspect                               watch tokens and probabilities",
)
EPILOG = (
    "Help for one command:  lmtool COMMAND --help.  The manual:  lmtool docs.\n\n"
    "Set options in the environment, --max-tokens as LMTOOL_MAX_TOKENS, or in a file:  lmtool config show"
)
HELP_ROW = ("-h, --help", "Show this help.")
COMPLETION_ROWS = (
    ("--install-completion", "Install completion for the current shell."),
    ("--show-completion", "Print the completion script of the current shell."),
)
_PLACEHOLDERS: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT"}


def program_help(*, options: bool = True) -> str:
    """Help of the program. options: without them the examples come last, where a small terminal shows them."""
    own = options_of(RootOptions)
    panels: dict[str, list[tuple[str, str]]] = {"Options": []}
    for name, each in own.items():
        forms = [f"--{name.replace('_', '-')}", *([each.short] if each.short else [])]
        panels.setdefault(each.panel or "Options", []).append((_term(forms, each.metavar), help_text(each, None)))
    panels["Options"] += [*COMPLETION_ROWS, HELP_ROW]
    examples = [*_examples(EXAMPLES)]
    lines = [*_head("lmtool COMMAND ...", HELP), *(examples if options else []), *_commands(TREE)]
    lines += _options(panels) if options else examples
    return _text([*lines, *_paragraphs(EPILOG)])


def group_help(path: str, group: Group) -> str:
    """Help of a group of commands."""
    examples = [example for command in group.commands[:3] for example in command.examples[:1]]
    head = _head(f"{path} COMMAND ...", group.summary)
    return _text([*head, *_examples(examples), *_commands(group.commands), *_options({"Options": [HELP_ROW]})])


def command_help(ctx: Any, examples: Sequence[str]) -> str:
    """Help of a command. ctx: its click context."""
    params = [param for param in ctx.command.get_params(ctx) if not getattr(param, "hidden", False)]
    arguments = [param for param in params if param.param_type_name == "argument"]
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in params:
        if param.param_type_name == "option" and param.name != "help":
            rows = panels.setdefault(getattr(param, "rich_help_panel", None) or "Options", [])
            rows.append((_term(param.opts, param.metavar, param.secondary_opts), param.help or ""))
    panels.setdefault("Options", []).append(HELP_ROW)
    usage = " ".join([ctx.command_path, "[OPTIONS]", *map(_in_usage, arguments)])
    rows = [(_bare(param), _argument_text(param)) for param in arguments]
    width = min(TERM_COLUMNS, max((len(term) for term, _ in rows), default=0) + 2)
    head = [*_head(usage, ctx.command.help or ""), *_examples(examples)]
    return _text([*head, *_section("Arguments", rows, width), *_options(panels)])


def help_text(each: Option, default: object) -> str:
    """An option's sentence and, where that is worth knowing, its default."""
    shown = each.shown_default
    if shown is None and default not in (None, "", (), False) and "default:" not in each.help:
        shown = "on" if default is True else f"{default:g}" if isinstance(default, float) else str(default)
        shown = "" if each.count else shown
    return f"{each.help}  [default: {shown}]" if shown else each.help


def placeholder(each: Option, kind: Any) -> str | None:
    """Placeholder of an option's value; None for an option without a value. kind: its annotation."""
    plain = [part for part in get_args(kind) if part is not type(None)] if type(None) in get_args(kind) else [kind]
    kind = plain[0] if plain else kind
    if kind is bool or each.count:
        return None
    if get_origin(kind) in {list, tuple}:
        kind = get_args(kind)[0]
    if each.metavar is None and get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return each.metavar or _PLACEHOLDERS.get(kind, "VALUE")


def _text(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _head(usage: str, description: str) -> Iterator[str]:
    yield f"usage: {usage}"
    yield from _paragraphs(description)


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in textwrap.dedent(text.partition("\f")[0]).strip().split("\n\n"):
        if paragraph:
            yield ""
            yield from _wrapped(paragraph.strip().replace("\n", " "), _width())


def _examples(examples: Sequence[str]) -> Iterator[str]:
    if examples:
        yield from ("", _heading("Example" if len(examples) == 1 else "Examples"))
        yield from (f"  {line}" for line in examples)


def _commands(entries: Sequence[Command | Group]) -> Iterator[str]:
    panels: dict[str, list[tuple[str, str]]] = {}
    for entry in entries:
        if not entry.hidden:
            panels.setdefault(entry.panel if entries is TREE else "Commands", []).append((entry.name, entry.summary))
    width = max(len(name) for rows in panels.values() for name, _ in rows) + 2
    for title, rows in panels.items():
        yield from _section(title, rows, width)


def _options(panels: Mapping[str, Sequence[tuple[str, str]]]) -> Iterator[str]:
    width = min(TERM_COLUMNS, max(len(term) for rows in panels.values() for term, _ in rows) + 2)
    for title in sorted(panels, key="Everywhere".__eq__):
        yield from _section(title, panels[title], width)


def _section(title: str, rows: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Two columns below a heading; nothing without rows. width: columns of the first one, with the gap."""
    if rows:
        yield from ("", _heading(title))
    for term, text in rows:
        lines = _wrapped(text, max(20, _width() - width - 2)) or [""]
        first = lines.pop(0) if len(term) + 2 <= width else ""
        yield f"  {term:<{width}}{first}".rstrip()
        yield from (f"  {'':<{width}}{line}" for line in lines)


def _heading(title: str) -> str:
    return f"\x1b[1m{title}:\x1b[0m" if wants_color(sys.stdout, None) else f"{title}:"


def _width() -> int:
    return max(40, min(WIDEST, shutil.get_terminal_size().columns))


def _wrapped(text: str, width: int) -> list[str]:
    """Lines of this width; a short `[default: ...]` is not broken."""
    joined = re.sub(r"\[default: [^]]{1,30}\]", lambda match: match[0].replace(" ", "\xa0"), text)
    return [line.replace("\xa0", " ") for line in textwrap.wrap(joined, width, break_on_hyphens=False)]


def _term(forms: Sequence[str], metavar: str | None, negative: Sequence[str] = ()) -> str:
    """An option's spellings with its value, such as `-p, --port N` or `--[no-]template`."""
    forms = sorted(forms, key=len)
    if negative:
        forms = [f"--[no-]{forms[-1].removeprefix('--')}"]
    return f"{', '.join(forms)} {metavar or ''}".rstrip()


def _bare(param: Any) -> str:
    """An argument's name without brackets and dots, unless its metavar has several words."""
    name = str(param.metavar or param.name.upper())
    return name if " " in name else name.strip("[]").replace("]...", "").removesuffix("...").strip("[]")


def _in_usage(param: Any) -> str:
    """An argument in the usage line: `FILE`, `[MODEL]`, `URL...`, `[PROMPT]...`."""
    if " " in (param.metavar or ""):
        return str(param.metavar)
    several = "..." if param.nargs == -1 else ""
    return f"{_bare(param)}{several}" if param.required else f"[{_bare(param)}]{several}"


def _argument_text(param: Any) -> str:
    default = f"[default: {param.show_default}]" if isinstance(param.show_default, str) else ""
    return "  ".join(filter(None, (param.help or "", default)))
