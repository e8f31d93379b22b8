"""Actions over the session itself: LIST_ACTIONS, CANCEL, DROP and SET_TTL."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lmtool.protocol.evergreen.actions import STATUS_OUTPUT, ActionType, Port
from lmtool.protocol.evergreen.codec import unpack_config
from lmtool.protocol.evergreen.status import invalid, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lmtool.protocol.evergreen.actions import ActionCall, Registry

_MAX_SECONDS = 1e9


def session_actions(registry: Registry) -> list[ActionType]:
    """The actions; LIST_ACTIONS lists `registry`."""
    return [
        ActionType(
            "LIST_ACTIONS",
            (),
            (Port("actions", "A JSON array of their schemas.", mimetypes=("application/json",)),),
            partial(_list_actions, registry),
            "Describe every action that can be asked for here.",
        ),
        ActionType(
            "CANCEL",
            (Port("node", "An output of the running action; it has no other name.", required=True),),
            (),
            _cancel,
            "End a running action: its outputs are closed, and the session goes on.",
        ),
        ActionType(
            "DROP",
            (Port("node", "The node to drop; what is below it stays.", required=True),),
            (),
            _drop,
            "Free a node. Its id stays in use; refused while a running action needs the node.",
        ),
        ActionType(
            "SET_TTL",
            (Port("node", "The node; what is below it is dropped with it.", required=True),),
            (),
            _set_ttl,
            "Drop a node after a time, or once no running action needs it: config `seconds`.",
        ),
    ]


async def _list_actions(registry: Registry, call: ActionCall) -> None:
    if "actions" in call.outputs:
        await call.outputs["actions"].put(msgspec.json.encode([schema(each) for each in registry]), "application/json")


def schema(action_type: ActionType) -> dict[str, object]:
    """What an action is called, takes and gives, as plain JSON values."""
    return {
        "name": action_type.name,
        "description": action_type.description,
        "inputs": _ports(action_type.inputs),
        "outputs": _ports((*action_type.outputs, Port(STATUS_OUTPUT, "A failure, in place of the session's end."))),
        "seconds": action_type.seconds,
    }


def _ports(ports: Iterable[Port]) -> list[dict[str, object]]:
    values = [
        {
            "name": port.name,
            "description": port.description,
            "aliases": port.aliases,
            "required": port.required,
            "mimetypes": port.mimetypes,
        }
        for port in ports
    ]
    return [{name: value for name, value in port.items() if value} for port in values]


async def _cancel(call: ActionCall) -> None:
    call.control.cancel(call.inputs["node"].id)


async def _drop(call: ActionCall) -> None:
    call.control.drop(call.inputs["node"].id, call.record)


async def _set_ttl(call: ActionCall) -> None:
    values: dict[str, object] = {}
    for config in call.configs:
        values |= unpack_config(config)
    unknown = sorted(values.keys() - {"seconds"})
    if unknown:
        raise invalid(f"SET_TTL has no option {quoted(unknown[0])}", "it has: seconds")
    seconds = values.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= _MAX_SECONDS:
        raise invalid(f"seconds is {quoted(str(seconds))}; expected a number from 0 to {_MAX_SECONDS:.0f}")
    call.control.set_ttl(call.inputs["node"].id, float(seconds))
