"""What-if beside the engine's sampler over many random steps: `python -m tests.lab what_if [STEPS]` (100,000)."""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.inference.engine.what_if_cases import check

BATCH = 50


def main() -> None:
    """Run it; ends with 1 at the first bound that does not hold."""
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    counts: Counter[str] = Counter()
    began = time.monotonic()
    for seed in range(-(-steps // BATCH)):
        counts += check(BATCH, seed)
    sys.stdout.write(f"{steps} steps in {time.monotonic() - began:.0f} s: {dict(counts)}; every bound holds\n")


if __name__ == "__main__":
    main()
