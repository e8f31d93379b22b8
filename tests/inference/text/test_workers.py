"""Worker threads that tokenize long texts, and worker processes that render chat templates."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lmtool.core.errors import RequestError
from lmtool.core.interfaces import tokenizer_of
from lmtool.core.streams import stream
from lmtool.core.types import ChatMessage, ChatPrompt, GenerateRequest, Prompt, SamplingParams, ToolCall
from lmtool.inference.engine.config import EngineConfig
from lmtool.inference.text import workers
from lmtool.inference.text.chat_template import ChatTemplate
from lmtool.inference.text.workers import prompt_size, run_in_worker
from lmtool.net.subprocesses.resources import NICENESS
from lmtool.serving.composition import Loader, models_of
from lmtool.serving.config import ModelsConfig, ServiceConfig
from tests.conftest import STORIES


@pytest.mark.parametrize(
    ("prompt", "least", "most"),
    [
        ("x" * 10, 10, 10),
        ((1,) * 1000, 0, 0),
        ((), 0, 0),
        (ChatPrompt((ChatMessage("user", "x" * 1000),)), 1000, 1200),
        (ChatPrompt((ChatMessage("user", ""),) * 100), 1000, 100_000),
        (ChatPrompt((ChatMessage("assistant", "", (ToolCall("1", "f", "x" * 5000),)),)), 5000, 5200),
    ],
)
def test_sizes(prompt: Prompt, least: int, most: int) -> None:
    """Characters to be tokenized; each message counts even without any; ids are no work."""
    assert least <= prompt_size(prompt) <= most


def where() -> tuple[int, int]:
    """The thread, and its niceness; on Linux alone, each thread has one of its own."""
    number = threading.get_native_id() if sys.platform == "linux" else 0
    return threading.get_ident(), os.getpriority(os.PRIO_PROCESS, number)


async def test_where_it_runs() -> None:
    """In another thread, which lets all others go first."""
    thread, niceness = await run_in_worker(10, where)
    assert thread != threading.get_ident()
    assert niceness >= NICENESS or sys.platform != "linux"
    with pytest.raises(ZeroDivisionError):
        await run_in_worker(10, lambda: 1 // 0)


async def test_memory_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a large text, in the same thread, also where it could not be tokenized."""
    released: list[int] = []
    monkeypatch.setattr(workers, "release_memory", lambda: released.append(threading.get_ident()))
    await run_in_worker(1000, where)
    assert not released
    thread, _ = await run_in_worker(workers._LARGE, where)
    assert released == [thread]
    with pytest.raises(ZeroDivisionError):
        await run_in_worker(workers._LARGE, lambda: 1 // 0)
    assert len(released) == 2


CHAT = ChatPrompt((ChatMessage("user", "Hi"),))
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set ns = namespace(x='x' * 99999) %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
HOSTILE = {
    "endless loop": LOOP,
    "macros that call each other": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(90) }}",
    "text that doubles": DOUBLED,
    "number that doubles": "{% set ns = namespace(x=9) %}"
    "{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "list within lists": "{% set ns = namespace(x=[1]) %}"
    "{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ns.x | tojson }}",
    "repeated text": "{{ 'a' * 10 ** 12 }}",
    "repeated list": "{{ 10 ** 12 * [1] }}",
    "power": "{{ 9 ** 9999999999 }}",
    "percent width": "{{ '%1000000000000d' % 1 }}",
    "percent filter": "{{ '%1000000000000d' | format(1) }}",
    "format width": "{{ '{:1000000000000}'.format(1) }}",
    "center": "{{ 'x' | center(10 ** 12) }}",
    "ljust": "{{ 'x'.ljust(10 ** 12) }}",
    "zfill": "{{ '1'.zfill(10 ** 12) }}",
    "indent": "{{ 'a\nb' | indent(10 ** 12) }}",
    "tojson indent": "{{ [1] | tojson(indent=10 ** 12) }}",
    "replace": "{% set x = 'x' * 99999 %}{{ x.replace('x', x).replace('x', x) }}",
    "join": "{% set x = ['x' * 99999] * 99999 %}{{ x | join }}",
    "lorem ipsum": "{{ lipsum(n=99999999, html=false) }}",
}
"""What bounds of single operators do not reach."""


@pytest.mark.parametrize("template", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_templates(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each refuses its request within a second of processor time, and this process does none of it."""
    monkeypatch.setattr(workers, "SECONDS", 0.5)
    with pytest.raises(RequestError, match="the model's chat template") as refused:
        ChatTemplate(template, {}).render(CHAT)
    assert refused.value.hints
    assert ChatTemplate("{{ messages[0].content }}", {}).render(CHAT) == "Hi"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.x }}",
        "{{ messages.__class__.__base__ }}",
        "{{ strftime_now.__globals__.os }}",
        "{{ ('' | attr('__class__')) }}{{ x.y.z }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}{{ x.y.z }}",
        "{{ ('%s' | attr('format'))('{0.__class__}', 1) }}{{ x.y.z }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.x }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends '/etc/passwd' %}",
    ],
)
def test_ways_out_of_the_sandbox(template: str) -> None:
    """Python's attributes and files are not reached; the request is refused."""
    with pytest.raises(RequestError, match=r"the model's chat template (refuses|fails)"):
        ChatTemplate(template, {}).render(CHAT)


def test_a_template_that_went_too_far_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not rendered again for a time, so that its requests keep no process busy."""
    monkeypatch.setattr(workers, "SECONDS", 0.2)
    template = ChatTemplate(LOOP + "{# rests #}", {})
    for _ in range(2):
        with pytest.raises(RequestError, match=r"takes more than 0.2 s of processor time"):
            template.render(CHAT)
        monkeypatch.setattr(workers, "_pool", None)  # what is asked of it now fails the test


@pytest.mark.parametrize("own", [True, False], ids=["the model's own", "the operator's"])
async def test_other_requests_meanwhile(own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with such a template is served; its chats are refused, and streams of others run while they are.

    So is a template of `--chat-template`, which need not be the operator's own work.
    """
    monkeypatch.setattr(workers, "SECONDS", 60.0)
    folder = shutil.copytree(STORIES, tmp_path / "hostile")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    hostile_template, file = LOOP + f"{{# served, {own} #}}", tmp_path / "template.jinja"
    file.write_text(hostile_template)
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": hostile_template if own else "harmless"})
    )
    models = replace(ModelsConfig.of([str(folder), "lmtool-tiny"]), chat_template=None if own else str(file))
    manager = models_of(ServiceConfig(models), Loader(EngineConfig(threads=1), models=models))
    await manager.info("hostile")
    await manager.info("lmtool-tiny")
    isolated = [getattr(tokenizer_of(manager, name), "isolates_chats", None) for name in ("hostile", "lmtool-tiny")]
    assert isolated == [True, False]  # no process is started for our own

    async def ask(model: str) -> str | None:
        request = GenerateRequest("a", CHAT, SamplingParams(max_tokens=2), model)
        return [output async for output in stream(manager, request)][-1].error

    hostile = asyncio.create_task(ask("hostile"))
    assert await ask("lmtool-tiny") is None
    assert not hostile.done()
    for process in workers._pool._processes:
        process.end()
    assert "takes more than 60 s of processor time" in str(await hostile)
    await manager.close()
