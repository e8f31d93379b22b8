"""Runs the handlers of a session's actions: one task each, its cancellation, and what its failure means."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from lmtool.core.errors import LmtoolError
from lmtool.protocol.evergreen.actions import STATUS_OUTPUT, ActionCall, SessionControl
from lmtool.protocol.evergreen.messages import ChunkMetadata
from lmtool.protocol.evergreen.node_io import InputNode, Live, OutputNode
from lmtool.protocol.evergreen.status import QUOTE_LENGTH, Abort, Status, abort_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.core.types import Usage
    from lmtool.protocol.evergreen.actions import ActionType, Registry
    from lmtool.protocol.evergreen.nodes import ActionRecord


@dataclass(frozen=True, slots=True)
class ActionLog:
    """One action that ended; holds names and counts, never contents."""

    connection: int
    name: str
    target: str
    output_id: str
    """Of its first output; empty for one without outputs."""
    seconds: float
    status: Status
    end: str
    """Finish reason of its stream, `stop` without one, `cancelled`, or `left` where the session ended before it did."""
    error: str | None = None
    usage: Usage | None = None
    ttft: float | None = None
    """Seconds to its first token."""


class Host(Live, SessionControl, Protocol):
    """The running session of these actions: a `Connection`."""

    number: int

    def fail(self, abort: Abort) -> None:
        """Abort the session."""

    def end_action(self, record: ActionRecord) -> None:
        """An action has ended; close its outputs."""


class ActionTasks:
    """The actions of the peer that run in one session."""

    def __init__(self, connection: Host, registry: Registry, log: Callable[[ActionLog], None]) -> None:
        self._connection = connection
        self._registry = registry
        self._log = log
        self._tasks: dict[ActionRecord, asyncio.Task[None]] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, record: ActionRecord) -> None:
        """Run an action. Raises `Abort` for one that nobody offers, or whose parameters are wrong (rules 31, 33)."""
        began = time.perf_counter()
        try:
            action_type = self._registry.find(record.action.name)
            inputs, outputs = action_type.resolve(record.action)
        except Abort as problem:
            self._finish(record, began, problem)
            return
        connection = self._connection
        call = ActionCall(
            record,
            {inputs[name]: InputNode(connection, node) for name, node in record.inputs.items()},
            {
                outputs[name]: OutputNode(connection, node.id, record)
                for name, node in record.outputs.items()
                if outputs[name] != STATUS_OUTPUT
            },
            connection,
        )
        task = asyncio.create_task(_run(action_type, call))
        self._tasks[record] = task
        task.add_done_callback(partial(self._ended, record, began))

    def cancel(self, output_id: str) -> bool:
        """End the action that has this output; False where none of those that run has it."""
        for record, task in self._tasks.items():
            if any(node.id == output_id for node in record.outputs.values()):
                task.cancel()
                return True
        return False

    def close(self) -> list[asyncio.Task[None]]:
        """Cancel all of them, for the session is over; the tasks that are still to end."""
        self._closed = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        return tasks

    def _ended(self, record: ActionRecord, began: float, task: asyncio.Task[None]) -> None:
        del self._tasks[record]
        if task.cancelled():
            problem: Abort | None = Abort(Status.CANCELLED, f"{record.action.name} was cancelled")
        else:
            problem = self._problem(record, task.exception())
        try:
            self._finish(record, began, problem)
        except Abort as abort:
            self._connection.fail(abort)

    def _problem(self, record: ActionRecord, error: BaseException | None) -> Abort | None:
        if error is None or isinstance(error, LmtoolError):
            return abort_of(error) if error is not None else None
        context = {"message": f"the action {record.action.name} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
        return Abort(Status.INTERNAL, f"the action {record.action.name} failed here ({type(error).__name__})")

    def _finish(self, record: ActionRecord, began: float, problem: Abort | None) -> None:
        """Log an action's end, tell it where it was asked for, and close its outputs. Raises `Abort` else."""
        status = Status.OK if problem is None else problem.status
        first = next((each.id for each in record.action.outputs), "")
        error = problem.sentence if problem is not None and status != Status.CANCELLED else None
        ended = record.finish_reason or "stop"
        end = ended if status != Status.CANCELLED else "left" if self._closed else "cancelled"
        head = (self._connection.number, record.action.name[:QUOTE_LENGTH], record.action.target, first)
        self._log(ActionLog(*head, time.perf_counter() - began, status, end, error, record.usage, record.ttft))
        if self._closed:
            return
        node = record.outputs.get(STATUS_OUTPUT)
        if problem is not None and status != Status.CANCELLED and node is None:
            raise problem
        if node is not None:
            body = {"code": status.name, "message": "" if problem is None else problem.sentence}
            data = json.dumps(body, ensure_ascii=False).encode()
            self._connection.write(node.id, data, ChunkMetadata("application/json"), final=True, owner=record)
        self._connection.end_action(record)


async def _run(action_type: ActionType, call: ActionCall) -> None:
    try:
        async with asyncio.timeout(action_type.seconds) as limit:
            await action_type.handler(call)
    except TimeoutError:
        if not limit.expired():
            raise
        text = f"{action_type.name} took more than {action_type.seconds:g} s"
        raise Abort(Status.DEADLINE_EXCEEDED, text) from None
