"""Puts what the transcripts of LMTP's specification show today in place of what they show.

`python -m tests.spec.rewrite URL [TOKENIZER]`, of a server of the included model. Only answers that differ are
rewritten: read the difference before you commit it. TOKENIZER: the tokenizer.json that the ids of the requests are of,
where the model's is another by now; the ids of the same texts take their place.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from websockets.asyncio.client import connect

import lmtool.protocol.lmtp
from lmtool.inference.tiny.path import MODEL_DIR
from tests.spec.transcripts import ANY, ANY_TOKENS, TRANSCRIPT, Answers, expected, matches

DOCUMENT = Path(lmtool.protocol.lmtp.__file__).parent / "SPEC.md"
IDS = re.compile(r'("(?:prompt|scored|generated)": \[)([\d, ]+)\]')


def written(value: Any) -> str:
    """A payload as the document has it: no spaces, logprobs with two digits, wildcards as `...`."""
    if value == ANY:
        return "..."
    if isinstance(value, dict):
        members = ("..." if name == ANY else f"{json.dumps(name)}:{written(one)}" for name, one in value.items())
        return f"{{{','.join(members)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return f"{value:.2f}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def renewed(shown: Any, found: Any) -> Any:
    """What was found in place of what is shown; wildcards, and all that is still true, stay."""
    if matches(shown, found):
        return shown
    if isinstance(shown, dict) and isinstance(found, dict):
        if all(name.isdigit() for name in found):  # alternatives by their ids
            return found
        return {name: one if name == ANY else renewed(one, found.get(name)) for name, one in shown.items()}
    return found


def translated(line: str, before: Tokenizer, now: Tokenizer) -> str:
    """A request with the ids of another tokenizer, of the same texts."""

    def ids(found: re.Match[str]) -> str:
        numbers = []
        for number in map(int, found[2].split(",")):
            text = before.decode([number], skip_special_tokens=False)
            numbers += now.encode(text, add_special_tokens=False).ids if text else [number]
        return f"{found[1]}{', '.join(map(str, numbers))}]"

    return IDS.sub(ids, line)


async def answered(transcript: str, url: str) -> str:
    """The transcript with what the server answers."""
    lines, skipping = [], False
    async with asyncio.timeout(60), connect(url, compression=None) as connection:
        answers = Answers(connection)
        for line in transcript.splitlines():
            if line.startswith("> "):
                await connection.send(line[2:])
            elif line == ANY_TOKENS:
                skipping = True
            elif skipping:
                await answers.expect(line.removeprefix("< "), skipping=True)
                skipping = False
            else:
                command, _, payload = line.removeprefix("< ").partition(" ")
                shown = expected(payload)
                found = [renewed(one, (await answers.take())[1]) for one in shown]
                line = line if found == shown else f"< {command} {written(found)}"  # noqa: PLW2901
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


async def rewrite(url: str, before: str | None) -> None:
    """Rewrite the document."""
    text, now = DOCUMENT.read_text(encoding="utf-8"), Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    for transcript in TRANSCRIPT.findall(text):
        asked = transcript if before is None else translated(transcript, Tokenizer.from_file(before), now)
        text = text.replace(transcript, await answered(asked, url))
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    asyncio.run(rewrite(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None))
