"""Limits of an Evergreen session and of a server's sessions: each a field that its error names."""

from __future__ import annotations

from dataclasses import dataclass

from lmtool.net.access.stall import STALL_SECONDS


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What one session accepts of its peer. Above any of these it ends with RESOURCE_EXHAUSTED and the field's name."""

    max_message_bytes: int = 4 * 1024 * 1024
    """Of one message as it travels, in either encoding."""
    max_message_items: int = 16_384
    """Fragments, actions, ids of children, parameters and configs of one message, counted before it is decoded."""
    max_session_bytes: int = 64 * 1024 * 1024
    """All nodes of a session, of both sides: payloads, ids, and what each fragment and edge takes to keep."""
    max_nodes: int = 10_000
    """Nodes that were written or named, dropped ones included."""
    max_fragments: int = 65_536
    """Of one node; no seq may be higher."""
    max_children: int = 10_000
    """Of one node."""
    max_nesting: int = 64
    """Levels of parents above a leaf."""
    max_leaves: int = 100_000
    """Of one node once it is flattened."""
    max_value_bytes: int = 64 * 1024 * 1024
    """Of one node once it is flattened."""
    max_id_bytes: int = 256
    """Of an id or a parameter's name in UTF-8."""
    max_running_actions: int = 128
    """Actions of the peer that have not ended."""
    max_parameters: int = 1_000
    """Inputs and outputs of one action."""
    max_graph_steps: int = 500_000
    """Updates of nodes by edges that were added below them, over the whole session: a session in any usual order
    needs about one for each edge."""
    unread_bytes: int = 1024 * 1024
    """Output of one action that the peer has not read; above it the action pauses. Of all actions: four times it."""
    sent_message_bytes: int = 256 * 1024
    """Queued output is joined into messages of about this size."""
    idle_seconds: float = 600.0
    """Without a message and without a running action: DEADLINE_EXCEEDED."""
    input_seconds: float = 120.0
    """An action waits so long for the rest of its inputs while its peer sends nothing: DEADLINE_EXCEEDED."""
    stall_limit: float = STALL_SECONDS
    """Seconds for which a message may wait to be taken by the peer's transport; then it is taken for gone. 0: any. Of a
    server's sessions only those over gRPC are ended by it: a WebSocket's transport sees every byte that is taken."""
    strict_metadata: bool = False
    """Abort for any metadata after seq 0, as the letter of the source has it, also where it repeats that of seq 0."""


@dataclass(frozen=True, slots=True)
class EvergreenConfig:
    """Limits of a server that speaks Evergreen."""

    limits: SessionLimits = SessionLimits()
    max_sessions: int = 256
    """Open sessions of all clients."""
    max_client_sessions: int = 64
    """Open sessions of one address."""
