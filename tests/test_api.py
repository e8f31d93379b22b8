"""The Python face: the same calls on a model in this process, behind a socket, and in a server of one's own."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lmtool
from lmtool.core.api_arguments import EngineOptions, Sampling
from lmtool.core.constraint import choice
from lmtool.core.errors import (
    AccessDeniedError,
    ConnectError,
    ConstraintError,
    ContextOverflowError,
    ModelLoadError,
    RequestError,
    ServerError,
    TimeLimitError,
    UnknownBufferError,
    UnknownTokenError,
    UsageError,
)
from lmtool.core.streams import error_of
from lmtool.core.types import (
    GenerateRequest,
    SamplingParams,
    TokenOutput,
)
from lmtool.gateway.pools.failures import PoolRefusedError
from lmtool.inference.engine.config import EngineConfig
from lmtool.protocol.evergreen.status import Abort
from lmtool.protocol.lmtp.client import LmtpClient
from tests.scripted_model import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STORIES = str(Path(__file__).parent / "data/stories260K")
BEGINNING = ", there was a little girl"
IDS = [432, 383, 286, 261, 376]


@pytest.fixture(params=["here", "there"])
async def model(request: pytest.FixtureRequest, served: str) -> AsyncIterator[lmtool.Model]:
    """The stories model, once in this process and once behind a socket."""
    opened = lmtool.load(STORIES) if request.param == "here" else lmtool.connect(served)
    async with opened as model:
        yield model


async def test_a_text_is_continued_in_text_and_ids(model: lmtool.Model) -> None:
    """Outputs carry ids, logprobs in nats, and the text they complete; the last one tells why it is the last."""
    outputs = [output async for output in model.generate("Once upon a time", max_tokens=5)]
    assert [output.token for output in outputs] == IDS
    assert "".join(output.text or "" for output in outputs).strip(", ") == "there was a little"
    assert all(output.logprob is not None and output.logprob <= 0 for output in outputs)
    assert outputs[-1].finish_reason == "length"


async def test_ids_give_ids_without_text(model: lmtool.Model) -> None:
    """Text comes with a text prompt; with ids only when it is asked for."""
    outputs = [output async for output in model.generate([1, 403, 407, 261, 378], max_tokens=5)]
    assert [output.token for output in outputs] == IDS
    assert {output.text for output in outputs} == {None}
    outputs = [output async for output in model.generate([1, 403, 407, 261, 378], max_tokens=1, text=True)]
    assert outputs[0].text == ","


async def test_chat_gives_the_whole_answer(model: lmtool.Model) -> None:
    """A model without a chat template continues the text; a system text stands in front."""
    assert (await model.chat("Once upon a time", max_tokens=6)).startswith(", there was a little")
    assert isinstance(await model.chat("Hello", system="Be kind.", max_tokens=2), str)


async def test_answers_are_held(model: lmtool.Model) -> None:
    """To what a GENERATE would say, or to an object; what makes no sense is refused before anything is sent."""
    held = model.generate("Once", constraint={"regex": "[a-c]{4}"}, max_tokens=9)
    text = "".join([output.text or "" async for output in held])
    assert re.fullmatch("[a-c]{4}", text)
    assert await model.chat("Once", constraint=choice(["yes", "no"])) in {"yes", "no"}
    with pytest.raises(ConstraintError):
        model.generate("Once", constraint={"regexp": "a"})


async def test_urgent_streams_say_so() -> None:
    """The priority goes with the request."""
    scripted = ScriptedModel()
    _ = [output async for output in lmtool.Model(scripted).generate([1], max_tokens=1, priority=-2)]
    assert [request.priority for request in scripted.requests if isinstance(request, GenerateRequest)] == [-2]


async def test_scores_equal_what_generating_told(model: lmtool.Model) -> None:
    """Generating a text and scoring it give the same numbers."""
    generated = [output async for output in model.generate([1, 403, 407, 261, 378], max_tokens=5)]
    scored = await model.score([1, 403, 407, 261, 378], IDS, top_logprobs=2)
    assert [output.token for output in scored] == IDS
    assert [output.logprob for output in scored] == pytest.approx([output.logprob for output in generated], abs=1e-4)
    assert all(output.top_logprobs is not None for output in scored)


async def test_a_failing_stream_raises_the_error_of_its_kind(model: lmtool.Model) -> None:
    """The same class in this process and over the wire, once the server is known to tell kinds; the model goes on."""
    await model.info()
    with pytest.raises(UnknownTokenError, match="99999"):
        _ = [output async for output in model.generate([99999])]
    with pytest.raises(ContextOverflowError):
        _ = [output async for output in model.generate([1] * 600)]
    assert (await model.info()).context_length == 512


async def test_leaving_early_ends_the_stream(model: lmtool.Model) -> None:
    """Whoever has read enough stops reading, and nothing is computed for nobody."""
    outputs = model.generate("Once upon a time", max_tokens=500, ignore_eos=True)
    await anext(outputs)
    await outputs.aclose()  # type: ignore[attr-defined] # what `break` does sooner or later
    while (await model.info()).running:
        await asyncio.sleep(0)


async def test_a_server_of_ones_own() -> None:
    """A server lasts as long as its block, and answers to the names it was given."""
    told: list[str] = []
    serving = lmtool.serve(
        STORIES, served_model_name=["tiny"], on_progress=lambda p: told.append(p.phase), max_streams=4
    )
    async with serving as server:
        assert server.info is not None
        assert server.info.model == "tiny"
        async with lmtool.connect(server.url, model="stories260K") as model:
            assert (await model.chat("Once upon a time", max_tokens=1)) == ","
        assert await server.drain(1.0)
    assert told[-1] == "ready"
    with pytest.raises(ConnectError):
        async with lmtool.connect(server.url):
            pass


async def test_a_model_that_is_not_there() -> None:
    """Raised when entering, before anything heavy is loaded."""
    with pytest.raises(ModelLoadError, match=r"'\./nope'"):
        async with lmtool.load("./nope"):
            pass
    with pytest.raises(ModelLoadError, match=r"'\./nope'"):
        async with lmtool.serve(["lmtool-tiny", "./nope"]):
            pass


async def test_nobody_there() -> None:
    """No server: `ConnectError`."""
    with pytest.raises(ConnectError):
        async with lmtool.connect("127.0.0.1:1"):
            pass


async def buffered(model: lmtool.Model) -> None:
    """What every model with buffers does."""
    async with model.buffer() as story:
        assert await story.append("Once upon") == 3
        assert await story.append([261, " time"]) == story.length == 5
        await model.prefill(story)
        row: list[int | str] = ["Once upon", 261, " time", ", there"]
        whole = [replace(output, stream_id=0) async for output in model.generate(row, max_tokens=4)]
        branch_of_all = model.generate([story, ", there"], max_tokens=4)
        assert [replace(output, stream_id=0) async for output in branch_of_all] == whole
        branch = model.buffer("branch")
        ids = [output.token async for output in model.generate([story.first(3), 378], max_tokens=2, into=branch)]
        assert branch.length == len(ids) == 2
        (scored,) = await model.score([story.first(3), 378, branch], [426])
        (by_ids,) = await model.score([1, 403, 407, 378, *filter(None, ids)], [426])
        assert replace(scored, stream_id=0) == replace(by_ids, stream_id=0)
        assert [output.text async for output in model.generate(branch, max_tokens=1)] == [None]
        await branch.drop()
        with pytest.raises(UnknownBufferError, match="buffer 'branch' is not known"):
            await model.score([branch.first(1)], [426])
        with pytest.raises(UnknownTokenError, match="token id 512 in append"):
            await story.append([512])
    assert story.length == 0


async def test_buffers() -> None:
    """The same over a connection and in this process; a model that keeps none says so."""
    async with lmtool.serve(STORIES) as server, lmtool.connect(server.url) as model:
        await buffered(model)
    async with lmtool.load(STORIES) as model:
        await buffered(model)
    with pytest.raises(UsageError, match="keeps no buffers"):
        lmtool.Model(LmtpClient("127.0.0.1:1")).buffer()


async def test_a_server_that_asks_for_a_key() -> None:
    """It opens `connect`, by argument or in the URL; another one is an error of its own class, for streams as well."""
    async with lmtool.serve(STORIES, api_key="sesame", allow_host=["models.example"], stall_limit=7) as server:
        assert server.service._config.server.stall_limit == 7
        own = server.url.replace("ws://", "ws://user:sesame@")
        async with lmtool.connect(server.url, api_key="sesame") as model, lmtool.connect(own) as same:
            assert (await model.info()).model == (await same.info()).model == "stories260K"
        for key in (None, "other"):
            with pytest.raises(AccessDeniedError, match="API key") as refused:
                async with lmtool.connect(server.url, api_key=key):
                    pass
            assert refused.value.exit_code == 4
        lazy = lmtool.Model(LmtpClient(server.url))
        with pytest.raises(AccessDeniedError, match="asks for an API key"):
            await lazy.chat("Hi")
        with pytest.raises(AccessDeniedError, match="asks for an API key"):
            _ = [output async for output in lazy.generate("Hi")]


async def test_deadlines(model: lmtool.Model) -> None:
    """A stream that has not ended in time raises behind its tokens; what is no deadline is refused at once."""
    asked: Sampling = {"max_tokens": 400, "ignore_eos": True}
    with pytest.raises(TimeLimitError, match=r"the deadline of 0\.02 s is over") as late:
        _ = [output async for output in model.generate("Once upon a time", deadline=0.02, **asked)]
    assert (late.value.retryable, late.value.hints) == (False, ("send the request again with a longer one",))
    with pytest.raises(TimeLimitError):
        await model.chat("Once upon a time", deadline=0.001, **asked)
    assert len(await model.score("Once", " upon a time", deadline=60)) > 1
    for wrong in (0, -1, float("nan"), float("inf"), 1e9, "soon"):
        with pytest.raises(RequestError, match=r"deadline is .*; expected a number above 0, at most 86400"):
            model.generate("Once", deadline=wrong)  # type: ignore[typeddict-item]
        with pytest.raises(RequestError, match="deadline is"):
            await model.score("Once", " upon", deadline=wrong)  # type: ignore[arg-type]


async def test_errors_are_the_same_here_and_there(model: lmtool.Model) -> None:
    """An error that came over the wire has what the one in this process has."""
    with pytest.raises(UnknownTokenError) as unknown:
        _ = [output async for output in model.generate([512], text=True)]
    assert unknown.value.message == "token id 512 in prompt is not in the vocabulary of stories260K (0 to 511)"
    assert unknown.value.hints == ("check that the client uses this model's tokenizer: lmtool info",)
    assert unknown.value.retryable is False


async def test_other_machines_need_a_key() -> None:
    """A server of one's own that they can reach has one, or a word that it has none."""
    with pytest.raises(UsageError, match="no key is asked for"):
        async with lmtool.serve(STORIES, host="0.0.0.0"):
            pass


async def test_a_limit_that_is_none() -> None:
    """What is out of an option's range is refused by its name, before anything is loaded."""
    with pytest.raises(UsageError, match=r"stall_limit is -1; expected a number from 0 on"):
        async with lmtool.serve(STORIES, stall_limit=-1):
            pass


def test_keyword_arguments_are_the_fields_of_the_configurations() -> None:
    """What `generate` and `load` take is what `SamplingParams` and `EngineConfig` have."""
    assert set(Sampling.__annotations__) == {field.name for field in fields(SamplingParams)} | {"deadline"}
    assert set(EngineOptions.__annotations__) == {field.name for field in fields(EngineConfig)}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("unknown_token", UnknownTokenError),
        ("invalid_request", RequestError),
        ("connection", ConnectError),
        ("new", ServerError),
        ("session_aborted", ServerError),
    ],
)
def test_errors_of_streams_have_their_class(code: str, kind: type[Exception]) -> None:
    """The class is found by the code on the wire; a code of a newer server is a `ServerError`."""
    assert PoolRefusedError.code == RequestError.code  # a room's own kinds take no code away
    assert Abort.code == "session_aborted"  # made of a status too, which no stream has
    error = error_of(TokenOutput("a", error="no", error_code=code))
    assert type(error) is kind
    assert str(error) == "no"


def test_names_of_the_package_are_loaded_when_used() -> None:
    """`import lmtool` costs nothing; each public name can be reached through it."""
    code = "import lmtool; print(all(getattr(lmtool, n) for n in lmtool.__all__), 'nope' in dir(lmtool)); lmtool.nope"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["True", "False"]
    assert "module 'lmtool' has no attribute 'nope'" in done.stderr


async def test_errors_do_not_tell_where_the_model_lies(model: lmtool.Model) -> None:
    """Clients may be strangers: neither the description nor an error has a path of the server's in it."""
    with pytest.raises(lmtool.LmtoolError) as refused:
        _ = [output async for output in model.generate([99999])]
    assert STORIES not in str(refused.value)
    assert "stories260K" in str(refused.value)
    assert STORIES not in str(await model.info())
