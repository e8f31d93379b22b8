"""What commands of a conversation do beyond it: other models, files, conversations that were kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lmtool.core.errors import FileError, UsageError
from lmtool.serving.events import model_line
from lmtool.terminal.chat.conversation import LoadConversation, SaveConversation, UseModel
from lmtool.terminal.chat.conversation_store import kept_conversations, read_turns
from lmtool.terminal.chat.render import shorten
from lmtool.terminal.chat.saving import read_messages, write_conversation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lmtool.terminal.chat.conversation import Action, Conversation
    from lmtool.terminal.chat.keeping import Keeping
    from lmtool.terminal.chat.peer import Peer
    from lmtool.terminal.chat.turns import TurnTree

MOST_LISTED = 20
_ANSWER_LINES = 6


class ConversationActions:
    """Carries out what needs the server, or the disk, and says what became of it."""

    def __init__(
        self,
        conversation: Conversation,
        keeping: Keeping,
        say: Callable[[str], None],
        columns: Callable[[], int | None],
    ) -> None:
        self._conversation = conversation
        self._keeping = keeping
        self._say = say
        self._columns = columns

    async def do(self, action: Action, peer: Peer) -> Peer:
        """Carry an action out; returns the model that is used then. Raises the errors of what it does."""
        match action:
            case UseModel(None):
                await self._list_models(peer)
            case UseModel(str() as name):
                return await self._use_model(name, peer)
            case SaveConversation():
                await self._save(action.path)
            case LoadConversation():
                await self._load(action)
        return peer

    def take(self, tree: TurnTree) -> None:
        """Go on with another conversation; says where it stands."""
        conversation, last = self._conversation, tree.last
        conversation.take(tree)
        if last is None:
            self._say("goes on from the beginning of an earlier conversation")
            return
        turns = len(tree.path())
        lines = last.answer.strip().split("\n")
        shown = ["…", *lines[-_ANSWER_LINES:]] if len(lines) > _ANSWER_LINES else lines
        self._say(f"goes on behind turn {last.number}, the last of {turns}:")
        self._say("\n".join([f"{last.number}> {last.prompt}", *shown]))
        if last.model and last.model != conversation.info.model:
            self._say(f"that answer was {last.model}'s, the next is {conversation.info.model}'s  (/model NAME)")
        if not conversation.requests.templated(conversation.info):
            self._say("this model has no chat template: it is sent each prompt alone  (/continue, /retry go on)")

    async def _list_models(self, peer: Peer) -> None:
        lines = []
        for entry in await peer.models():
            mark = "*" if peer.info.model in (entry.name, *entry.aliases) else " "
            lines.append(f"{mark} {' '.join((entry.name, *entry.aliases))}  {entry.phase}")
        self._say("\n".join([*lines, "/model NAME uses another one"]))

    async def _use_model(self, name: str, peer: Peer) -> Peer:
        switched = await peer.switched(name)
        self._conversation.use_model(name, switched.info)
        self._say(model_line(switched.info))
        return switched

    async def _save(self, path: Path) -> None:
        if not self._conversation.tree.turns:
            raise UsageError("there is nothing to save yet", "send a prompt first")
        if path.name.endswith(".lmtp.jsonl"):
            await self._keeping.copy_trace(path)
        else:
            write_conversation(path, self._conversation.tree.path())
        self._say(f"saved into {path}")

    async def _load(self, action: LoadConversation) -> None:
        if action.path is None and action.number is None:
            self._say(kept_list(self._columns()))
            return
        path = _kept(action.number) if action.number is not None else action.path
        assert path is not None
        tree = read_turns(path) if path.name.endswith((".jsonl", ".gz")) else read_messages(path)
        await self._keeping.restart()
        self.take(tree)


def kept_list(columns: int | None) -> str:
    """The conversations that are kept, numbered from the newest, one a line. columns: of the terminal; None: any."""
    kept = kept_conversations(MOST_LISTED)
    if not kept:
        return "no conversation is kept yet"
    lines = (f"{i:>3}  {one.modified:%d %b %H:%M}  {one.model}  {one.title}" for i, one in enumerate(kept, 1))
    return "\n".join([line if columns is None else shorten(line, columns - 1) for line in lines])


def _kept(number: int) -> Path:
    kept = kept_conversations(number)
    if not 1 <= number <= len(kept):
        raise FileError(f"no conversation has the number {number}", "/load alone lists them")
    return kept[number - 1].path
