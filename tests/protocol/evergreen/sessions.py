"""Sessions without I/O for tests: messages in, the value of a node or an abort out."""

from __future__ import annotations

import pytest

from lmtool.protocol.evergreen.config import SessionLimits
from lmtool.protocol.evergreen.messages import Action, NodeFragment, SessionMessage
from lmtool.protocol.evergreen.nodes import LeafCursor
from lmtool.protocol.evergreen.session import Session
from lmtool.protocol.evergreen.status import Abort, Status


def fed(*parts: NodeFragment | Action | SessionMessage, limits: SessionLimits | None = None) -> Session:
    """A session that was sent these, each in a message of its own."""
    session = Session(limits)
    for part in parts:
        if isinstance(part, NodeFragment):
            session.feed(SessionMessage((part,)))
        else:
            session.feed(part if isinstance(part, SessionMessage) else SessionMessage(actions=(part,)))
    return session


def refused(
    status: Status,
    *parts: NodeFragment | Action | SessionMessage,
    match: str = "",
    limits: SessionLimits | None = None,
) -> None:
    """Check that these abort a session with a status, and a sentence that matches."""
    with pytest.raises(Abort, match=match) as caught:
        fed(*parts, limits=limits)
    assert caught.value.status is status


def leaves(session: Session, node_id: str) -> list[bytes]:
    """The bytes of a node's leaves, as far as they have arrived."""
    cursor, found = LeafCursor(session.graph.node(node_id)), []
    while (node := cursor.advance()) is not None:
        found.append(b"".join(piece for piece in node.pieces if isinstance(piece, bytes)))
    return found


def value(session: Session, node_id: str) -> bytes:
    """The bytes of a node."""
    return b"".join(leaves(session, node_id))
