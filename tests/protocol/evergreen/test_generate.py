"""GENERATE over the embedded model: answers, what is asked for beside them, conversations, early start."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from lmtool.protocol.evergreen.actions import ActionType, Port
from lmtool.protocol.evergreen.connection import Connection
from lmtool.protocol.evergreen.menu import menu
from lmtool.protocol.evergreen.messages import ChunkMetadata
from lmtool.protocol.evergreen.nodes import Reference
from lmtool.protocol.evergreen.prompts import TOKENS
from lmtool.protocol.evergreen.references import AllowedReferences
from lmtool.protocol.evergreen.status import Abort, Status
from tests.protocol.evergreen.harness import action
from tests.protocol.evergreen.in_process import in_process
from tests.protocol.evergreen.models import Only, session, struct, texts
from tests.protocol.lmtp.harness import until
from tests.scripted_model import ScriptedModel


async def refusal(model: Any, script: Callable[[Connection], Awaitable[object]], **options: Any) -> Abort:
    """How a session ends that does this."""
    with pytest.raises(Abort) as caught:
        await spoken(model, script, options)
    return caught.value


async def spoken(model, script, options):
    async with session(model, **options) as client:
        await script(client)


QUESTION = "What is the capital of France?"
OVER = "the deadline of 0.05 s is over; send the request again with a longer one"
STORY = "Once upon a time there was a little girl named Lily. She liked to play in the garden with her dog. " * 4


async def test_a_prompt_and_its_answer(tiny):
    """`prompt` and `response`, or `text` and `text`; what was not asked for is not made (rule 29)."""
    async with session(tiny) as client:
        first = await texts(
            await client.invoke("GENERATE", {"prompt": "Once upon a"}, ["response"], [struct(max_tokens=3)])
        )
        other = await texts(
            await client.invoke("GENERATE", {"text": "Once upon a"}, ["text"], [struct(max_tokens=3.0)])
        )
    assert first["response"] == other["text"]
    assert first["response"].startswith(" time,")


async def test_what_is_asked_for_beside_it(tiny):
    """Counts and the reason of the end, exact ids, logprobs of each; a wrong action is no failure for `status`."""
    outputs = ["response", "usage", "tokens", "logprobs", "status"]
    config = [struct(max_tokens=4, top_logprobs=2)]
    async with session(tiny) as client:
        made = await texts(await client.invoke("GENERATE", {"prompt": "Once upon a"}, outputs, config))
    assert tiny.tokenizer().decode(made["tokens"]) == made["response"]
    assert [entry["token"] for entry in made["logprobs"]] == made["tokens"]
    assert all(len(entry["top_logprobs"]) >= 2 and entry["logprob"] <= 0 for entry in made["logprobs"])
    assert made["usage"]["completion_tokens"] == 4
    assert (made["usage"]["finish_reason"], made["usage"]["model"]) == ("length", "lmtool-tiny")
    assert made["status"] == {"code": "OK", "message": ""}


async def test_its_end_is_logged(tiny):
    """By the finish reason that `usage` has, also of a score; what has no stream ends with `stop`."""
    logged = []
    server = Connection(menu(tiny, tiny, ()), log=logged.append)
    async with in_process(server, Connection()) as client:
        for name, inputs, outputs, config in (
            ("GENERATE", {"prompt": "Once upon a"}, ["response", "usage"], struct(max_tokens=2)),
            ("GENERATE", {"prompt": "Once upon a"}, ["response", "usage"], struct(max_tokens=9, stop=[","])),
            ("SCORE", {"scored": "Once"}, ["score"], struct()),
            ("TOKENIZE", {"prompt": "Once"}, ["tokens"], struct()),
        ):
            made = await texts(await client.invoke(name, inputs, outputs, [config]))
            await until(lambda: logged)
            told = made["usage"]["finish_reason"] if "usage" in made else "stop"
            assert (logged.pop().end, told) == (told, "length" if config == struct(max_tokens=2) else "stop")


async def test_an_answer_is_a_text_of_the_assistant(tiny):
    """Metadata of the response; an answer of no tokens is an empty text, which is a value all the same (rule 12)."""
    async with session(tiny) as client:
        node = (await client.invoke("GENERATE", {"prompt": "Once"}, ["response"], [struct(max_tokens=0)]))["response"]
        assert await node.leaves() == [(ChunkMetadata("text/plain", "assistant"), b"")]


async def test_constraints(tiny):
    """What the config demands of the answer holds."""
    config = [struct(structured_outputs={"choice": ["a little dog"]}), struct(stop="dog")]
    async with session(tiny) as client:
        made = await texts(await client.invoke("GENERATE", {"prompt": "Once"}, ["response", "usage"], config))
    assert made["response"] == "a little "
    assert (made["usage"]["finish_reason"], made["usage"]["stopped_by"]) == ("stop", "dog")
    assert "cut at the stop string" in made["usage"]["warnings"][0]


@pytest.mark.parametrize(
    ("call", "status", "sentence"),
    [
        (action("GENERATE", {"prompt": "p"}, {}, configs=(struct(top_p=2),)), Status.INVALID_ARGUMENT, "top_p is 2"),
        (action("GENERATE", {}, {}), Status.INVALID_ARGUMENT, "'prompt'"),
        (action("GENERATE", {"prompt": "p"}, {"image": "i"}), Status.INVALID_ARGUMENT, "no output 'image'"),
        (action("SCORE", {"scored": "p"}, {}, configs=(struct(nothing=1),)), Status.INVALID_ARGUMENT, "'nothing'"),
        (action("SET_TTL", {"node": "p"}, {}), Status.INVALID_ARGUMENT, "seconds is"),
        (action("CANCEL", {"node": "p"}, {}), Status.NOT_FOUND, "no running action"),
        (action("DROP", {"node": "q"}, {}), Status.NOT_FOUND, "no node 'q'"),
        (action("FLY", {}, {}), Status.UNIMPLEMENTED, "GENERATE"),
    ],
)
async def test_what_cannot_be_done(tiny, call, status, sentence):
    """Aborts the session with its status and a sentence (rules 31, 33)."""

    async def script(client):
        await client.output("p").put("Once")
        client.start(call)
        await client.node("never").completed()

    refused = await refusal(tiny, script)
    assert refused.status is status
    assert sentence in refused.sentence


async def test_unknown_models(tiny):
    """NOT_FOUND, with what there is (rule 32)."""

    async def script(client):
        await (await client.invoke("GENERATE", {"prompt": "a"}, ["response"], target="gpt-9"))["response"].text()

    refused = await refusal(tiny, script)
    assert refused.status is Status.NOT_FOUND
    assert refused.sentence == "model 'gpt-9' is not served here; served here: lmtool-tiny"


async def test_a_prompt_beyond_the_context(tiny):
    """Ends the action with the model's own sentence; with `status`, nothing else."""
    async with session(tiny) as client:
        nodes = await client.invoke("GENERATE", {"prompt": STORY * 9}, ["response", "status"])
        assert (await texts({"status": nodes["status"]}))["status"]["code"] == "INVALID_ARGUMENT"
        assert await nodes["response"].value() == b""
        again = await client.invoke("GENERATE", {"prompt": "Once"}, ["response"], [struct(max_tokens=1)])
        assert await again["response"].text()


async def converse(client, first, config):
    """A question under the node `q`, its answer under `a` with its ids under `t`; the counts."""
    asked = client.start(
        action("GENERATE", {"prompt": "p1"}, {"response": "a", "tokens": "t", "usage": "u"}, configs=(config,))
    )
    client.output("p1").add("q")
    client.close_node("p1")
    await client.output("q").put(first, role="user")
    return await texts(asked)


async def follow(client, *children, config):
    """The counts and the answer of a second turn with these children."""
    root = client.output()
    root.add(*children)
    root.close()
    await client.output(children[-1]).put("And of Spain?", role="user")
    nodes = await client.invoke("GENERATE", {"prompt": client.node(root.id)}, ["response", "usage"], [config])
    return await texts(nodes)


async def test_conversations(tiny):
    """Roles make turns under the chat template; the first answer is the model's own chat answer."""
    async with session(tiny) as client:
        made = await converse(client, QUESTION, struct(max_tokens=30))
    assert "Paris" in made["response"]


async def test_an_answer_used_again(tiny):
    """Used again or sent again it is the same prompt (rules 7, 16, 30): only what is new was computed."""
    config = struct(max_tokens=8)
    async with session(tiny) as client:
        made = await converse(client, STORY, config)
        again = await follow(client, "q", "a", "q2", config=config)
    async with session(tiny) as client:
        await client.output("q").put(STORY, role="user")
        await client.output("b").put(made["response"], role="assistant")
        sent = await follow(client, "q", "b", "q3", config=config)
    assert again["response"] == sent["response"]
    assert again["usage"]["prompt_tokens"] == sent["usage"]["prompt_tokens"]
    assert sent["usage"]["cached_tokens"] >= again["usage"]["cached_tokens"] >= 64


async def test_exact_ids(tiny):
    """The `tokens` of an answer in place of its text: the very ids are in the next prompt, without the end token."""
    config = struct(max_tokens=20)
    async with session(tiny) as client:
        made = await converse(client, QUESTION, config)
        by_text = await follow(client, "q", "a", "q2", config=config)
        by_ids = await follow(client, "q", "t", "q3", config=config)
    prompt = tiny.requests[-1].prompt
    assert prompt.messages[1].tokens == tuple(made["tokens"])
    assert by_ids["response"] == by_text["response"]
    assert by_ids["usage"]["prompt_tokens"] == by_text["usage"]["prompt_tokens"]
    assert not set(made["tokens"]) & set((await tiny.info()).eos_token_ids)


async def test_early_start(tiny):
    """While the end of a prompt is on its way, its beginning is computed behind all others, and is not again."""
    async with session(tiny) as client:
        nodes = client.start(action("GENERATE", {"prompt": "p"}, {"usage": "u"}, configs=(struct(max_tokens=1),)))
        client.output("p").add("a", "b")
        client.close_node("p")
        before, ends = len(tiny.requests), tiny.ends
        await client.output("a").put("Early. " + STORY)
        while tiny.ends == ends:
            await asyncio.sleep(0.01)
        ahead = tiny.requests[before]
        assert ahead.prefill_only
        await client.output("b").put("The end")
        made = await texts(nodes)
    whole = tuple(tiny.tokenizer().encode("Early. " + STORY + "The end"))
    assert tiny.requests[-1].prompt == whole
    assert whole[: len(ahead.prompt)] == ahead.prompt
    assert made["usage"]["prompt_tokens"] == len(whole)
    assert made["usage"]["cached_tokens"] >= len(ahead.prompt) - 64 >= 32


async def test_nothing_is_computed_ahead_of_a_whole_prompt(tiny):
    """A prompt that is here when its action comes is one request."""
    before = len(tiny.requests)
    async with session(tiny) as client:
        await client.output("p").put(STORY)
        nodes = client.start(action("GENERATE", {"prompt": "p"}, {"response": "r"}, configs=(struct(max_tokens=1),)))
        await nodes["response"].completed()
    assert len(tiny.requests) == before + 1


async def test_score_and_tokenize(tiny):
    """The probability of a text after a prompt, and the ids of a prompt."""
    async with session(tiny) as client:
        scored = await texts(
            await client.invoke("SCORE", {"prompt": "Once upon a", "scored": " time,"}, ["score", "logprobs"])
        )
        ids = await texts(await client.invoke("TOKENIZE", {"prompt": "Once upon a time"}, ["tokens", "texts"]))
        encode = tiny.tokenizer().encode
        said = encode("Once upon a time,")[len(encode("Once upon a")) :]
        by_ids = client.output()
        await by_ids.put(json.dumps(said).encode(), TOKENS)
        again = await texts(
            await client.invoke("SCORE", {"prompt": "Once upon a", "scored": client.node(by_ids.id)}, ["score"])
        )
    assert ids["tokens"] == encode("Once upon a time")
    assert "".join(ids["texts"]) == "Once upon a time"
    assert [entry["token"] for entry in scored["logprobs"]] == said
    assert scored["score"]["logprob"] == pytest.approx(sum(entry["logprob"] for entry in scored["logprobs"]))
    assert again["score"] == scored["score"]
    assert scored["score"]["perplexity"] > 1


async def test_the_menu(tiny):
    """LIST_ACTIONS has every action's schema, those that were brought along too."""

    async def nothing(call):
        """Do nothing."""

    async with session(tiny, ActionType("NOTHING", (Port("in", required=True),), (), nothing)) as client:
        (listed,) = (await texts(await client.invoke("LIST_ACTIONS", {}, ["actions"]))).values()
    named = {each["name"]: each for each in listed}
    assert list(named) == ["GENERATE", "SCORE", "TOKENIZE", "LIST_ACTIONS", "CANCEL", "DROP", "SET_TTL", "NOTHING"]
    assert named["GENERATE"]["inputs"][0]["aliases"] == ["text"]
    assert named["NOTHING"]["inputs"] == [{"name": "in", "required": True}]
    assert named["NOTHING"]["outputs"][-1]["name"] == "status"


async def test_cancel(tiny):
    """CANCEL closes the outputs of a running answer; the model stops, and the session goes on."""
    config = struct(max_tokens=400, ignore_eos=True)
    async with session(tiny) as client:
        nodes = await client.invoke("GENERATE", {"prompt": "Once"}, ["response"], [config])
        async for one in nodes["response"]:
            async for _ in one:
                break
            break
        client.start(action("CANCEL", {"node": nodes["response"].id}, {}))
        await nodes["response"].completed()
        assert len(await nodes["response"].text()) < 800
        assert await (await client.invoke("GENERATE", {"prompt": "a"}, ["response"], [struct(max_tokens=1)]))[
            "response"
        ].text()


async def test_cancel_of_what_has_ended(tiny):
    """An answer may end while CANCEL is on its way: nothing is done, and the session goes on."""
    async with session(tiny) as client:
        nodes = await client.invoke("GENERATE", {"prompt": "Once"}, ["response"], [struct(max_tokens=1)])
        assert await nodes["response"].text()
        client.start(action("CANCEL", {"node": nodes["response"].id}, {}))
        again = await client.invoke("GENERATE", {"prompt": "a"}, ["response"], [struct(max_tokens=1)])
        assert await again["response"].text()


async def test_a_deadline(tiny):
    """What is not done by then fails behind what it has written, and leaves the model; the session goes on."""
    config = [struct(max_tokens=400, ignore_eos=True, deadline=0.05)]
    asked, ended = len(tiny.requests), tiny.ends
    async with session(tiny) as client:
        made = await texts(await client.invoke("GENERATE", {"prompt": "Once"}, ["status"], config))
        assert made["status"] == {"code": "DEADLINE_EXCEEDED", "message": OVER}
        assert (len(tiny.requests) - asked, tiny.ends - ended) == (1, 1)
        in_time = [struct(max_tokens=2, deadline=60)]
        made = await texts(await client.invoke("GENERATE", {"prompt": "Once"}, ["response", "status"], in_time))
        assert made["status"]["code"] == "OK"


@pytest.mark.parametrize(("name", "given"), [("GENERATE", "prompt"), ("SCORE", "scored")])
async def test_a_deadline_while_inputs_are_on_their_way(tiny, name, given):
    """It counts from the action's arrival; nothing is asked of the model then."""
    asked = len(tiny.requests)
    async with session(tiny) as client:
        open_input = client.output()
        await open_input.write("Once")
        nodes = await client.invoke(name, {given: client.node(open_input.id)}, ["status"], [struct(deadline=0.05)])
        assert (await texts(nodes))["status"] == {"code": "DEADLINE_EXCEEDED", "message": OVER}
    assert len(tiny.requests) == asked


async def test_what_is_left_of_a_deadline():
    """The model's time is what the inputs have left."""
    model = ScriptedModel(manual=True)
    async with session(model) as client:
        later = client.output()
        await later.write("a")
        config = [struct(deadline=1)]
        nodes = await client.invoke("SCORE", {"scored": client.node(later.id)}, ["status"], config)
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(0.9)
        later.close()
        await until(lambda: model.cancelled)
        assert asyncio.get_running_loop().time() - began < 1.8
        model.step()
        assert (await texts(nodes))["status"]["code"] == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize(("name", "config"), [("DROP", []), ("SET_TTL", [struct(seconds=0)])])
async def test_drop_and_time_to_live(tiny, name, config):
    """A node that was dropped, or whose time is over, cannot be used any more: NOT_FOUND."""

    async def script(client):
        await client.output("a").put("Once")
        done = await client.invoke(name, {"node": client.node("a")}, ["status"], config)
        assert (await texts(done))["status"]["code"] == "OK"
        nodes = await client.invoke("GENERATE", {"prompt": client.node("a")}, ["status"])
        await nodes["status"].completed()

    refused = await refusal(tiny, script)
    assert (refused.status, refused.message) == (Status.NOT_FOUND, "node 'a' was dropped")


@pytest.mark.parametrize(("mimetype", "code"), [("text/plain", "OK"), ("video/mp4", "INVALID_ARGUMENT")])
async def test_the_example_with_references(tiny, tmp_path, mimetype, code):
    """A leaf of files and inline data is all of it in order; a video is refused by its mime type (rule 37)."""
    (tmp_path / "part1").write_text("A little girl ")
    (tmp_path / "part2").write_text("and a dog.")
    references = AllowedReferences({tmp_path: tmp_path})
    outputs = {"tokens": "t", "status": "s"}
    async with session(tiny, references=references) as client:
        nodes = client.start(action("TOKENIZE", {"prompt": "prompt_1"}, outputs))
        client.output("prompt_1").add("question_1", "video_1")
        client.close_node("prompt_1")
        await client.output("question_1").put("Write a summary of this video: ")
        client.write("video_1", Reference(f"file://{tmp_path}/part1"), ChunkMetadata(mimetype))
        client.write("video_1", b"... ")
        client.write("video_1", Reference(f"file://{tmp_path}/part2"), final=True)
        status = (await texts({"status": nodes["status"]}))["status"]
        assert status["code"] == code
        if code == "OK":
            whole = "Write a summary of this video: A little girl ... and a dog."
            assert (await texts({"tokens": nodes["tokens"]}))["tokens"] == tiny.tokenizer().encode(whole)
        else:
            assert "'video/mp4'" in status["message"]


async def test_no_reference_by_default(tiny, tmp_path):
    """Nothing is read, and the session ends at once (rules 35, 36)."""
    (tmp_path / "secret").write_text("secret")

    async def script(client):
        client.write("a", Reference(f"file://{tmp_path}/secret"), ChunkMetadata("text/plain"), final=True)
        await client.node("never").completed()

    refused = await refusal(tiny, script)
    assert "not accepted here" in refused.sentence
    assert "secret" not in refused.sentence


@pytest.fixture
def llama(tmp_path):
    """A random Llama with a chat template of one special id a turn, computed by the kernels in C."""
    from lmtool.inference.engine.config import EngineConfig
    from lmtool.measure.bench.peers.maker_peer import Peer
    from lmtool.serving.composition import Loader
    from lmtool.serving.config import ModelsConfig

    folder = str(tmp_path / "llama")
    Peer({}).make("llama-tiny", folder, 0)
    (tmp_path / "template").write_text(
        "{% for m in messages %}<s> {{ m.content }} </s>{% endfor %}{% if add_generation_prompt %}<s> w9 {% endif %}"
    )
    models = ModelsConfig(folder, chat_template=str(tmp_path / "template"))
    model = Loader(EngineConfig(device="cpu", threads=1), models=models).load(folder, lambda _: None)
    yield Only(model, "llama")
    model.close()


@pytest.mark.parametrize("answer", ["a", "t"])
async def test_nothing_is_computed_twice(llama, answer):
    """The second turn of a long conversation has more than 0.95 of what was said from the cache, by text or by ids."""
    said = " ".join(f"w{10 + number * 37 % 500}" for number in range(800))
    config = struct(max_tokens=20, ignore_eos=True)
    async with session(llama) as client:
        first = (await converse(client, said, config))["usage"]
        again = (await follow(client, "q", answer, "q2", config=config))["usage"]
    assert again["cached_tokens"] > 0.95 * (first["prompt_tokens"] + first["completion_tokens"])


async def test_a_session_is_one_client():
    """Streams of a session share a sink, so that clients are served in turn, not actions; each reads its own."""
    model = ScriptedModel()
    sinks = []
    submit = model.submit
    model.submit = lambda request, sink: (sinks.append(sink), submit(request, sink))[1]
    async with session(model) as one, session(model) as other:
        nodes = [
            (await client.invoke("SCORE", {"scored": text}, ["score"]))["score"]
            for client, text in ((one, "ab"), (one, "abc"), (other, "a"))
        ]
        counts = [json.loads(await node.value())["tokens"] for node in nodes]
    assert counts == [2, 3, 1]
    assert [sink is sinks[0] for sink in sinks] == [True, True, False]
