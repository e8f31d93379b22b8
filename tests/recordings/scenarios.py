"""What the recordings show: one function a recording, which talks to a real server while it is recorded."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from tests.recordings.talk import Talk, talk

ONCE = [1, 403, 407, 261, 378]
"""`Once upon a time`, for the stories model."""
GIRL = [1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395]
"""`Once upon a time, there was a little girl named`."""
DOG = [1, 291, 400, 428, 269, 265]
"""`The dog and the`."""
BOS = 1
"""Ends the stories model's stories as well."""
SMILE = [1, 410, 243, 162, 156, 133]
"""A smile of four bytes, each one token."""

Server = Literal["stories", "embedded", "loading", "narrow", "leaving"]
"""`loading`: recorded from before the model is there. `narrow`: four streams a connection, no more. `leaving`: one that
the scenario shuts down. All of these serve the stories model."""


LOGPROBS = "message.output_text.logprobs"
ASKED = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass(frozen=True)
class Stage:
    """Where a scenario takes place."""

    url: str
    """Of the proxy that records."""
    model: str
    leave: Callable[[], Awaitable[object]]
    """Shut the server down; for `leaving` alone."""

    def connect(self) -> Any:
        """A connection, in `async with`."""
        return talk(self.url, self.model)


@dataclass(frozen=True)
class Scenario:
    """A recording to be made."""

    name: str
    title: str
    covers: tuple[str, ...]
    play: Callable[[Stage], Awaitable[None]]
    server: Server = "stories"
    verify: dict[str, object] = field(default_factory=dict)
    packed: bool = False


SCENARIOS: list[Scenario] = []


def scenario(
    title: str, covers: str, *, server: Server = "stories", packed: bool = False, **verify: object
) -> Callable[[Callable[[Stage], Awaitable[None]]], Callable[[Stage], Awaitable[None]]]:
    """Make a recording of a function, named as it is."""

    def add(play: Callable[[Stage], Awaitable[None]]) -> Callable[[Stage], Awaitable[None]]:
        SCENARIOS.append(Scenario(play.__name__, title, tuple(covers.split()), play, server, verify, packed))
        return play

    return add


def alone(
    title: str, covers: str, **options: Any
) -> Callable[[Callable[[Talk], Awaitable[None]]], Callable[[Talk], Awaitable[None]]]:
    """Make a recording of a function that needs one connection."""

    def add(play: Callable[[Talk], Awaitable[None]]) -> Callable[[Talk], Awaitable[None]]:
        async def on_stage(stage: Stage) -> None:
            async with stage.connect() as client:
                await play(client)

        on_stage.__name__ = play.__name__
        scenario(title, covers, **options)(on_stage)
        return play

    return add


@alone("one greedy stream of eight tokens", "TRA-1 TRA-2 FRM-1 FRM-3 FRM-5 FRM-6 GEN-1 GEN-2 STR-1 STR-7 TOK-1 LOG-1")
async def one_greedy_stream(client: Talk) -> None:
    await client.generate(1, ONCE, max_tokens=8)
    await client.ended(1)


@alone("a request of nothing but model, prompt and stream_id", "GEN-3 GEN-4 GEN-6 FRM-10")
async def defaults(client: Talk) -> None:
    await client.generate(1, ONCE)
    await client.ended(1)
    await client.generate(2, ONCE, temperature=None, max_tokens=None, top_logprobs=None, logit_bias=None)
    await client.ended(2)


@alone("a request that names no model gets the only one", "GEN-2")
async def the_only_model(client: Talk) -> None:
    await client.generate(1, DOG, model=..., max_tokens=4)
    await client.ended(1)
    await client.generate(2, DOG, model=None, max_tokens=4)
    await client.ended(2)


@alone("no, one, five alternatives of each token", "GEN-6 TOK-5")
async def alternatives(client: Talk) -> None:
    for stream_id, count in enumerate((0, 1, 5), 1):
        await client.generate(stream_id, GIRL, max_tokens=4, top_logprobs=count)
        await client.ended(stream_id)


@alone("two streams at once", "STR-6 STR-8 FRM-9 GEN-8")
async def two_streams_interleaved(client: Talk) -> None:
    await client.generate(1, ONCE, max_tokens=16)
    await client.generate(2, DOG, max_tokens=12)
    await client.ended(1, 2)


@alone("eight streams at once, each with parameters of its own", "GEN-8 STR-6 STR-8")
async def eight_streams_interleaved(client: Talk) -> None:
    prompts = (ONCE, DOG, GIRL, ONCE[:3])
    for number in range(8):
        await client.generate(
            number,
            prompts[number % 4],
            max_tokens=4 + 2 * number,
            top_logprobs=number % 4,
            repetition_penalty=1.0 + number / 10,
        )
    await client.ended(*range(8))


@alone("sixty-four streams at once", "STR-6 STR-8 FRM-9")
async def sixty_four_streams_interleaved(client: Talk) -> None:
    for number in range(64):
        await client.generate(number, [1, 259 + number * 3, 261], max_tokens=3 + number % 6, top_logprobs=0)
    await client.ended(*range(64))


@alone("streams that join while others run, and leave before them", "STR-8 GEN-8 TOK-2")
async def joins_and_leaves(client: Talk) -> None:
    await client.generate("long", ONCE, max_tokens=40, ignore_eos=True)
    await client.tokens("long", 5)
    await client.generate("first guest", DOG, max_tokens=6)
    await client.tokens("long", 10)
    await client.generate("second guest", GIRL, max_tokens=20)
    await client.ended("first guest")
    await client.generate("third guest", DOG, max_tokens=6)
    await client.ended("long", "second guest", "third guest")


@alone("ids of many kinds, given back as they were", "STR-2")
async def any_stream_id(client: Talk) -> None:
    for stream_id in (0, -7, 1.5, "", "a/é", True, [1, "b"], {"c": None}, 10**17):
        await client.generate(stream_id, DOG, max_tokens=2)
        await client.ended(stream_id)


@alone("an id is free again after its stream's end", "STR-5 STR-7")
async def an_id_again(client: Talk) -> None:
    for times in (1, 2, 3):
        await client.generate(1, DOG, max_tokens=3)
        await client.ended(1, times=times)


@alone("the id of a running stream is refused to another, and the stream goes on", "STR-5 ERR-4")
async def an_id_that_runs(client: Talk) -> None:
    await client.generate(1, ONCE, max_tokens=60, ignore_eos=True)
    await client.tokens(1, 2)
    await client.generate(1, DOG, max_tokens=3)
    await client.messages(1)
    await client.ended(1)


@scenario("two connections use one id", "STR-4")
async def the_same_id_on_two_connections(stage: Stage) -> None:
    async with stage.connect() as one, stage.connect() as other:
        await one.generate(1, ONCE, max_tokens=12)
        await other.generate(1, DOG, max_tokens=12)
        await one.ended(1)
        await other.ended(1)


@alone("+100 allows a few tokens, -100 forbids one", "GEN-5 LOG-2")
async def masks(client: Talk) -> None:
    await client.generate(1, ONCE, max_tokens=3, logit_bias={"317": 100})
    await client.ended(1)
    await client.generate(2, ONCE, max_tokens=3, logit_bias={str(i): 100 for i in (265, 286, 317)}, top_logprobs=4)
    await client.ended(2)
    await client.generate(3, ONCE, max_tokens=3, logit_bias={"432": -100, "317": 2.5}, top_logprobs=3)
    await client.ended(3)


@alone("a mask over the whole vocabulary", "GEN-5 LOG-2")
async def a_mask_over_the_vocabulary(client: Talk) -> None:
    allowed = (265, 286, 317, 410)
    await client.generate(1, ONCE, max_tokens=4, logit_bias={str(i): 0 if i in allowed else -100 for i in range(512)})
    await client.ended(1)


@alone("top_p, top_k, min_p and penalties, each with a seed", "GEN-7 GEN-9 GEN-10")
async def sampling_with_seeds(client: Talk) -> None:
    asked: tuple[dict[str, Any], ...] = (
        {"top_p": 0.8},
        {"top_k": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.5, "frequency_penalty": 0.3},
        {"min_tokens": 6, "ignore_eos": True},
    )
    for number, parameters in enumerate(asked):
        await client.generate(number, ONCE, max_tokens=8, temperature=0.9, seed=7, **parameters)
        await client.ended(number)


@alone("the same seed gives the same tokens, alone and in a crowd", "GEN-10 GEN-8")
async def one_seed_alone_and_in_a_crowd(client: Talk) -> None:
    await client.generate(0, ONCE, max_tokens=10, temperature=1.1, seed=42)
    await client.ended(0)
    for number in (1, 2, 3, 4):
        await client.generate(number, ONCE, max_tokens=10, temperature=1.1, seed=42 if number < 3 else number)
    await client.ended(1, 2, 3, 4)


@alone("streams drawn by chance: checked by their form, and by SCORE", "GEN-4 LOG-3")
async def sampled_without_a_seed(client: Talk) -> None:
    for number in (1, 2, 3):
        await client.generate(number, ONCE, max_tokens=20, temperature=1.0 + number / 4)
    await client.ended(1, 2, 3)


@alone("the three kinds of logprobs", "LOG-4 LOG-5")
async def logprobs_modes(client: Talk) -> None:
    for number, mode in enumerate(("raw", "biased", "processed")):
        await client.generate(
            number,
            ONCE,
            max_tokens=3,
            temperature=0.7,
            seed=1,
            top_k=2,
            logit_bias={"317": 3},
            logprobs_mode=mode,
            top_logprobs=4,
        )
        await client.ended(number)


@alone("texts, an id, and a list of both end a stream", "GEN-11 TOK-2 TOK-4 TXT-3")
async def stop_strings(client: Talk) -> None:
    for number, stop in enumerate((".", [" girl", "."], 421, [" little", 317])):
        await client.generate(number, ONCE, max_tokens=30, stop=stop, text=True)
        await client.ended(number)
    await client.generate(9, ONCE, max_tokens=30, stop_token_ids=[421])
    await client.ended(9)


@alone("the eos token comes once, with reason stop", "TOK-2 TOK-3")
async def end_of_text(client: Talk) -> None:
    await client.generate(1, ONCE, max_tokens=5, logit_bias={str(BOS): 100})
    await client.ended(1)


@alone("max_tokens 0 and an empty scored end without a token", "GEN-12 SCO-4 TOK-4")
async def ends_without_a_token(client: Talk) -> None:
    await client.generate(1, ONCE, max_tokens=0)
    await client.ended(1)
    await client.score(2, ONCE, [])
    await client.ended(2)


@alone("the logprobs of given tokens", "SCO-1 SCO-2 SCO-3 LOG-3")
async def scores(client: Talk) -> None:
    await client.generate(1, ONCE, max_tokens=9)
    await client.ended(1)
    await client.score(2, ONCE, GIRL[5:])
    await client.ended(2)
    await client.score(3, ONCE, GIRL[5:], temperature=1.7, top_k=1, logit_bias={"317": 100})
    await client.ended(3)
    await client.score(4, [], GIRL)
    await client.ended(4)


@alone("scores with alternatives", "SCO-5")
async def scores_with_alternatives(client: Talk) -> None:
    await client.score(1, ONCE, GIRL[5:], top_logprobs=3)
    await client.ended(1)


@alone("scores and generation at once", "STR-1 STR-8 SCO-1")
async def scores_beside_generation(client: Talk) -> None:
    await client.generate(1, DOG, max_tokens=20)
    await client.tokens(1, 3)
    for number in range(2, 8):
        await client.score(number, ONCE[: number - 1], GIRL[number:])
    await client.ended(*range(1, 8))


@alone("MODEL_INFO, with data, without a model, and of an unknown one", "INF-1 INF-2 INF-3 INF-4 ERR-2")
async def model_info(client: Talk) -> None:
    await client.send("MODEL_INFO", stream_id=1, data={"anything": [1, None]})
    await client.messages(1)
    await client.send("MODEL_INFO", stream_id="two", model=...)
    await client.messages(2)
    await client.send("MODEL_INFO", stream_id=3, model="no-such-model")
    await client.messages(3)


@alone("fields with wrong values, and missing ones", "ERR-1 ERR-5")
async def wrong_fields(client: Talk) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"temperature": "hot"},
        {"max_tokens": -1},
        {"max_tokens": 1.5},
        {"top_p": 0},
        {"top_logprobs": 257},
        {"logit_bias": {"x": 1}},
        {"logit_bias": [1]},
        {"prompt": "text and", "messages": []},
        {"prompt": [-1]},
        {"prompt": None},
        {"seed": "s"},
        {"stop": 1.5},
        {"logprobs_mode": "none"},
        {"repetition_penalty": 0},
    )
    for number, fields in enumerate(wrong):
        await client.send("GENERATE", **{"prompt": ONCE, "stream_id": number, **fields})
        await client.ended(number)
    await client.send("SCORE", prompt=ONCE, stream_id="score")
    await client.ended("score")


@alone("an id outside the vocabulary, a prompt too long, an unknown model", "ERR-1 ERR-4 GEN-2")
async def requests_that_fail(client: Talk) -> None:
    await client.generate("well", DOG, max_tokens=40)
    await client.generate("id", [1, 99999], max_tokens=3)
    await client.generate("long", [1] + [261] * 600, max_tokens=3)
    await client.generate("model", ONCE, model="no-such-model")
    await client.score("score", [1], [99999])
    await client.ended("well", "id", "long", "model", "score")


@alone("frames that are no requests", "TRA-3 ERR-2 ERR-3 STR-3 FRM-5")
async def frames_that_cannot_be_read(client: Talk) -> None:
    frames: tuple[str | bytes, ...] = (
        "GENERATE",
        "GENERATE {",
        "GENERATE [1, 2]",
        'GENERATE {"prompt": [1]}',
        'GENERATE {"prompt": [1], "stream_id": null}',
        b"\x00\x01\xff",
        'DANCE {"stream_id": 5}',
        "",
    )
    for count, frame in enumerate(frames, 1):
        await client.frame(frame)
        await client.messages(count)
    await client.generate(1, DOG, max_tokens=2)
    await client.ended(1)


@alone("spaces, line ends and unknown fields do no harm", "FRM-2 FRM-11")
async def harmless_differences(client: Talk) -> None:
    fields = {"model": "stories260K", "prompt": DOG, "max_tokens": 3}
    await client.frame(f"GENERATE   {json.dumps({**fields, 'stream_id': 1})}\n")
    await client.ended(1)
    await client.frame(f"GENERATE {json.dumps({**fields, 'stream_id': 2}, indent=1)}")
    await client.ended(2)
    await client.generate(3, DOG, max_tokens=3, length_penalty=2.0, x_unknown=[1])
    await client.ended(3)


@alone("a client that knows the extensions gets usage, error codes and ignored fields", "EXT-1 EXT-2 EXT-3 EXT-4 EXT-5")
async def extensions(client: Talk) -> None:
    await client.generate(1, DOG, max_tokens=3)
    await client.ended(1)
    await client.send("MODEL_INFO", stream_id=2, lmtp=1)
    await client.messages(1)
    await client.generate(3, GIRL, max_tokens=3, length_penalty=2.0, x_unknown=[1])
    await client.ended(3)
    await client.generate(4, [99999])
    await client.generate(5, [1] + [261] * 600)
    await client.generate(6, ONCE, model="no-such-model")
    await client.generate(7, ONCE, temperature="hot")
    await client.ended(4, 5, 6, 7)


@alone("a running stream is cancelled; cancelling what does not run does nothing", "CAN-1 CAN-2 CAN-3 TOK-4")
async def cancel(client: Talk) -> None:
    await client.generate(1, ONCE, max_tokens=400, ignore_eos=True)
    await client.tokens(1, 4)
    await client.send("CANCEL", stream_id=1, x_unknown=1)
    await client.ended(1)
    await client.send("CANCEL", stream_id=1)
    await client.send("CANCEL", stream_id="never begun", model=...)
    await client.generate(2, DOG, max_tokens=3)
    await client.ended(2)


@scenario("a client vanishes in the middle of its streams, comes back and asks again", "TRA-8 ERR-7 STR-4")
async def disconnect_and_return(stage: Stage) -> None:
    async with stage.connect() as client:
        await client.generate(1, ONCE, max_tokens=400, ignore_eos=True)
        await client.generate(2, DOG, max_tokens=400, ignore_eos=True)
        await client.tokens(1, 6)
        await client.drop()
    async with stage.connect() as client:
        await client.generate(1, ONCE, max_tokens=8)
        await client.ended(1)
        await client.send("MODEL_INFO", stream_id=2)
        await client.messages(1)


@scenario("a client closes in good order while a stream runs", "TRA-8")
async def goodbye_in_the_middle(stage: Stage) -> None:
    async with stage.connect() as client:
        await client.generate(1, ONCE, max_tokens=400, ignore_eos=True)
        await client.tokens(1, 3)


@alone("texts in, texts out", "TXT-1 TXT-3 TXT-4")
async def text_mode(client: Talk) -> None:
    await client.generate(1, "Once upon a time", max_tokens=12)
    await client.ended(1)
    await client.generate(2, ONCE, max_tokens=6, text=True)
    await client.ended(2)
    await client.generate(3, "Once upon a time", max_tokens=6, text=False)
    await client.ended(3)
    await client.score(4, "Once upon a", " time")
    await client.ended(4)


@alone("characters of several bytes come whole", "TXT-3")
async def multibyte_characters(client: Talk) -> None:
    for number, (token, following) in enumerate(((243, 162), (162, 156), (156, 133))):
        await client.generate(
            f"t{number}", SMILE[: 2 + number], max_tokens=2, text=True, logit_bias={str(following): 100}
        )
        await client.ended(f"t{number}")
        await client.score(f"s{number}", [1, 410], SMILE[2:], text=True)
        await client.ended(f"s{number}")
        assert token in SMILE


@scenario("a plain HTTP request is told what listens here", "TRA-5")
async def plain_http(stage: Stage) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(stage.url.replace("ws:", "http:"), headers={"user-agent": "test"})
        assert answer.status_code == 200


@scenario("tokens over every HTTP API, whole and streamed, and a refusal", "", server="embedded")
async def answers_over_http(stage: Stage) -> None:
    wanted: dict[str, dict[str, object]] = {
        "chat/completions": {"messages": ASKED, "n": 2, "max_tokens": 6, "logprobs": True, "top_logprobs": 2},
        "completions": {"prompt": ["Once upon", "The "], "logprobs": 2, "max_tokens": 6},
        "responses": {"input": ASKED, "include": [LOGPROBS], "top_logprobs": 2, "max_output_tokens": 6},
        "messages": {"messages": ASKED, "max_tokens": 6},
    }
    async with httpx.AsyncClient(headers={"user-agent": "test"}, timeout=60) as client:
        for path, fields in wanted.items():
            for stream in (False, True):
                body = {"model": stage.model, **fields, "temperature": 0, "stream": stream}
                answer = await client.post(f"{stage.url.replace('ws:', 'http:')}v1/{path}", json=body)
                assert answer.status_code == 200, answer.text
        refused = {"model": stage.model, "prompt": "Once", "temperature": -1}
        answer = await client.post(f"{stage.url.replace('ws:', 'http:')}v1/completions", json=refused)
        assert answer.status_code == 400


@scenario("a page of another site may not ask over HTTP", "TRA-13")
async def a_page_of_another_site_over_http(stage: Stage) -> None:
    headers = {"origin": "https://example.org", "content-type": "text/plain"}
    async with httpx.AsyncClient() as client:
        asked = stage.url.replace("ws:", "http:") + "v1/completions"
        answer = await client.post(asked, headers=headers, content=b'{"prompt": "Once", "max_tokens": 3}')
        assert answer.status_code == 403


@scenario("a page of another site may not connect", "TRA-6")
async def a_page_of_another_site(stage: Stage) -> None:
    headers = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "origin": "https://example.org",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    async with httpx.AsyncClient() as client:
        answer = await client.get(stage.url.replace("ws:", "http:"), headers=headers)
        assert answer.status_code == 403


@scenario("a frame of four MiB is read; a longer one ends its connection, and no other", "TRA-4", packed=True)
async def a_frame_too_long(stage: Stage) -> None:
    async with stage.connect() as other, stage.connect() as client:
        await other.generate(1, DOG, max_tokens=2)
        await other.ended(1)
        frame = json.dumps({"model": stage.model, "prompt": DOG, "max_tokens": 2, "stream_id": 1, "x": ""})
        room = 4 * 2**20 - len("GENERATE ") - len(frame)
        await client.frame(f"GENERATE {frame[:-2]}{'x' * room}{frame[-2:]}")
        await client.ended(1)
        await client.frame(f"GENERATE {frame[:-2]}{'x' * (room + 1)}{frame[-2:]}")
        await client.closed()
        await other.generate(2, DOG, max_tokens=2)
        await other.ended(2)


@alone("messages, rendered with the model's chat template", "TXT-2 TXT-4 GEN-11", server="embedded")
async def messages(client: Talk) -> None:
    asked = [{"role": "user", "content": "Hello there"}]
    await client.send("GENERATE", messages=asked, stream_id=1, max_tokens=12)
    await client.ended(1)
    await client.send("GENERATE", messages=asked, prompt="Hello", stream_id=2)
    await client.ended(2)
    await client.send("GENERATE", messages=asked, stream_id=3, max_tokens=12, text=False, top_logprobs=3)
    await client.ended(3)


@alone("a load is told to who asks; requests wait for it", "LOAD-1 LOAD-2 INF-5", server="loading")
async def loading_with_progress(client: Talk) -> None:
    await client.send("MODEL_INFO", stream_id="info", lmtp=1, progress=True)
    await client.generate("told", DOG, max_tokens=3, progress=True)
    await client.generate("not told", DOG, max_tokens=3)
    await client.ended("told", "not told")
    await client.progress()
    await client.generate("later", DOG, max_tokens=3, progress=True)
    await client.ended("later")


@alone(
    "more streams than a connection may have",
    "STR-9 ERR-4",
    server="narrow",
    directions=["mock"],
    why="needs a server that allows four streams a connection",
)
async def too_many_streams(client: Talk) -> None:
    for number in range(6):
        await client.generate(number, ONCE, max_tokens=60, ignore_eos=True, lmtp=1, top_logprobs=0)
    await client.ended(*range(6))
    await client.generate(7, DOG, max_tokens=2)
    await client.ended(7)


@scenario(
    "a server shuts down: new streams are refused, running ones end, connections close with 1001",
    "TRA-10",
    server="leaving",
    directions=["mock"],
    why="the server under test would have to shut down",
)
async def shutdown(stage: Stage) -> None:
    async with stage.connect() as client:
        await client.generate(1, ONCE, max_tokens=400, ignore_eos=True, top_logprobs=0)
        await client.tokens(1, 3)
        await stage.leave()
        await client.closed()


@alone("a constraint that a glance can refuse ends its own stream with an error", "GEN-13 ERR-4 ERR-5 EXT-4")
async def constraints_refused(client: Talk) -> None:
    refused = (
        {"regex": 5},
        {"regex": "a{1000000}"},
        {"json": {}, "regex": "a"},
        {"choice": []},
        {"regexp": "a"},
        {"json": "{"},
        {},
    )
    for number, constraint in enumerate(refused):
        await client.generate(number, ONCE, max_tokens=4, constraint=constraint, lmtp=1)
        await client.ended(number)
    await client.generate("free", ONCE, max_tokens=4, constraint=None)
    await client.ended("free")


@alone("a stop text or a stop id cuts what a constraint holds, and that is told", "GEN-11 GEN-13 TOK-2 EXT-2")
async def constraints_cut(client: Talk) -> None:
    held = {"regex": "a little girl( and a dog){2}"}
    await client.generate(1, ONCE, max_tokens=30, constraint=held, text=True, lmtp=1)
    await client.ended(1)
    for number, stop in enumerate((" and", 421), start=2):
        await client.generate(number, ONCE, max_tokens=30, constraint=held, stop=stop, text=True)
        await client.ended(number)


@alone("a priority is an integer; another one ends its own stream with an error", "GEN-14 ERR-4")
async def priorities(client: Talk) -> None:
    for number, priority in enumerate((-1, 2, "high", 2**31)):
        await client.generate(number, ONCE, max_tokens=2, priority=priority)
        await client.ended(number)


@alone("logits processors are named; a name that is not installed ends its own stream with an error", "GEN-15 ERR-4")
async def logits_processors(client: Talk) -> None:
    for number, named in enumerate(([], [{"name": "nobody's", "args": {}}], [{"args": {}}], "nobody's")):
        await client.generate(number, ONCE, max_tokens=2, logits_processors=named, lmtp=1)
        await client.ended(number)
