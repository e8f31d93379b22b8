"""Fingerprints of parts."""

from lmtool.core.fingerprint import fingerprint


def test_parts():
    """Every part counts, by name and value; their order does not."""
    base = {"dtype": "float32", "shape": (1, None), "path": object}
    assert fingerprint(base) == fingerprint(dict(reversed(base.items())))
    others = ({**base, "dtype": "bfloat16"}, {**base, "shape": (1, 0)}, {"dtype": "float32"}, {**base, "path": 5})
    assert len({fingerprint(base), *map(fingerprint, others)}) == 5
    assert len(fingerprint({"template": "\ud800"})) == 64
