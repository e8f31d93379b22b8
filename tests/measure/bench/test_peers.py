"""The engines under test: each peer by itself, the worker program, and its process."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from lmtool.core.errors import ConnectError, ResourceError, TimeLimitError
from lmtool.inference.engine.random_model import SHAPES
from lmtool.measure.bench.checkpoint import Checkpoint, read_checkpoint
from lmtool.measure.bench.contestants import variable
from lmtool.measure.bench.peer_process import FOREIGN, MODULE, PeerProcess, command
from lmtool.measure.bench.peers import (
    ceiling_peer,
    conversion,
    lmtool_peer,
    maker_peer,
    mistralrs_peer,
    onnxruntime_peer,
    transformers_peer,
)
from lmtool.measure.bench.peers.worker import MODULES, call, timed, waits

PROMPTS = [[5, 6, 7, 8, 9, 10], [100, 90, 80, 70, 60, 50], [11, 12, 13, 14, 15, 16]]
OUTPUT = 6


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama of 512 ids, float32."""
    folder = tmp_path_factory.mktemp("tiny-llama")
    maker_peer.Peer({}).make("llama-tiny", str(folder), 0)
    return folder


@pytest.fixture(autouse=True)
def empty_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers run where no lmtool lies beside them."""
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


@pytest.fixture
def settings(tiny: Path, tmp_path: Path) -> dict[str, Any]:
    """A peer's settings."""
    return {"model": str(tiny), "work": str(tmp_path), "dtype": "float32", "threads": 1, "streams": 4, "tokens": 16}


@pytest.fixture(scope="module")
def right(tiny: Path) -> list[list[int]]:
    """Transformers' own greedy ids."""
    peer = transformers_peer.Peer({"model": str(tiny), "dtype": "float32", "threads": 1})
    return peer.generate(PROMPTS, OUTPUT)


class TestGreedyIds:
    """Every engine generates transformers' greedy ids: of several prompts at once, and of one alone."""

    @pytest.mark.parametrize("kind", [lmtool_peer.Peer, transformers_peer.BatchingPeer])
    def test_in_this_environment(self, kind: Any, settings: dict[str, Any], right: list[list[int]]) -> None:
        """Again with another length, too."""
        with contextlib.closing(kind(settings)) as peer:
            assert peer.about()["dtype"] == "float32"
            assert peer.generate(PROMPTS, OUTPUT) == right
            assert peer.generate(PROMPTS[1:2], 2) == [right[1][:2]]

    def test_ours_tells_when_each_token_came(self, settings: dict[str, Any]) -> None:
        """In order, within the run."""
        with contextlib.closing(lmtool_peer.Peer(settings)) as peer:
            start = time.perf_counter()
            peer.generate(PROMPTS, OUTPUT)
            end = time.perf_counter()
        assert [len(own) for own in peer.times] == [OUTPUT] * len(PROMPTS)
        assert all([start, *own, end] == sorted([start, *own, end]) for own in peer.times)

    @pytest.mark.peer
    @pytest.mark.parametrize("name", ["llamacpp", "vllm"])
    async def test_others_that_tell_when_each_token_came(self, name: str, settings: dict[str, Any]) -> None:
        """Its own run has waits: first tokens, then gaps."""
        async with foreign(name, settings) as peer:
            await peer.start(300)
            answer = await peer.call(300, "timed", first=PROMPTS, then=PROMPTS, output=OUTPUT)
        found = answer["waits"]
        assert 0 < found["first_mean"] <= found["first_last"] < answer["total_s"]
        assert 0 < found["itl"] <= found["gap"] < answer["total_s"]

    @pytest.mark.peer
    @pytest.mark.parametrize(
        "name", ["llamacpp", "ctranslate2", "vllm", "openvino-genai", "onnxruntime-genai", "mistralrs"]
    )
    async def test_in_an_environment_of_its_own(
        self, name: str, settings: dict[str, Any], right: list[list[int]]
    ) -> None:
        """Where its variable names one."""
        async with foreign(name, settings) as peer:
            await peer.start(300)
            assert peer.about["versions"]
            assert (await peer.call(300, "greedy", prompts=PROMPTS, output=OUTPUT))["ids"] == right
            alone = await peer.call(300, "greedy", prompts=PROMPTS[1:2], output=2)
            assert alone["ids"] == [right[1][:2]]

    @pytest.mark.peer
    @pytest.mark.parametrize(
        ("name", "dtype"),
        [
            ("llamacpp", "bfloat16"),
            ("llamacpp", "int8"),
            ("openvino-genai", "bfloat16"),
            ("openvino-genai", "int8"),
            ("openvino-genai", "int4"),
            ("onnxruntime-genai", "int8"),
            ("onnxruntime-genai", "int4"),
            ("mistralrs", "bfloat16"),
            ("mistralrs", "int8"),
            ("mistralrs", "int4"),
        ],
    )
    async def test_other_number_formats(self, settings: dict[str, Any], name: str, dtype: str) -> None:
        """The converted model has them, and it runs."""
        async with foreign(name, {**settings, "dtype": dtype}) as peer:
            await peer.start(300)
            answer = await peer.call(300, "greedy", prompts=PROMPTS, output=OUTPUT)
        assert [len(ids) for ids in answer["ids"]] == [OUTPUT] * len(PROMPTS)

    def test_a_stream_of_ours_that_fails(self, settings: dict[str, Any]) -> None:
        """Is an error with the engine's own sentence."""
        with (
            contextlib.closing(lmtool_peer.Peer(settings)) as peer,
            pytest.raises(RuntimeError, match="not in the voc"),
        ):
            peer.generate([[1_000_000]], 2)


def foreign(name: str, settings: dict[str, Any]) -> PeerProcess:
    """A peer in its own environment; the test is skipped where there is none."""
    python = os.environ.get(variable(name))
    if not python:
        pytest.skip(f"{variable(name)} does not name the Python of an environment with it")
    return PeerProcess(name, python, settings)


class TestConversions:
    """What peers need before they can load a checkpoint, and dtypes that they have not."""

    def test_a_tokenizer_with_a_word_for_each_id(self, tiny: Path, tmp_path: Path) -> None:
        """For an engine that takes texts: eos and unknown ids have words, too; weights are links."""
        mistralrs_peer.link_with_words(tiny, tmp_path / "linked")
        tokenizer = Tokenizer.from_file(str(tmp_path / "linked/tokenizer.json"))
        ids = [511, 2, 0, 1, 9]
        assert tokenizer.encode(mistralrs_peer.as_words(ids)).ids == ids
        assert mistralrs_peer.as_ids(tokenizer.decode(ids, skip_special_tokens=True)) == ids
        assert (tmp_path / "linked/model.safetensors").resolve() == tiny / "model.safetensors"

    def test_a_converter_runs_once(self, tmp_path: Path) -> None:
        """Beside its result."""
        words = ["-c", "open('made', 'x')"]
        for _ in range(2):
            conversion.convert(words, tmp_path, tmp_path / "made")
        assert (tmp_path / "made").is_file()

    def test_a_converter_that_fails(self, tmp_path: Path) -> None:
        """Its last line is the reason."""
        with pytest.raises(RuntimeError, match="cannot be converted: SystemError: no such model"):
            conversion.convert(["-c", "raise SystemError('no such model')"], tmp_path, tmp_path / "made")

    def test_a_dtype_that_a_builder_lacks(self, settings: dict[str, Any]) -> None:
        """Is refused before anything is loaded or imported."""
        with pytest.raises(ValueError, match="has no bfloat16 for processors"):
            onnxruntime_peer.Peer({**settings, "dtype": "bfloat16"})


class TestReference:
    """Transformers' `generate` says which ids are right, and how clear each is."""

    def test_gaps(self, settings: dict[str, Any], right: list[list[int]]) -> None:
        """The lead of the best logit over the second, in standard deviations: never negative."""
        peer = transformers_peer.Peer(settings)
        answer = peer.reference(PROMPTS, OUTPUT)
        assert answer["ids"] == right
        assert [len(gaps) for gaps in answer["gaps"]] == [OUTPUT] * len(PROMPTS)
        assert all(gap >= 0 for gaps in answer["gaps"] for gap in gaps)
        assert peer.generate(PROMPTS[:1], OUTPUT) == right[:1]  # equal lengths need no padding

    def test_an_unknown_dtype(self, settings: dict[str, Any]) -> None:
        """Refused with the value."""
        with pytest.raises(ValueError, match="no int8"):
            transformers_peer.Peer({**settings, "dtype": "int8"})


class TestMaker:
    """Random checkpoints."""

    def test_a_seed_makes_the_same_weights(self, tiny: Path, tmp_path: Path) -> None:
        """And another seed makes others."""
        for name, seed in (("again", 0), ("other", 1)):
            maker_peer.Peer({}).make("llama-tiny", str(tmp_path / name), seed)
        folders = (tiny, tmp_path / "again", tmp_path / "other")
        weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
        assert weights[0] == weights[1] != weights[2]

    def test_weights_are_counted_without_being_made(self, tiny: Path) -> None:
        """As many as the files of the same model have, of an untied and of a tied one."""
        counts = maker_peer.Peer({}).count("random:llama-tiny")
        assert Checkpoint(**counts) == read_checkpoint(tiny)
        tied = maker_peer.Peer({}).count("random:llama-100m")
        assert tied["parameters"] == tied["read"]
        assert tied["vocab_size"] == SHAPES["llama-100m"]["vocab_size"]

    def test_weights_made_in_place_are_those_of_the_file(self, tiny: Path) -> None:
        """An engine that makes a random model itself gives the ids of one that reads it."""
        settings = {"dtype": "float32", "threads": 1, "streams": 3, "tokens": 20}
        ids = []
        for model in ("random:llama-tiny", str(tiny)):
            peer = transformers_peer.Peer({**settings, "model": model})
            ids.append(peer.generate(PROMPTS, OUTPUT))
        ours = lmtool_peer.Peer({**settings, "model": "random:llama-tiny"})
        ids.append(ours.generate(PROMPTS, OUTPUT))
        ours.close()
        assert ids[0] == ids[1] == ids[2]

    def test_the_folder_is_complete(self, tiny: Path) -> None:
        """Configuration, weights, and a tokenizer with a word for each id."""
        size = SHAPES["llama-tiny"]["vocab_size"]
        assert json.loads((tiny / "config.json").read_text())["vocab_size"] == size
        assert read_checkpoint(tiny).vocab_size == size
        tokenizer = Tokenizer.from_file(str(tiny / "tokenizer.json"))
        assert tokenizer.get_vocab_size() == size
        assert tokenizer.encode("w9 w3").ids == [9, 3]


class TestCeiling:
    """The machine's own limits."""

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
    def test_products(self, dtype: str) -> None:
        """Some arithmetic a second, in every number format."""
        assert ceiling_peer.Peer({"threads": 1}).product(dtype, 0.01)["flop_per_s"] > 1e8

    def test_bandwidth(self) -> None:
        """Some bytes a second."""
        assert ceiling_peer.Peer({"threads": 1}).bandwidth(0.01)["bytes_per_s"] > 1e8


class Counting:
    """Continues a prompt with its length and the numbers after it."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[list[int]], int]] = []

    def about(self) -> dict[str, object]:
        return {}

    def generate(self, prompts: list[list[int]], output: int) -> list[list[int]]:
        self.calls.append((prompts, output))
        return [list(range(len(prompt), len(prompt) + output)) for prompt in prompts]

    def twice(self, number: int) -> dict[str, object]:
        return {"result": 2 * number}


class TestWorker:
    """The program that runs a peer."""

    def test_a_timed_run_uses_other_prompts_than_the_one_before_it(self) -> None:
        """One token of the first, all of the second; both clocks; lengths to check that the work was done."""
        peer = Counting()
        answer = timed(peer, [[1, 2]], [[3, 4]], 5)
        assert peer.calls == [([[1, 2]], 1), ([[3, 4]], 5)]
        assert answer["lengths"] == [5]
        assert answer["prefill_s"] >= 0
        assert answer["rss_bytes"] > 1_000_000
        assert answer["waits"] is None

    def test_how_long_streams_waited(self) -> None:
        """First tokens from the run's start on, in the mean and the last one; the longest gap of any stream."""
        found = waits([[10.5, 10.75, 12.0], [11.5, 11.75]], 10.0)
        assert found == {"first_mean": 1.0, "first_last": 1.5, "itl": 0.25, "gap": 1.25}
        assert waits([[10.5], []], 10.0) is None
        assert waits([[10.5]], 10.0) == {"first_mean": 0.5, "first_last": 0.5, "itl": 0.0, "gap": 0.0}

    def test_calls(self) -> None:
        """`greedy`, and the peer's own methods by name."""
        assert call(Counting(), "greedy", {"prompts": [[1], [1, 2]], "output": 2}) == {"ids": [[1, 2], [2, 3]]}
        assert call(Counting(), "twice", {"number": 4}) == {"result": 8}

    def test_an_error_is_an_answer(self) -> None:
        """The process lives on; whatever is printed goes to stderr."""
        words = [sys.executable, "-m", MODULE, "maker", "{}"]
        calls = '["nothing", {}]\n["fly", {}]\n'
        done = subprocess.run(words, input=calls, capture_output=True, text=True, check=True)
        first, *rest = (json.loads(line) for line in done.stdout.splitlines())
        assert "transformers" in first["versions"]
        assert [answer["error"].partition(":")[0] for answer in rest] == ["AttributeError"] * 2

    def test_every_peer_has_its_module(self) -> None:
        """With its class."""
        for module, kind in MODULES.values():
            assert hasattr(import_module(module), kind)


class TestProcess:
    """Failures of a peer's process, and its isolation."""

    async def test_a_peer_that_cannot_load(self) -> None:
        """Gives the reason from inside the process, in one sentence."""
        async with PeerProcess("lmtool", sys.executable, {"threads": 1}) as peer:
            with pytest.raises(ResourceError, match=r"lmtool failed: KeyError: 'model'"):
                await peer.start(60)

    async def test_an_error_for_a_person(self) -> None:
        """Is passed on as it is, with what to do next."""
        async with PeerProcess("maker", sys.executable, {"threads": 1}) as peer:
            await peer.start(60)
            with pytest.raises(ResourceError) as refused:
                await peer.call(60, "find_device", device="cuda:77")
        assert refused.value.message.startswith("device 'cuda:77' is not there")

    async def test_a_peer_that_dies(self) -> None:
        """Is reported with its status and the end of its log."""
        async with PeerProcess("no such peer", sys.executable, {"threads": 1}) as peer:
            with pytest.raises(ResourceError, match="no such peer failed: KeyError"):
                await peer.start(60)
            with pytest.raises(ConnectError, match="ended with status 0"):
                await peer.call(60, "anything")

    async def test_a_peer_that_does_not_answer(self) -> None:
        """Is given up after the limit, and ended with the block."""
        async with PeerProcess("maker", sys.executable, {"threads": 1}) as peer:
            with pytest.raises(TimeLimitError, match="maker gave no answer"):
                await peer.start(0.001)

    async def test_a_python_that_is_not_there(self) -> None:
        """Refused with its name."""
        async with PeerProcess("maker", "/no/python", {"threads": 1}) as peer:
            with pytest.raises(ResourceError, match="cannot start '/no/python'"):
                await peer.start(1)

    def test_a_foreign_python_gets_nothing_of_this_environment(self) -> None:
        """It gets the path of this package, and none to the packages beside it."""
        words = command("python-of-a-peer", MODULE, ["vllm", "{}"])
        assert words[:2] == ["python-of-a-peer", "-c"]
        assert words[2] == FOREIGN.format(module="lmtool.measure.bench.peers.worker")
        assert words[-2:] == ["vllm", "{}"]
        assert command(sys.executable, "a.b", ["c"]) == [sys.executable, "-m", "a.b", "c"]

    def test_a_foreign_python_imports_nothing_from_the_working_folder(self, tmp_path: Path) -> None:
        """Such as a folder named like an engine, with a clone of its repository."""
        (tmp_path / "json.py").write_text("raise SystemExit('a module of the working folder')")
        (tmp_path / "python").symlink_to(Path(sys.executable).resolve())
        words = command(str(tmp_path / "python"), MODULE, ["no such peer", "{}"])
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "KeyError: 'no such peer'" in done.stdout, done.stderr
