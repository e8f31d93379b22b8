"""`lmtool tokenize`: converts text to token ids and back, without a server."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.common_options import Common
from lmtool.core.errors import UsageError
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.inference.text.tokenizer import TextTokenizer

MAX_IDS = 1 << 20


def tokenize(
    common: Common,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Text, or ids with --decode; '-' or nothing reads stdin.", show_default=False),
    ] = None,
    *,
    ids: str | None = option(None, 'Show these ids instead of a text, such as "15496 220".', metavar="IDS"),
    decode: bool = option(False, "Print only the text of ids."),
    count: bool = option(False, "Print only the number of tokens."),
    json: bool = option(False, "Print one JSON object."),
    special: bool = option(True, "Add the model's special tokens, such as bos."),
    tokenizer: str | None = option(
        None, "Hub name or folder of a model.  [default: the included model]", short="-m", metavar="NAME"
    ),
) -> None:
    """Show the tokens of a text: ids, texts, bytes. Needs no server."""
    from lmtool.inference.text.tokenizer import load_tokenizer
    from lmtool.inference.tiny.path import source_of

    if ids is not None and text:
        raise UsageError("--ids and a text contradict each other", "choose one of them")
    source = ids if ids is not None else _input(text)
    own = load_tokenizer(source_of(tokenizer))
    out = common.output()
    tokens = parse_ids(source) if decode or ids is not None else own.encode(source, special=special)
    for token in tokens:
        if own.token(token) is None:
            raise UsageError(f"id {token} is not in the vocabulary of {own.info.name}", f"it has {own.vocab_size} ids")
    if count:
        out.line(str(len(tokens)))
    elif decode:
        out.line(own.decode(tokens))  # `lmtool tokenize` removes the line feed when it reads the text
    elif json:
        out.line(as_json(tokens, own))
    else:
        out.write(as_rows(tokens, own))


def _input(words: list[str] | None) -> str:
    from lmtool.terminal.chat.prompt import read_stdin

    if words and words != ["-"]:
        return " ".join(words)
    piped = read_stdin(sys.stdin, wait=bool(words))
    if piped is None:
        raise UsageError("no text, and nothing on stdin", 'for example:  lmtool tokenize "Hello there"')
    return piped


def parse_ids(text: str) -> list[int]:
    """Ids separated by spaces, commas or brackets. Raises `UsageError` for anything else."""
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    for word in words:
        if not re.fullmatch(r"\d{1,10}", word):
            raise UsageError(f"{word!r} is not a token id", 'ids are whole numbers, such as "15496 220"')
    if len(words) > MAX_IDS:
        raise UsageError(f"{len(words)} ids are more than {MAX_IDS}", "send fewer")
    return [int(word) for word in words]


def as_rows(tokens: list[int], own: TextTokenizer) -> str:
    """One row per token: id, text in quotes, bytes in hex."""
    from lmtool.terminal.chat.render import pad

    width = max((len(str(token)) for token in tokens), default=0)
    rows = (f"{token:>{width}}  {pad(quoted(token, own), 16)}  {own.piece(token).hex(' ')}" for token in tokens)
    return "".join(f"{row.rstrip()}\n" for row in rows)


def as_json(tokens: list[int], own: TextTokenizer) -> str:
    """One object: the tokenizer's name, and each token's id, text (null for a part of a character), bytes in hex."""
    import json

    rows = [{"id": token, "text": text_of(token, own), "bytes": own.piece(token).hex(" ")} for token in tokens]
    return json.dumps({"tokenizer": own.info.name, "count": len(tokens), "tokens": rows}, ensure_ascii=False)


def quoted(token: int, own: TextTokenizer) -> str:
    """The token's text in quotes; special ids and parts of characters as the vocabulary spells them."""
    text = text_of(token, own)
    return repr(text) if text else str(own.token(token))


def text_of(token: int, own: TextTokenizer) -> str | None:
    """The text of a token; None for part of a character."""
    try:
        return own.piece(token).decode()
    except UnicodeDecodeError:
        return None
