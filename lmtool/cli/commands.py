"""The tree of commands: names, summaries, help panels; a command's module is imported when it is called."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Its summary stands here, so that the list of commands needs no import."""

    name: str
    module: str
    """Below `lmtool.cli`."""
    summary: str
    panel: str = ""
    """Heading in the help."""
    function: str = ""
    """The function in `module`; by default named as the command."""
    hidden: bool = False
    examples: tuple[str, ...] = ()
    """Command lines for its help; those of a hidden command are its other name's."""

    def load(self) -> Callable[..., Any]:
        """Import the function."""
        module = importlib.import_module(f"lmtool.cli.{self.module}")
        function: Callable[..., Any] = getattr(module, self.function or self.name)
        return function


@dataclass(frozen=True, slots=True)
class Group:
    """Commands under a common name."""

    name: str
    summary: str
    commands: tuple[Command, ...]
    panel: str = ""


TREE: tuple[Command | Group, ...] = (
    Command(
        "serve",
        "serve",
        "Serve models over LMTP and HTTP.",
        "Run",
        examples=(
            "lmtool serve",
            "lmtool serve Qwen/Qwen3-0.6B --port 8081",
            "lmtool serve ./my-model --api-keys keys.toml --host 0.0.0.0",
        ),
    ),
    Command(
        "balance",
        "balance",
        "Balance the load of many servers behind one address.",
        "Run",
        examples=("lmtool balance :8081 :8082",),
    ),
    Command(
        "gateway",
        "gateway",
        "Serve pools of providers: strategies, fallback, one API.",
        "Run",
        examples=("lmtool gateway --config pools.yaml", "lmtool gateway --config pools.yaml --check"),
    ),
    Command(
        "pools",
        "pools",
        "Show a gateway's pools: models, health, counts, costs.",
        "Ask",
        examples=("lmtool pools -e http://127.0.0.1:9099 --watch",),
    ),
    Command(
        "chat",
        "chat",
        "Chat with a model: one answer, or a conversation.",
        "Ask",
        examples=(
            "lmtool chat",
            'lmtool chat "Hello there max_tokens=5"',
            'lmtool chat -t 0.9 --seed 1 --heat "Tell me a story about a fox."',
            'git diff | lmtool chat "Describe this change:"',
        ),
    ),
    Command(
        "history",
        "history",
        "List the conversations that are kept; remove them.",
        "Ask",
        examples=("lmtool history", "lmtool history --clear"),
    ),
    Command(
        "score",
        "score",
        "Compute logprob, probability and perplexity of texts.",
        "Ask",
        examples=('lmtool score "The capital of France is" " Paris" " Rome"', 'lmtool score --heat "Once upon a time"'),
    ),
    Command(
        "info",
        "info",
        "Describe a server's model and protocol.",
        "Ask",
        examples=("lmtool info", "lmtool info -e ws://10.0.0.5:8080/ --json"),
    ),
    Command(
        "tokenize",
        "tokenize",
        "Show the tokens of a text: ids, texts, bytes.",
        "Ask",
        examples=('lmtool tokenize "Hello there"', "lmtool tokenize --decode 542 522 262"),
    ),
    Group(
        "evergreen",
        "Sessions of nodes and actions: chat, run a script, list actions.",
        (
            Command(
                "chat",
                "evergreen.chat",
                "Chat in a session that sends only what is new.",
                examples=("lmtool evergreen chat",),
            ),
            Command(
                "run",
                "evergreen.run",
                "Send messages from a file; print the answers.",
                examples=("lmtool evergreen run messages.jsonl",),
            ),
            Command(
                "actions",
                "evergreen.actions",
                "List the actions that a server offers.",
                examples=("lmtool evergreen actions --json",),
            ),
            Command(
                "proto",
                "evergreen.proto",
                "Print the protocol's messages as a .proto file.",
                examples=("lmtool evergreen proto > evergreen.proto",),
            ),
        ),
        "Ask",
    ),
    Group(
        "trace",
        "Recorded conversations: record, replay, compare, edit.",
        (
            Command(
                "record",
                "trace.record",
                "Record the traffic between clients and a server.",
                examples=(
                    "lmtool trace record --to ws://127.0.0.1:8080/ -O talk.lmtp.jsonl",
                    "lmtool trace record --to http://127.0.0.1:8000/v1 --inspect",
                ),
            ),
            Command(
                "serve",
                "trace.serve",
                "Answer requests as recorded: a mock server.",
                examples=(
                    "lmtool trace serve talk.lmtp.jsonl",
                    "lmtool trace serve talk.lmtp.jsonl --port 0 --speed max",
                ),
            ),
            Command(
                "drive",
                "trace.drive",
                "Send a recording to a server; compare the answers.",
                examples=("lmtool trace drive talk.lmtp.jsonl --to ws://127.0.0.1:8080/",),
            ),
            Command(
                "verify",
                "trace.verify",
                "Check recordings against our client and a server.",
                examples=("lmtool trace verify recordings/ --serve lmtool-tiny",),
            ),
            Command(
                "show",
                "trace.show",
                "Print a trace: one line per token or other event.",
                examples=(
                    "lmtool trace show talk.lmtp.jsonl",
                    "lmtool trace show talk.lmtp.jsonl --filter 'sid:3 p<.1'",
                ),
            ),
            Command(
                "stats",
                "trace.stats",
                "Print token counts, speeds, and how each stream ended.",
                examples=("lmtool trace stats talk.lmtp.jsonl",),
            ),
            Command(
                "diff",
                "trace.diff",
                "Compare two traces stream by stream.",
                examples=("lmtool trace diff before.lmtp.jsonl after.lmtp.jsonl",),
            ),
            Command(
                "cut",
                "trace.edit",
                "Write the part of a trace between two times.",
                examples=("lmtool trace cut talk.lmtp.jsonl --from 2 --to 5 -O part.lmtp.jsonl",),
            ),
            Command(
                "merge",
                "trace.edit",
                "Write the events of several traces in order of time.",
                examples=("lmtool trace merge one.lmtp.jsonl two.lmtp.jsonl -O both.lmtp.jsonl",),
            ),
            Command(
                "redact",
                "trace.edit",
                "Write a copy without prompts, headers or texts.",
                examples=("lmtool trace redact talk.lmtp.jsonl -O shared.lmtp.jsonl",),
            ),
            Command(
                "export",
                "trace.export",
                "Write streams as a page or picture to share, or an asciicast.",
                examples=(
                    "lmtool trace export talk.lmtp.jsonl -O talk.html",
                    "lmtool trace export before.lmtp.jsonl after.lmtp.jsonl -O compared.svg",
                ),
            ),
            Command(
                "convert",
                "trace.convert",
                "Write a trace as CSV, Markdown, asciicast, HAR or wire log.",
                examples=("lmtool trace convert talk.lmtp.jsonl --to markdown",),
            ),
        ),
        "Traces",
    ),
    Group(
        "cache",
        "What prompts have in common, and why they are computed again.",
        (
            Command(
                "why",
                "cache",
                "Explain cached and computed prompts, request by request.",
                examples=("lmtool cache why agent.lmtp.jsonl",),
            ),
        ),
        "Traces",
    ),
    Group(
        "conformance",
        "The LMTP specification as tests, for any server and any client.",
        (
            Command(
                "server",
                "conformance.server",
                "Test a server against each rule of the specification.",
                examples=("lmtool conformance server ws://127.0.0.1:8080/",),
            ),
            Command(
                "client",
                "conformance.client",
                "Run a client against a scripted server.",
                examples=("lmtool conformance client -- ./my-client {url}",),
            ),
        ),
        "Traces",
    ),
    Command(
        "audit",
        "audit",
        "Check that a server's logprobs are true.",
        "Traces",
        examples=("lmtool audit http://127.0.0.1:8000/v1",),
    ),
    Command("record", "trace.record", "The same as `lmtool trace record`.", hidden=True),
    Command("replay", "trace.serve", "The same as `lmtool trace serve`.", function="serve", hidden=True),
    Command(
        "inspect",
        "inspect",
        "Watch streams, probabilities, frames and time: live, or a trace.",
        "Look",
        examples=(
            "lmtool inspect",
            "lmtool inspect talk.lmtp.jsonl",
            "lmtool inspect --proxy 127.0.0.1:8081 --to http://127.0.0.1:8000/v1",
        ),
    ),
    Command(
        "tour",
        "tour",
        "Learn the inspector in two minutes, by doing.",
        "Look",
        examples=("lmtool tour", "lmtool tour --restart"),
    ),
    Command("tui", "inspect", "The same as `lmtool inspect`.", function="inspect", hidden=True),
    Group(
        "bench",
        "Measure engines, kernels, GPUs, servers, gateways, the inspector.",
        (
            Command(
                "engine",
                "bench.engine",
                "Measure our engine beside others on the same weights.",
                examples=("lmtool bench engine",),
            ),
            Command(
                "kernels",
                "bench.kernels",
                "Measure matrix products on this CPU, without a model.",
                examples=("lmtool bench kernels --formats bfloat16,int4",),
            ),
            Command(
                "host",
                "bench.host",
                "Measure the engine's own time a step, without a model.",
                examples=("lmtool bench host --streams 64 --sampling greedy",),
            ),
            Command(
                "gpu",
                "bench.gpu",
                "Test and measure lmtool on a GPU; all figures in one file.",
                examples=("lmtool bench gpu --json before.json",),
            ),
            Command(
                "serve",
                "bench.serve",
                "Load a server: latencies, throughput, goodput.",
                examples=("lmtool bench serve --concurrency 1,8 --save before.json",),
            ),
            Command(
                "soak",
                "bench.soak",
                "Soak a server in faults and hostile frames; 1 if it breaks.",
                examples=("lmtool bench soak ws://127.0.0.1:8080/",),
            ),
            Command(
                "gateway",
                "bench.gateway",
                "Measure the gateway beside a bare forwarder and LiteLLM.",
                examples=("lmtool bench gateway --requests 200",),
            ),
            Command(
                "inspect",
                "bench.inspect",
                "Load the inspector: key delay, CPU, opening a long trace.",
                examples=("lmtool bench inspect --seconds 5",),
            ),
        ),
        "Look",
    ),
    Command(
        "docs",
        "docs",
        "Read the manual: one page, or the list of pages.",
        "Setup",
        examples=("lmtool docs", "lmtool docs serving"),
    ),
    Command(
        "models",
        "models",
        "List the available models: served, embedded, downloaded.",
        "Setup",
        examples=("lmtool models", "lmtool models --load Qwen/Qwen3-0.6B"),
    ),
    Command(
        "doctor",
        "doctor",
        "Check what serving and chatting need; 1 if something is broken.",
        "Setup",
        examples=("lmtool doctor",),
    ),
    Group(
        "config",
        "Show effective settings and their origins.",
        (
            Command(
                "show",
                "config",
                "Print the settings as TOML: what is set where, and defaults.",
                examples=("lmtool config show chat", "lmtool config show > lmtool.toml"),
            ),
            Command(
                "path",
                "config",
                "Print the settings files that are read, strongest first.",
                examples=("lmtool config path",),
            ),
        ),
        "Setup",
    ),
)
"""In the order of the help."""


def find(name: str) -> Command | Group | None:
    """The command or group of this name at the top of the tree, or None."""
    return next((entry for entry in TREE if entry.name == name), None)
