"""A prompt from the leaves of a tree: texts in a row, or the turns of a conversation under the model's chat template.

It is a conversation if a leaf has a role other than `assistant`, or an end-of-turn marker occurs. The role of an answer
alone makes none: answers always have it, and a prompt of a text, its answer and a further text means the same whether
the answer is used again or sent again, with a role or without.
"""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import msgspec

from lmtool.core.types import ChatMessage, ChatPrompt, MixedPrompt
from lmtool.protocol.evergreen.status import invalid, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lmtool.core.types import Prompt
    from lmtool.protocol.evergreen.messages import ChunkMetadata
    from lmtool.protocol.evergreen.node_io import InputNode

TOKENS = "application/vnd.lmtool.tokens+json"
"""Mime type of a leaf that holds token ids: a JSON array of them."""
END_OF_TURN = "endofturn"
"""`type` of the mime type `application/x-protobuf; type=EndOfTurn`, in lower case."""
USER, ASSISTANT = "user", "assistant"
_SAME_ROLE = {"model": ASSISTANT}

_IDS = msgspec.json.Decoder(list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]])


@dataclass(slots=True)
class _Part:
    """One leaf as far as it was read."""

    role: str
    """In lower case; empty where its sender named none."""
    texts: list[str] = field(default_factory=list)
    tokens: tuple[int, ...] | None = None
    ends_turn: bool = False

    @property
    def text(self) -> str:
        return "".join(self.texts)


class PromptBuilder:
    """Takes leaves from the left, in pieces; `prompt` is what they make so far. Methods raise `Abort`."""

    def __init__(self, chat_template_kwargs: Mapping[str, object] | None = None) -> None:
        """chat_template_kwargs: further variables of a conversation's template."""
        self._chat_template_kwargs = chat_template_kwargs or {}
        self._parts: list[_Part] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._ids: bytearray | None = None
        self._leaf_id = ""
        self.size = 0
        """Bytes so far."""

    def begin(self, metadata: ChunkMetadata, leaf_id: str) -> None:
        """Begin a leaf. Refuses one that is neither a text, nor token ids, nor the end of a turn, by its mime type."""
        kind, parameters = _media_type(metadata.mimetype)
        role = metadata.role.strip().lower()
        part = _Part(_SAME_ROLE.get(role, role))
        self._leaf_id, self._ids = leaf_id, None
        if kind == TOKENS:
            self._ids = bytearray()
        elif parameters.get("type", "").lower() == END_OF_TURN:
            part.ends_turn = True
        elif not kind.startswith("text/"):
            raise invalid(
                f"node {quoted(leaf_id)} has the mime type {quoted(metadata.mimetype)}; the model reads text only",
                f"send text/plain, or token ids as {TOKENS}",
            )
        self._parts.append(part)

    def feed(self, data: bytes) -> None:
        """Take a piece of the leaf; it may end within a character."""
        self.size += len(data)
        if self._ids is not None:
            self._ids += data
        elif not self._parts[-1].ends_turn:
            self._parts[-1].texts.append(self._decoded(data))

    def end(self) -> None:
        """End the leaf."""
        if self._ids is None:
            self._parts[-1].texts.append(self._decoded(b"", final=True))
            return
        try:
            self._parts[-1].tokens = tuple(_IDS.decode(self._ids))
        except msgspec.DecodeError as error:
            raise invalid(f"node {quoted(self._leaf_id)} is no JSON array of token ids: {error}") from None

    def _decoded(self, data: bytes, *, final: bool = False) -> str:
        try:
            return self._decoder.decode(data, final)
        except UnicodeDecodeError:
            raise invalid(f"the text of node {quoted(self._leaf_id)} is no UTF-8") from None

    def prompt(self) -> Prompt:
        """The prompt so far. An assistant's turn at its end that was not ended is a beginning of the answer."""
        if not any(part.ends_turn or part.role not in ("", ASSISTANT) for part in self._parts):
            return self._text()
        turns, still_open = self._turns()
        if still_open and turns[-1].role == ASSISTANT:
            *turns, last = turns
            return ChatPrompt(tuple(turns), (), self._chat_template_kwargs, last.content)
        return ChatPrompt(tuple(turns), (), self._chat_template_kwargs)

    @property
    def has_content(self) -> bool:
        """True if there is a text, or a turn, yet."""
        return bool(self._turns()[0])

    @property
    def closed(self) -> bool:
        """True if nothing can be added to the last turn of the conversation so far."""
        return not self._turns()[1]

    def _text(self) -> Prompt:
        pieces: list[str | tuple[int, ...]] = []
        for part in self._parts:
            if part.tokens is not None:
                pieces.append(part.tokens)
            elif pieces and isinstance(pieces[-1], str):
                pieces[-1] += part.text
            else:
                pieces.append(part.text)
        if not any(isinstance(piece, tuple) for piece in pieces):
            return str(pieces[0]) if pieces else ""
        return MixedPrompt(tuple(piece for piece in pieces if piece))

    def _turns(self) -> tuple[list[ChatMessage], bool]:
        """The turns, and whether a text of the last one's role would belong to it."""
        turns: list[tuple[str, list[str], tuple[int, ...] | None]] = []
        still_open = False
        for part in self._parts:
            if part.ends_turn:
                still_open = False
            elif part.tokens is not None:
                turns.append((part.role or ASSISTANT, [], part.tokens))
                still_open = False
            elif still_open and turns[-1][0] == (part.role or USER):
                turns[-1][1].append(part.text)
            else:
                turns.append((part.role or USER, [part.text], None))
                still_open = True
        return [ChatMessage(role, "".join(texts), tokens=tokens) for role, texts, tokens in turns], still_open


async def read_prompt(node: InputNode, builder: PromptBuilder, on_growth: Callable[[], None] = lambda: None) -> Prompt:
    """The prompt of a tree, once all of it is here. on_growth: called whenever the builder has more of it."""
    async for leaf in node:
        builder.begin(leaf.metadata, leaf.id)
        async for piece in leaf:
            builder.feed(piece)
            on_growth()
        builder.end()
        on_growth()
    return builder.prompt()


def _media_type(mimetype: str) -> tuple[str, Mapping[str, str]]:
    """`type/subtype` in lower case, and the parameters behind it."""
    kind, *rest = mimetype.split(";")
    pairs = (one.partition("=") for one in rest)
    return kind.strip().lower(), {name.strip().lower(): value.strip().strip('"') for name, _, value in pairs}
