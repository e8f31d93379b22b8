"""Commands of a conversation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lmtool.core.errors import UsageError
from lmtool.core.types import ChatMessage, ModelInfo
from lmtool.terminal.chat.commands import run_command
from lmtool.terminal.chat.conversation import Conversation, EditPrompt, LoadConversation, SendAgain, UseModel
from lmtool.terminal.chat.options import OutputOptions
from lmtool.terminal.chat.prompt import RequestOptions
from lmtool.terminal.chat.turns import Turn, TurnTree

TEMPLATED = ModelInfo("m", "m", "x", chat_template=True)
PLAIN = ModelInfo("m", "m", "x")


def conversation(info: ModelInfo = TEMPLATED) -> Conversation:
    """Begin one."""
    return Conversation(RequestOptions(), OutputOptions(), info)


@pytest.mark.parametrize("line", ["Hello", "quit smoking", "//etc/hosts is a file", "2 / 3", ""])
def test_prompts_are_no_commands(line: str) -> None:
    """Only lines that begin with one slash, and the bare words quit and exit, are commands."""
    assert run_command(conversation(), line) is None


@pytest.mark.parametrize("line", ["quit", "exit", "/quit", "/q", " /exit "])
def test_leaving(line: str) -> None:
    """All the usual words leave."""
    talk = conversation()
    assert run_command(talk, line) == ""
    assert talk.finished


def test_set() -> None:
    """`/set` keeps a parameter for all prompts, with a blank or `=`; `default` forgets it."""
    talk = conversation()
    assert run_command(talk, "/set temperature 0.7") == "temperature = 0.7"
    assert run_command(talk, "/set max-tokens=5") == "max_tokens = 5"
    assert run_command(talk, "/set") == "temperature = 0.7\nmax_tokens = 5"
    assert talk.requests.sampling(TEMPLATED, {"max_tokens": 9}).temperature == 0.7
    assert run_command(talk, "/set temperature default") == "temperature is back at its default"
    assert dict(talk.requests.parameters) == {"max_tokens": 5}
    assert run_command(conversation(), "/set") == "nothing is set"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temprature 1", "no parameter is called 'temprature'"),
        ("/set temperature hot", "expected a number"),
        ("/set temperature", "needs a value"),
        ("/nonsense", "no command is called /nonsense"),
        ("/heat warm", "no heat mode"),
    ],
)
def test_mistakes_change_nothing(line: str, message: str) -> None:
    """A command that cannot be obeyed says why, and nothing has changed."""
    talk = conversation()
    with pytest.raises(UsageError, match=message):
        run_command(talk, line)
    assert (talk.requests, talk.display, talk.finished) == (RequestOptions(), OutputOptions(), False)


def test_system() -> None:
    """A system text holds from now on; it needs a template."""
    talk = conversation()
    assert run_command(talk, "/system Be brief.") == "system: Be brief."
    assert talk.requests.system == "Be brief."
    assert run_command(talk, "/system") == "no system prompt"
    assert talk.requests.system is None
    with pytest.raises(UsageError, match="template"):
        run_command(conversation(PLAIN), "/system Be brief.")


def test_heat_and_stats() -> None:
    """`/heat` asks for the alternatives its mode needs; `/stats` goes on and off."""
    talk = conversation()
    assert run_command(talk, "/heat") == "heat: prob"
    assert run_command(talk, "/heat entropy") == "heat: entropy"
    assert talk.requests.parameters["top_logprobs"] == 20
    assert run_command(talk, "/heat off") == "no heat"
    assert talk.display.heat is None
    assert [run_command(talk, line) for line in ("/stats", "/stats", "/stats on", "/stats on")] == [
        "stats on",
        "stats off",
        "stats on",
        "stats on",
    ]


def test_markdown() -> None:
    """`/markdown` goes on and off; text is styled by it or by heat."""
    talk = conversation()
    assert run_command(talk, "/heat") == "heat: prob"
    assert run_command(talk, "/markdown") == "markdown on"
    assert (talk.display.markdown, talk.display.heat) == (True, None)
    assert run_command(talk, "/heat") == "heat: prob"
    assert not talk.display.markdown
    assert run_command(talk, "/markdown off") == "markdown off"
    assert talk.display.heat == "prob"


def turn(number: int, prompt: str, answer: str) -> Turn:
    """A turn whose prompt is sent as it is typed."""
    return Turn(number, 0, prompt, prompt, answer, "stop")


def test_memory() -> None:
    """Turns are sent as messages to models that take them, forgotten on demand, dropped from the oldest."""
    talk = conversation()
    for number, prompt, answer in ((1, "a", "b"), (2, "c", ""), (3, "d", "e")):
        talk.remember(turn(number, prompt, answer))
    assert talk.history == [
        *(ChatMessage("user", "a"), ChatMessage("assistant", "b")),
        *(ChatMessage("user", "d"), ChatMessage("assistant", "e")),
    ]
    assert talk.tree.forget_oldest()
    assert talk.history[0].content == "d"
    assert str(run_command(talk, "/reset")).startswith("forgot 3 turns")
    assert talk.history == []
    assert not talk.tree.forget_oldest()
    plain = conversation(PLAIN)
    plain.remember(turn(1, "a", "b"))
    assert plain.history == []
    assert plain.tree.last is not None


def test_retry_continue_edit() -> None:
    """`/retry` and `/continue` take parameters and ask for the last turn, `/edit` for its prompt."""
    talk = conversation()
    for line in ("/retry", "/continue"):
        with pytest.raises(UsageError, match="no prompt"):
            run_command(talk, line)
    assert run_command(talk, "/edit") == EditPrompt(None)
    last = talk.remember(turn(1, "a", "b"))
    assert run_command(talk, "/retry temperature=0.5") == SendAgain(last, {"temperature": 0.5})
    assert run_command(talk, "/continue") == SendAgain(last, {}, "b")
    assert run_command(talk, "/edit") == EditPrompt(last)
    with pytest.raises(UsageError, match="parameters only"):
        run_command(talk, "/retry please")
    talk.remember(turn(2, "c", ""))
    with pytest.raises(UsageError, match="is empty"):
        run_command(talk, "/continue")


def test_branch() -> None:
    """`/branch N` goes on behind an earlier turn, `/branch` shows all of them; a wrong number changes nothing."""
    talk = conversation()
    assert run_command(talk, "/branch") == "there are no turns yet"
    talk.remember(turn(1, "a", "b"))
    talk.remember(turn(2, "c", "d"))
    assert run_command(talk, "/branch 1") == "goes on behind turn 1: a"
    talk.remember(turn(3, "e", "f"))
    assert [message.content for message in talk.history] == ["a", "b", "e", "f"]
    assert str(run_command(talk, "/branch")).split("\n")[:3] == ["· 1  a → b", "    2  c → d", "*   3  e → f"]
    for wrong in ("9", "-1", "x", "\u00b2"):
        with pytest.raises(UsageError, match="no turn has the number"):
            run_command(talk, f"/branch {wrong}")
    assert talk.tree.head == 3
    assert run_command(talk, "/branch 0") == "goes on from the beginning"


def test_files_and_models() -> None:
    """What needs the disk or the server is asked for; `/load` takes a number or a file."""
    talk = conversation()
    assert run_command(talk, "/model") == UseModel(None)
    assert run_command(talk, "/model other") == UseModel("other")
    assert run_command(talk, "/load 2") == LoadConversation(number=2)
    assert run_command(talk, "/load a.json") == LoadConversation(Path("a.json"))
    with pytest.raises(UsageError, match="needs the name of a file"):
        run_command(talk, "/save")
    run_command(talk, "/system Be brief.")
    with pytest.raises(UsageError, match="no place for the system prompt"):
        talk.use_model("plain", PLAIN)
    talk.use_model("other", TEMPLATED)
    assert talk.requests.model == "other"


def test_an_earlier_conversation_brings_its_system_text() -> None:
    """The system text of a conversation that is gone on with holds, unless another one was given."""
    earlier = TurnTree()
    earlier.add(replace(turn(1, "a", "b"), system="Be brief."))
    talk = conversation()
    talk.take(earlier)
    assert talk.requests.system == "Be brief."
    other = Conversation(RequestOptions(system="Be long."), OutputOptions(), TEMPLATED)
    other.take(earlier)
    assert other.requests.system == "Be long."
