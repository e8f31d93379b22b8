"""A server on a port of this process, over the real engine: its model says what the request asks for.

It says what stands between « and » in the last message of the user; asked by `Again.`, its own last turn as the
prompt shows it, thought included; behind a tool's result, `It is` and the result.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from lmtool.core.interfaces import Sink, StreamHandle
from lmtool.core.types import GenerateRequest, ScoreRequest
from tests.protocol.http.thinking import Scripted

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tool_call> {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)
"""As Qwen3's: it is up to the model whether it thinks. Thoughts of every turn are shown, so that they can be seen."""


def reply(turns: Sequence[tuple[str, str]]) -> str:
    """What the model says behind these turns: role and text of each."""
    role, text = turns[-1]
    if role == "tool":
        return f"It is {text}"
    if text == "Again.":
        return next(said for who, said in reversed(turns) if who == "assistant")
    asked = next(said for who, said in reversed(turns) if who == "user" and "«" in said)
    return asked.partition("«")[2].partition("»")[0]


class Quoting(Scripted):
    """See the module."""

    def __init__(self) -> None:
        super().__init__(TEMPLATE)
        self.forward.weight = 100  # at every temperature

    def submit(self, request: GenerateRequest | ScoreRequest, sink: Sink) -> StreamHandle:
        """See `TokenModel`."""
        assert isinstance(request, GenerateRequest)
        assert isinstance(request.prompt, tuple | list)
        self.says(reply(self._turns(request.prompt)))
        return super().submit(request, sink)

    def _turns(self, prompt: Sequence[int]) -> list[tuple[str, str]]:
        [start] = self.tokenizer.special_marks(("<|im_start|>",))
        turns: list[tuple[str, str]] = []
        while prompt:
            end = prompt.index(start) if start in prompt else len(prompt)
            role, _, text = self.tokenizer.decode(prompt[:end]).partition("\n")
            turns.append((role, text.removesuffix("\n")))
            prompt = prompt[end + 1 :]
        return turns[1:-1]  # nothing before the first mark, nothing said yet behind the last one


@contextmanager
def quoting() -> Iterator[str]:
    """The URL of such a server, which is closed at the end."""
    server = Quoting()
    config = uvicorn.Config(server.http.app, log_level="warning", lifespan="off")
    http = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=http.run, args=([listener],), daemon=True)
        thread.start()
        try:
            end = time.monotonic() + 30
            while not http.started and time.monotonic() < end:
                time.sleep(0.01)
            assert http.started
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            http.should_exit = True
            thread.join(30)
            server.engine.close()
