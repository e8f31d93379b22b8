"""Program of a vLLM worker, run by path; multiprocessing runs it again in each process that it spawns.

It makes this package importable, which is neither installed in vLLM's environment nor in the working folder, and ends
the processes with the worker.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

DIRECTORY = "LMTOOL_VLLM_DIRECTORY"
"""Environment variable with the directory that a worker shares with its engine's processes."""
RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable (Ray chose this name) with the setup of processes that Ray starts."""
_HERE = Path(__file__).resolve().parent
_MAX_PATH = 64
"""Longest directory path in characters; a socket's path in it may have 104."""


def main(words: list[str]) -> None:
    """Make the shared directory and run the worker. words: see `vllm_worker_service.main`."""
    directory = make_directory()
    os.environ[DIRECTORY] = str(directory)
    expose_package(directory)
    from lmtool.serving import vllm_worker_service

    vllm_worker_service.main(words, directory)


def make_directory() -> Path:
    """A new directory that only this user may read."""
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="lmtool-vllm-", dir=parent if len(parent) < _MAX_PATH else "/tmp"))  # noqa: S108


def expose_package(directory: Path) -> None:
    """Make this package, and nothing else of its environment, importable here and in the engine's processes.

    multiprocessing passes on `sys.path`. Ray starts processes on any machine, and sends them the package.
    """
    packages = directory / "packages"
    packages.mkdir()
    (packages / "lmtool").symlink_to(_HERE.parent, target_is_directory=True)
    sys.path[:] = [str(packages), *(entry for entry in sys.path if Path(entry).resolve() != _HERE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
    job = json.loads(os.environ.get(RAY_JOB, "{}"))
    job.setdefault("runtime_env", {}).setdefault("py_modules", []).append(str(_HERE.parent))
    os.environ[RAY_JOB] = json.dumps(job)


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":
    from lmtool.inference.backends.vllm.shared_directory import end_with_worker

    end_with_worker(Path(os.environ[DIRECTORY]))
