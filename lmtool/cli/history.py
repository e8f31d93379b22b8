"""`lmtool history`: the conversations that `lmtool chat` keeps."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING

from lmtool.cli.common_options import Common
from lmtool.settings.option import option

if TYPE_CHECKING:
    from lmtool.settings.terminal import Output


def history(
    common: Common,
    *,
    clear: bool = option(False, "Remove all conversations, and all prompts that were typed."),
    json: bool = option(False, "Print one JSON object per conversation."),
) -> None:
    """List the conversations that are kept, the newest first; remove them all."""
    from lmtool.terminal.chat.conversation_store import conversations_folder, kept_conversations

    out = common.output()
    if clear:
        _clear(out)
        return
    kept = kept_conversations()
    if json:
        for one in kept:
            facts = {"path": str(one.path), "modified": one.modified.isoformat(), "bytes": one.size}
            out.line(json_module.dumps({**facts, "model": one.model, "title": one.title}, ensure_ascii=False))
        return
    for number, one in enumerate(kept, 1):
        out.line(f"{number:>3}  {one.modified:%Y-%m-%d %H:%M}  {_size(one.size):>8}  {one.model}  {one.title}")
    if kept:
        out.note(f"in {conversations_folder()}; the newest goes on by:  lmtool chat --continue")
    else:
        out.note("no conversation is kept yet; lmtool chat keeps each one")


def _clear(out: Output) -> None:
    from lmtool.core.errors import FileError
    from lmtool.terminal.chat.conversation_store import conversation_files, prompts_file

    removed = conversation_files()
    for path in removed:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise FileError(f"cannot remove {path}: {error.strerror}", "check whose file it is") from None
    conversations = sum(path != prompts_file() for path in removed)
    prompts = " and the prompts that were typed" if prompts_file() in removed else ""
    out.line(f"removed {conversations} conversation{'s' * (conversations != 1)}{prompts}")


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size >= 2**20 else f"{-(-size // 1024)} KiB"
