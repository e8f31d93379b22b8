"""The program of a vLLM worker, run by its file; multiprocessing runs it again at the start of each process it spawns.

So this package is at hand in all of them, though neither installed in vLLM's environment nor in the working folder, and
all of them end with the worker.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

FOLDER = "LMTOOL_VLLM_FOLDER"
"""The variable that names the folder which a worker shares with the processes of its engine."""
_HERE = Path(__file__).resolve().parent
_LONGEST = 64
"""Characters of a folder's path that leave room for the name of a socket in it: 104 are allowed in all."""


def main(words: list[str]) -> None:
    """Make the shared folder, and be the worker. words: see `worker.main`."""
    folder = make_folder()
    os.environ[FOLDER] = str(folder)
    expose_package(folder)
    from lmtool.cli.vllm import worker

    worker.main(words, folder)


def make_folder() -> Path:
    """A new folder that only this user may read."""
    parent = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="lmtool-vllm-", dir=parent if len(parent) < _LONGEST else "/tmp"))  # noqa: S108


def expose_package(folder: Path) -> None:
    """Let this process and those it starts import this package, and nothing else of the environment it lies in.

    `sys.path` is what multiprocessing hands on, PYTHONPATH what Ray does.
    """
    packages = folder / "packages"
    packages.mkdir()
    (packages / "lmtool").symlink_to(_HERE.parents[1], target_is_directory=True)
    sys.path[:] = [str(packages), *(entry for entry in sys.path if Path(entry).resolve() != _HERE)]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))


if __name__ == "__main__":
    main(sys.argv[1:])
elif __name__ == "__mp_main__":
    from lmtool.cli.vllm.watchdog import end_with_worker

    end_with_worker(Path(os.environ[FOLDER]))
