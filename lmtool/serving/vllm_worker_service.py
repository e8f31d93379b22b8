"""A vLLM worker: loads the model in vLLM's environment and serves LMTP on stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmtool.core.errors import LmtoolError
from lmtool.core.sampling_defaults import AUTO, FILE, read
from lmtool.core.streams import stream
from lmtool.core.types import GenerateRequest, ModelInfo, SamplingParams
from lmtool.inference.backends.vllm.failures import engine_end, import_failure, load_failure
from lmtool.inference.backends.vllm.shared_directory import EngineLog, LivenessSocket, SharedDirectory
from lmtool.inference.engine.request_checks import MAX_LOGPROBS

if TYPE_CHECKING:
    from lmtool.core.errors import ConnectError
    from lmtool.core.interfaces import TokenModel
    from lmtool.inference.backends.vllm.model import VllmModel
    from lmtool.inference.text.tokenizer import TextTokenizer

CHECK_SECONDS = 0.5
"""Seconds between two checks that the engine is alive."""
_engines: list[Any] = []
"""References to the engine; vLLM shuts it down when collected, see `LivenessSocket.end`."""


def main(words: list[str], directory: Path) -> None:
    """Serve one client until it disconnects, then exit; a failure is reported on stderr and by the exit status.

    words: the settings as JSON: `model`, `name`, `options` of vLLM's engine, and `verbose`. directory: shared with the
    engine's processes.
    """
    settings = json.loads(words[0])
    log = EngineLog(directory, verbose=settings["verbose"])
    liveness = LivenessSocket(directory)
    liveness.end_with_reader(log.wire.fileno())
    signal.signal(signal.SIGTERM, lambda number, _frame: liveness.end(128 + number))
    asyncio.run(_serve_and_exit(settings, directory, log, liveness))


async def _serve_and_exit(settings: dict[str, Any], directory: Path, log: EngineLog, liveness: LivenessSocket) -> None:
    try:
        await _serve(settings, directory, log)
        status = 0
    except LmtoolError as problem:
        log.report("error", problem.message, *problem.hints)
        status = problem.exit_code
    except Exception as bug:  # noqa: BLE001  # or vLLM's processes would wait for the interpreter's exit
        traceback.print_exc(file=log.stderr)
        log.report("error", f"the worker failed: {type(bug).__name__}: {bug}", "this is a bug of lmtool")
        status = 70
    liveness.end(status)


async def _serve(settings: dict[str, Any], directory: Path, log: EngineLog) -> None:
    from lmtool.inference.backends.vllm.model import RemoteGuides, VllmModel
    from lmtool.inference.guide.answer_check import JsonAnswerCheck
    from lmtool.inference.text.text_model import TextModel

    shared = SharedDirectory(directory)
    engine = _engine(settings, shared, log)
    _engines.append(engine)
    info, tokenizer = describe(engine.model_config, settings), _tokenizer(settings, log)
    guides = RemoteGuides(engine, shared.steps) if _takes_processors(settings) else None
    if guides is not None:
        await guides.describe(info, None if tokenizer is None else tokenizer.to_json())
    limit = engine.model_config.max_logprobs
    max_logprobs = info.vocab_size if limit < 0 else limit  # vLLM's -1 is no limit
    model = VllmModel(engine, info, guides, partial(_diagnose, engine, log), max_logprobs)
    await _warm_up(model, settings, log)
    log.trim(0)  # output of the load does not explain later failures
    text_model = model if tokenizer is None else TextModel(model, tokenizer, JsonAnswerCheck())
    await _serve_client(model, text_model, log)


async def _warm_up(model: VllmModel, settings: dict[str, Any], log: EngineLog) -> None:
    """Generate one token, which crashes the engine for some models. Raises `ResourceError`."""
    async for output in stream(model, GenerateRequest("first", (0,), SamplingParams(max_tokens=1))):
        if output.error is not None:
            raise load_failure(settings["name"], log.tail(), output.error)


async def _serve_client(engine: VllmModel, model: TokenModel, log: EngineLog) -> None:
    """Serve until the client disconnects. Raises `ConnectError` after the engine and all its streams have ended."""
    from lmtool.protocol.lmtp.config import ServerConfig
    from lmtool.protocol.lmtp.plugs import Plugs
    from lmtool.protocol.lmtp.server import LmtpServer
    from lmtool.protocol.lmtp.stdio import open_stdio

    with contextlib.redirect_stdout(log.wire):
        reader, writer = await open_stdio(ServerConfig().max_frame_bytes, stall_limit=0)
    server = LmtpServer(Plugs(model))
    serving = asyncio.create_task(server.run_stdio(reader, writer))
    while not serving.done():
        await asyncio.wait([serving], timeout=CHECK_SECONDS)
        log.trim()
        if failure := engine.failure:
            await server.drain(0)
            raise failure
    serving.result()


def _engine(settings: dict[str, Any], shared: SharedDirectory, log: EngineLog) -> Any:
    """A running `AsyncLLM`. Raises `ResourceError` with the reason, whatever vLLM raises."""
    # vLLM's newer model runner has another, still changing interface of logits processors.
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
    # Forked processes of a program with threads and CUDA hang; vLLM's own server chooses this as well.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    try:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except Exception as problem:  # noqa: BLE001  # a broken environment may raise anything
        traceback.print_exc()
        raise import_failure(sys.executable, log.tail(), problem) from None
    options = {
        "enable_prefix_caching": True,
        "max_logprobs": MAX_LOGPROBS,
        "disable_log_stats": True,
        **settings["options"],
    }
    if _takes_processors(settings):
        options = {**shared.engine_options, **options}
    try:
        arguments = AsyncEngineArgs(model=settings["model"], skip_tokenizer_init=True, **options)
        return AsyncLLM.from_engine_args(arguments)
    except Exception as problem:  # noqa: BLE001  # vLLM and the model's code may raise anything
        traceback.print_exc()
        raise load_failure(settings["name"], log.tail(), str(problem)) from None


def _diagnose(engine: Any, log: EngineLog) -> ConnectError:
    manager = engine.engine_core.resources.engine_manager
    return engine_end(log.tail(), manager.finished_procs() if hasattr(manager, "finished_procs") else {})


def _takes_processors(settings: dict[str, Any]) -> bool:
    """True if vLLM accepts logits processors; it does not with speculation."""
    return not settings["options"].get("speculative_config")


def _tokenizer(settings: dict[str, Any], log: EngineLog) -> TextTokenizer | None:
    """The model's tokenizer, or None, in which case only token ids are served."""
    from lmtool.inference.text.tokenizer import load_tokenizer

    try:
        template, parser = settings.get("chat_template"), settings.get("reasoning_parser")
        return load_tokenizer(settings["model"], chat_template=template, reasoning_parser=parser)
    except LmtoolError as problem:
        log.report("warning", f"served with token ids only: {problem.message}")
        return None


def describe(config: Any, settings: dict[str, Any]) -> ModelInfo:
    """The model's description. config: vLLM's `ModelConfig`."""
    import vllm

    raw = config.hf_config.to_dict()
    special = {**raw, **_generation_config(Path(settings["model"]))}
    eos, bos = special.get("eos_token_id"), special.get("bos_token_id")
    architectures = raw.get("architectures") or [None]
    choice = settings.get("generation_config", AUTO)
    return ModelInfo(
        model=settings["name"],
        constructor=f"AsyncLLM({settings['name']!r})",
        backend="vllm",
        vocab_size=config.get_vocab_size(),
        context_length=config.max_model_len,
        eos_token_ids=tuple(token for token in (eos if isinstance(eos, list) else [eos]) if isinstance(token, int)),
        bos_token_id=bos if isinstance(bos, int) else None,
        architecture=architectures[0],
        dtype=str(config.dtype).removeprefix("torch."),
        batch_invariant=os.environ.get("VLLM_BATCH_INVARIANT") == "1",
        sampling_defaults=read(settings["model"], choice, settings["options"].get("revision")),
        versions={"vllm": vllm.__version__},
    )


def _generation_config(folder: Path) -> dict[str, Any]:
    file = folder / FILE
    if not file.is_file():
        return {}
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return {name: value for name, value in config.items() if value is not None}
