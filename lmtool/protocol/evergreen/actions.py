"""Actions: what a server offers, and what a handler gets.

A handler is `async def handler(call: ActionCall) -> None`. It runs from the arrival of its action on, in a task of its
own, whether the inputs are complete or not. It reads `call.inputs["name"]` (leaves as they come), writes
`call.outputs["name"]` (only those that were asked for are there), and returns when it is done; outputs still open are
closed then. An `LmtoolError` aborts the session with the status that `status.abort_of` gives, an `Abort` with its own;
where the caller asked for an output `status`, that gets code and message as JSON in its place and the session goes on.
The task is cancelled when the session ends and by CANCEL; a handler cleans up in `finally`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from lmtool.core.errors import UsageError
from lmtool.protocol.evergreen.status import Abort, Status, invalid, quoted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lmtool.protocol.evergreen.messages import Action, AnyMessage, NamedParameter
    from lmtool.protocol.evergreen.node_io import InputNode, OutputNode
    from lmtool.protocol.evergreen.nodes import ActionRecord

GROUP = "lmtool.actions"
"""Entry points of this group are actions."""
STATUS_OUTPUT = "status"
"""Every action has this output; who asks for it gets an action's failure there in place of the session's end."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or an output of an action."""

    name: str
    description: str = ""
    aliases: tuple[str, ...] = ()
    """Further names under which a client may give it; a handler sees `name`."""
    required: bool = False
    """Of an input: whether an action without it is refused."""
    mimetypes: tuple[str, ...] = ()
    """What may stand there, for people and LIST_ACTIONS; nothing is checked by it."""


class SessionControl(Protocol):
    """What an action may do to the session that it runs in."""

    def cancel(self, output_id: str) -> None:
        """End the running action that has this output, and close its outputs. Raises `Abort`, NOT_FOUND."""

    def drop(self, node_id: str, but: ActionRecord | None = None) -> None:
        """Drop a node. but: the action that asks for it. Raises `Abort`, NOT_FOUND or FAILED_PRECONDITION."""

    def set_ttl(self, node_id: str, seconds: float) -> None:
        """Drop a node and what is below it after so long. Raises `Abort`, NOT_FOUND."""

    async def invoke(
        self,
        name: str,
        inputs: Mapping[str, bytes | str | InputNode],
        outputs: Sequence[str],
        configs: Sequence[AnyMessage] = (),
    ) -> Mapping[str, InputNode]:
        """Ask the peer for an action that it offers; its outputs, which may still be on their way.

        inputs: a node of the session, or a value to send as text. Raises `Abort`.
        """


@dataclass(frozen=True, slots=True)
class ActionCall:
    """One action that runs: what its handler gets."""

    record: ActionRecord
    inputs: Mapping[str, InputNode]
    """By the ports' own names."""
    outputs: Mapping[str, OutputNode]
    """Those that were asked for, by the ports' own names; `status` is not among them."""
    control: SessionControl

    @property
    def action(self) -> Action:
        """The message that asked for it."""
        return self.record.action

    @property
    def configs(self) -> tuple[AnyMessage, ...]:
        """Configuration messages; `codec.unpack_config` reads them."""
        return self.record.action.configs

    @property
    def target(self) -> str:
        """A model's name; empty for the default."""
        return self.record.action.target


Handler: TypeAlias = Callable[[ActionCall], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ActionType:
    """An action that is offered."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    handler: Handler = field(repr=False)
    description: str = ""
    seconds: float | None = 600.0
    """A handler that runs longer aborts its session; None: no limit."""

    def resolve(self, action: Action) -> tuple[dict[str, str], dict[str, str]]:
        """The ports' own names of an action's inputs and of its outputs, by the names that the client gave.

        Raises `Abort` for an unknown name, a port that is given twice by two names, and a missing input.
        """
        inputs = self._resolve(action.inputs, self.inputs, "input")
        outputs = self._resolve(action.outputs, (*self.outputs, Port(STATUS_OUTPUT)), "output")
        missing = [port.name for port in self.inputs if port.required and port.name not in inputs.values()]
        if missing:
            raise invalid(f"{self.name} needs the input {' and '.join(map(repr, missing))}")
        return inputs, outputs

    def _resolve(self, given: Sequence[NamedParameter], ports: Sequence[Port], what: str) -> dict[str, str]:
        known = {name: port.name for port in ports for name in (port.name, *port.aliases)}
        names: dict[str, str] = {}
        for each in given:
            if each.name not in known:
                listed = ", ".join(port.name for port in ports) or "none"
                raise invalid(f"{self.name} has no {what} {quoted(each.name)}", f"it has: {listed}")
            if known[each.name] in names.values():
                raise invalid(f"{self.name} has the {what} {known[each.name]!r} twice")
            names[each.name] = known[each.name]
        return names


def action(
    name: str,
    inputs: Sequence[str | Port] = (),
    outputs: Sequence[str | Port] = (),
    *,
    description: str | None = None,
    seconds: float | None = 600.0,
) -> Callable[[Handler], ActionType]:
    """Make an action of an `async def handler(call)`, see the head of this file.

    inputs: an input that is only named must be given; a `Port` says more. description: by default the first line of the
    handler's docstring. seconds: a handler that takes longer aborts its session; None: no limit.
    """

    def make(handler: Handler) -> ActionType:
        lines = (handler.__doc__ or "").strip().splitlines()
        summary = description if description is not None else next(iter(lines), "")
        needed = tuple(Port(each, required=True) if isinstance(each, str) else each for each in inputs)
        offered = tuple(Port(each) if isinstance(each, str) else each for each in outputs)
        return ActionType(name, needed, offered, handler, summary, seconds)

    return make


class Registry:
    """The menu of a server, or what a client offers, by name."""

    def __init__(self, types: Sequence[ActionType] = ()) -> None:
        self._types: dict[str, ActionType] = {}
        for each in types:
            self.add(each)

    def add(self, action_type: ActionType) -> None:
        """Offer an action. Raises `UsageError` for a name that is taken."""
        if action_type.name in self._types:
            raise UsageError(f"two actions have the name {action_type.name!r}", "rename one of them")
        self._types[action_type.name] = action_type

    def __iter__(self) -> Iterator[ActionType]:
        return iter(self._types.values())

    def find(self, name: str) -> ActionType:
        """The action of a name. Raises `Abort`, UNIMPLEMENTED."""
        if name not in self._types:
            listed = ", ".join(self._types) or "none"
            raise Abort(Status.UNIMPLEMENTED, f"there is no action {quoted(name)} here", f"there are: {listed}")
        return self._types[name]
