"""Commands of a conversation."""

from __future__ import annotations

import pytest

from lmtool.chat.conversation import HELP, Conversation
from lmtool.chat.options import OutputOptions
from lmtool.chat.prompt import RequestOptions
from lmtool.errors import UsageError
from lmtool.types import ChatMessage, ModelInfo

TEMPLATED = ModelInfo("m", "m", "x", chat_template=True)
PLAIN = ModelInfo("m", "m", "x")


def conversation(info: ModelInfo = TEMPLATED) -> Conversation:
    """Begin one."""
    return Conversation(RequestOptions(), OutputOptions(), info)


@pytest.mark.parametrize("line", ["Hello", "quit smoking", "//etc/hosts is a file", "2 / 3", ""])
def test_prompts_are_no_commands(line: str) -> None:
    """Only lines that begin with one slash, and the bare words quit and exit, are commands."""
    assert conversation().command(line) is None


@pytest.mark.parametrize("line", ["quit", "exit", "/quit", "/q", " /exit "])
def test_leaving(line: str) -> None:
    """All the usual words leave."""
    talk = conversation()
    assert talk.command(line) == ""
    assert talk.finished


def test_set() -> None:
    """`/set` keeps a parameter for all prompts, with a blank or `=`; `default` forgets it."""
    talk = conversation()
    assert talk.command("/set temperature 0.7") == "temperature = 0.7"
    assert talk.command("/set max-tokens=5") == "max_tokens = 5"
    assert talk.command("/set") == "temperature = 0.7\nmax_tokens = 5"
    assert talk.requests.sampling(TEMPLATED, {"max_tokens": 9}).temperature == 0.7
    assert talk.command("/set temperature default") == "temperature is back at its default"
    assert dict(talk.requests.parameters) == {"max_tokens": 5}
    assert conversation().command("/set") == "nothing is set"


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
        talk.command(line)
    assert (talk.requests, talk.display, talk.finished) == (RequestOptions(), OutputOptions(), False)


def test_system() -> None:
    """A system text holds from now on; it needs a template."""
    talk = conversation()
    assert talk.command("/system Be brief.") == "system: Be brief."
    assert talk.requests.system == "Be brief."
    assert talk.command("/system") == "no system prompt"
    assert talk.requests.system is None
    with pytest.raises(UsageError, match="template"):
        conversation(PLAIN).command("/system Be brief.")


def test_heat_and_stats() -> None:
    """`/heat` asks for the alternatives its mode needs; `/stats` goes on and off."""
    talk = conversation()
    assert talk.command("/heat") == "heat: prob"
    assert talk.command("/heat entropy") == "heat: entropy"
    assert talk.requests.parameters["top_logprobs"] == 20
    assert talk.command("/heat off") == "no heat"
    assert talk.display.heat is None
    assert [talk.command(line) for line in ("/stats", "/stats", "/stats on", "/stats on")] == [
        "stats on",
        "stats off",
        "stats on",
        "stats on",
    ]


def test_memory() -> None:
    """Turns are kept for models that are sent messages, forgotten on demand, and dropped one by one from the oldest."""
    talk = conversation()
    talk.remember("a", "b")
    talk.remember("c", "")
    talk.remember("d", "e")
    assert talk.history == [
        *(ChatMessage("user", "a"), ChatMessage("assistant", "b")),
        *(ChatMessage("user", "d"), ChatMessage("assistant", "e")),
    ]
    assert talk.forget_oldest()
    assert talk.history[0].content == "d"
    assert talk.command("/reset") == "forgot 1 turn"
    assert not talk.forget_oldest()
    plain = conversation(PLAIN)
    plain.remember("a", "b")
    assert plain.history == []


def test_help_names_every_command() -> None:
    """`/help` names what can be typed."""
    assert conversation().command("/help") == HELP
    for word in ("/set", "/system", "/heat", "/stats", "/reset", "/quit", "Ctrl-C"):
        assert word in HELP
