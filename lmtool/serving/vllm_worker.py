"""The program of a vLLM worker, run by its file; multiprocessing runs it again at the start of each process it spawns.

So all of them can import this package, which is neither installed in vLLM's environment nor in the working folder, and
all of them end with the worker.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

DIRECTORY = "LMTOOL_VLLM_DIRECTORY"
"""The environment variable for the directory that a worker shares with the processes of its engine."""
RAY_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The environment variable, of this odd name, for what Ray prepares where it starts processes."""
_HERE = Path(__file__).resolve().parent
_MAX_PATH = 64
"""Characters of a directory's path that leave room for a socket's name in it: 104 are allowed in all."""


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
    """Make this package importable here and in the engine's processes, and nothing else of the environment it lies in.

    multiprocessing hands on `sys.path`. Ray starts processes of its own, on any machine, and sends them the package.
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
