"""A prompt in the turns that its chat template made of it, with special tokens by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.inference.text.prompts import split_turns

if TYPE_CHECKING:
    from lmtool.inference.text.prompts import PromptTurn
    from lmtool.terminal.tui.state import State
    from lmtool.terminal.tui.streams import Stream


def prompt_parts(state: State, stream: Stream) -> list[PromptTurn]:
    """The end of a stream's prompt, as far as it is kept; special tokens within a turn by their names."""
    if stream.nodes is not None or isinstance(stream.prompt, str):
        return split_turns(state.prompt_text(stream).replace("\x00", "\ufffd"))
    data = bytearray()
    for token in (*stream.prompt, *stream.generated):
        name = state.texts.special_name(token)
        piece = state.texts.piece(token)
        data += f"\x00{name}\x00".encode() if name else piece if isinstance(piece, bytes) else piece.encode()
    return split_turns(data.decode(errors="replace"))
