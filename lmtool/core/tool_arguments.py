"""Arguments of calls as JSON objects, whatever a model wrote."""

from __future__ import annotations

import json

INVALID = "INVALID_JSON"
"""Member that holds a text that is no JSON object; Anthropic's name for it ("Fine-grained tool streaming")."""


def arguments_object(text: str) -> dict[str, object]:
    """The arguments as an object: a text that is none (cut off, a list, a number) in its member `INVALID_JSON`.

    Templates and APIs refuse anything but an object, so one broken call would fail every later request.
    """
    try:
        value = json.loads(text.strip() or "{}", parse_constant=int)  # NaN, which is no JSON, is no int either
    except (ValueError, RecursionError):
        value = text
    if isinstance(value, dict):
        return value
    return {} if value is None else {INVALID: text}


def object_text(text: str) -> str:
    """The text of `arguments_object`: the same text where it is one."""
    found = arguments_object(text)
    return text if found and found.keys() != {INVALID} else json.dumps(found, ensure_ascii=False)
