"""A worker of `lab gpu` without torch: what it does in a section is the section's name here."""

from __future__ import annotations

import json
import os
import sys
import time


def say(**answer) -> None:
    """One line out."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve sections by their names in `SECTIONS` of bench.gpu.settings."""
    settings = json.loads(sys.argv[1])
    if settings["device"] == "cuda:9":
        say(failed={"error": "ResourceError: device 'cuda:9' is not there", "traceback": []})
        return
    say(ready={"device": {"name": "toy"}, "packages": {}, "pid": os.getpid()})
    for line in sys.stdin:
        name = line.strip()
        say(part={"pid": os.getpid()})
        if name == "selfcheck":
            say(failed={"error": "ValueError: by design", "traceback": ["its last line"]}, healthy=True)
            return
        if name == "small":
            sys.stderr.write("killed by design\n")
            os._exit(3)
        if name == "load":
            say(part={"seen": [1]})
            time.sleep(60)
        say(part={"seen": [2]})
        say(done=0.1)


if __name__ == "__main__":
    main()
