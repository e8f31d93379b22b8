"""What a worker uses of vLLM, over real processes of the same shape: an engine core, and a worker of its own below it.

It computes nothing: the tokens of a stream are those of its prompt, again and again. `behaviour`, an engine option,
makes it print and fail as vLLM does.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from types import SimpleNamespace

__version__ = "0.0"
for _name in ("engine", "engine.arg_utils", "v1", "v1.engine", "v1.engine.async_llm", "sampling_params"):
    sys.modules[f"vllm.{_name}"] = sys.modules[__name__]  # all of it is in this file
_CONTEXT = multiprocessing.get_context("spawn")


class SamplingParams(SimpleNamespace):
    """Keyword arguments, kept."""


class RequestOutputKind:
    """Of two kinds."""

    DELTA, FINAL_ONLY = "delta", "final"


class AsyncEngineArgs(SimpleNamespace):
    """Keyword arguments, kept."""


class AsyncLLM:
    """An engine core in a process of its own, and what was asked of it."""

    def __init__(self, args):
        sys.stdout.write("stand-in: noise on stdout\n")
        sys.stdout.flush()
        sys.stderr.write("stand-in: noise on stderr\n")
        raw = json.loads(Path(args.model, "config.json").read_text())
        hf_config = SimpleNamespace(to_dict=lambda: raw)
        size, length = raw["vocab_size"], raw["max_position_embeddings"]
        self.model_config = SimpleNamespace(
            hf_config=hf_config,
            get_vocab_size=lambda: size,
            max_model_len=length,
            max_logprobs=args.max_logprobs,
            dtype="torch.float32",
        )
        self._pipe, theirs = _CONTEXT.Pipe()
        self._core = _CONTEXT.Process(target=_core, args=(theirs, args.worker_extension_cls, args.behaviour))
        self._core.start()
        theirs.close()
        self.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_manager=self))
        self._queues = {}
        try:
            self._pipe.recv()
        except EOFError:
            raise RuntimeError("Engine core initialization failed. See root cause above.") from None
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, daemon=True).start()

    @classmethod
    def from_engine_args(cls, args):
        """An engine that is ready."""
        return cls(args)

    @property
    def errored(self):
        """Whether the engine core has ended."""
        return not self._core.is_alive()

    def finished_procs(self):
        """Exit status of each process that has ended, by name."""
        return {"EngineCore": self._core.exitcode} if self._core.exitcode is not None else {}

    def __del__(self):
        """End the engine core, as slowly as vLLM does."""
        time.sleep(5)
        self._core.terminate()

    def _read(self):
        try:
            while True:
                name, token = self._pipe.recv()
                self._loop.call_soon_threadsafe(self._queues[name].put_nowait, token)
        except (EOFError, OSError):
            for queue in self._queues.values():
                self._loop.call_soon_threadsafe(queue.put_nowait, None)

    async def collective_rpc(self, method, args):
        """A call of all processes below the engine core; none of these has methods."""
        return [None]

    async def generate(self, prompt, params, name):
        """Tokens as they come."""
        queue = self._queues[name] = asyncio.Queue()
        try:
            self._pipe.send((name, prompt["prompt_token_ids"], params.max_tokens))
        except OSError:
            queue.put_nowait(None)
        for count in range(params.max_tokens):
            token = await queue.get()
            if token is None:
                while self._core.is_alive():  # a pipe is closed a moment before its process has ended
                    await asyncio.sleep(0.01)
                raise RuntimeError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
            reason = "length" if count == params.max_tokens - 1 else None
            logprobs = [{token: SimpleNamespace(logprob=-1.0)}]
            yield SimpleNamespace(outputs=[SimpleNamespace(token_ids=[token], logprobs=logprobs, finish_reason=reason)])


def _core(pipe, extension, behaviour):
    """The engine core: has a worker, and answers until that ends."""
    ready, theirs = _CONTEXT.Pipe()
    worker = _CONTEXT.Process(target=_worker, args=(theirs, extension, behaviour), daemon=True)
    worker.start()
    theirs.close()
    try:
        ready.recv()
    except EOFError:
        sys.exit(1)
    pipe.send("ready")
    streams = {}
    while True:
        if worker.sentinel in wait([pipe, worker.sentinel], 0.01):
            sys.stderr.write(
                "Worker proc VllmWorker-0 died unexpectedly, shutting down executor.\nRuntimeError: Executor failed.\n"
            )
            sys.exit(1)
        while pipe.poll():
            try:
                name, prompt, count = pipe.recv()
            except (EOFError, ConnectionError):
                threading.Event().wait()  # vLLM does not notice that nobody asks any more
            if behaviour == "wrong":
                why = "Unsupported CPU attention configuration: head_dim=8 isa=1 kv_cache_idx=0"
                sys.stderr.write(f"RuntimeError: Worker failed with error '{why}', please check the stack trace\n")
                sys.exit(1)
            streams[name] = [prompt, count]
        for name, (prompt, left) in tuple(streams.items()):
            pipe.send((name, prompt[left % len(prompt)]))
            if behaviour == "stuck":  # in C, with the interpreter's lock: nothing else of this process runs again
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # vLLM has a handler, which could not run either
                ctypes.PyDLL(None).pause()
            streams[name][1] -= 1
            if left == 1:
                del streams[name]


def _worker(ready, extension, behaviour):
    """The process below: loads the model and what is mixed into it, then waits."""
    sys.stderr.write("stand-in: a worker's noise\n")
    module, _, name = extension.rpartition(".")
    getattr(importlib.import_module(module), name)
    if behaviour == "slow":
        time.sleep(600)
    if behaviour == "memory":
        what = "Available memory on node 0 (13.36/15.96 GiB) on startup is less than desired CPU memory utilization"
        prefix = f"(VllmWorker-0 pid={os.getpid()}) ERROR 11-22 03:26:08 [multiproc_executor.py:953] "
        sys.stderr.write(f"{prefix}Traceback (most recent call last):\n{prefix}ValueError: {what} (0.92, 14.69 GiB).\n")
        sys.exit(1)
    ready.send("ready")
    threading.Event().wait()
