"""A call as a JSON object, `{"name": ..., "arguments": {...}}`, in the grammar of a form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmtool.protocol.http.tools.call_grammar import CallContext, Part
    from lmtool.protocol.http.tools.definitions import Tool


def json_call(arguments: str, before: str = "", after: str = "") -> Callable[[Tool, CallContext], Part]:
    """How a tool is called. arguments: what the form calls them. before, after: texts around the object."""

    def call(tool: Tool, context: CallContext) -> Part:
        return {
            "type": "tag",
            "begin": f'{before}{{"name": {json.dumps(tool.name)}, "{arguments}": ',
            "content": context.json(tool),
            "end": f"}}{after}",
        }

    return call
