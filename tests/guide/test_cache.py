"""What was compiled lately."""

from lmtool.errors import ConstraintError
from lmtool.guide.cache import Cache


def test_unused_longest_goes_first():
    """Values stay within the bytes; the one that was not asked for the longest goes."""
    cache = Cache(100, 60)
    for name in "abc":
        cache.put(name, name.upper(), 30)
    assert cache.get("a", 0) == "A"
    cache.put("d", "D", 30)
    assert [cache.get(name, 0) for name in "abcd"] == ["A", None, "C", "D"]
    assert (len(cache), cache.bytes) == (3, 90)
    cache.put("a", "again", 10)
    assert cache.bytes == 70


def test_too_large_is_not_kept():
    """A value larger than all that may be kept leaves the others alone."""
    cache = Cache(100, 60)
    cache.put("a", "A", 90)
    cache.put("b", "B", 101)
    assert cache.get("b", 0) is None
    assert cache.get("a", 0) == "A"


def test_failures_are_forgotten_in_time():
    """An error is answered for its time, and a later success takes its place."""
    cache = Cache(100, 60)
    problem = ConstraintError("no")
    cache.put_failure("a", problem, now=10)
    assert cache.get("a", 69.9) is problem
    assert cache.get("a", 70) is None
    cache.put_failure("a", problem, now=80)
    cache.put("a", "A", 1)
    assert cache.get("a", 81) == "A"
    for number in range(5000):
        cache.put_failure(number, problem, now=100)
    assert cache.get(0, 101) is None
    assert cache.get(4999, 101) is problem
