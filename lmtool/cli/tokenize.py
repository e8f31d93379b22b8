"""`lmtool tokenize`: text to token ids and back, without a server."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.invocation import Common
from lmtool.errors import UsageError

if TYPE_CHECKING:
    from lmtool.text.tokenizer import TextTokenizer

MOST_IDS = 1 << 20


def tokenize(
    common: Common,
    text: Annotated[
        list[str] | None, typer.Argument(help="Text; with --decode ids. '-', or nothing: stdin.", show_default=False)
    ] = None,
    *,
    ids: Annotated[str | None, typer.Option(metavar="IDS", help='Ids in place of text, such as "15496 220".')] = None,
    decode: Annotated[bool, typer.Option("--decode", help="Ids in, only their text out.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only the number of tokens.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    special: Annotated[
        bool, typer.Option("--special/--no-special", help="What the model wants at a text's start, such as bos.")
    ] = True,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer",
            "-m",
            metavar="NAME",
            help="A model's hub name or folder.  [default: the embedded model]",
        ),
    ] = None,
) -> None:
    """Show how a text is cut into tokens: ids, texts, bytes. Needs no server."""
    from lmtool.cli.output import Output
    from lmtool.text.tokenizer import load_tokenizer

    if ids is not None and text:
        raise UsageError("--ids and a text say two things", "give one of them")
    given = ids if ids is not None else _input(text)
    if tokenizer is None:
        from lmtool.tiny.path import MODEL_DIR

        own = load_tokenizer(str(MODEL_DIR))
    else:
        own = load_tokenizer(tokenizer)
    out = Output.of(common)
    tokens = parse_ids(given) if decode or ids is not None else own.encode(given, special=special)
    _check(tokens, own)
    if count:
        out.line(str(len(tokens)))
    elif decode:
        out.line(own.decode(tokens))  # one line feed more than the text: where it is read again, one is taken off
    elif json:
        out.line(as_json(tokens, own))
    else:
        out.write(as_rows(tokens, own))


def _input(words: list[str] | None) -> str:
    from lmtool.cli.talking.asking import read_stdin

    if words and words != ["-"]:
        return " ".join(words)
    piped = read_stdin(sys.stdin, wait=bool(words))
    if piped is None:
        raise UsageError("there is no text, and nothing on stdin", 'for example:  lmtool tokenize "Hello there"')
    return piped


def parse_ids(text: str) -> list[int]:
    """Read ids between blanks, commas or brackets. Raises `UsageError` for anything else."""
    words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
    for word in words:
        if not re.fullmatch(r"\d{1,10}", word):
            raise UsageError(f"{word!r} is no token id", 'ids are whole numbers, such as "15496 220"')
    if len(words) > MOST_IDS:
        raise UsageError(f"{len(words)} ids are more than {MOST_IDS}", "send less of them")
    return [int(word) for word in words]


def _check(tokens: list[int], own: TextTokenizer) -> None:
    for token in tokens:
        if own.token(token) is None:
            raise UsageError(f"id {token} is not in the vocabulary of {own.info.name}", f"it has {own.vocab_size} ids")


def as_rows(tokens: list[int], own: TextTokenizer) -> str:
    """One row a token: id, text in quotes, bytes in hex."""
    from lmtool.cli.talking.cells import pad

    wide = max((len(str(token)) for token in tokens), default=0)
    rows = [f"{token:>{wide}}  {pad(shown(token, own), 16)}  {own.piece(token).hex(' ')}" for token in tokens]
    return "".join(f"{row.rstrip()}\n" for row in rows)


def as_json(tokens: list[int], own: TextTokenizer) -> str:
    """One object: the tokenizer's name, and each token's id, text (null for a part of a character), bytes in hex."""
    import json

    rows = [{"id": token, "text": text_of(token, own), "bytes": own.piece(token).hex(" ")} for token in tokens]
    return json.dumps({"tokenizer": own.info.name, "count": len(tokens), "tokens": rows}, ensure_ascii=False)


def shown(token: int, own: TextTokenizer) -> str:
    """The token's text in quotes; the vocabulary's spelling for special ids and for parts of a character."""
    text = text_of(token, own)
    return repr(text) if text else str(own.token(token))


def text_of(token: int, own: TextTokenizer) -> str | None:
    """What a token adds to a text; None where that is only a part of a character."""
    try:
        return own.piece(token).decode()
    except UnicodeDecodeError:
        return None
