"""Kept chunks are found by their ids alone, stay while used, and go least recently used first."""

from __future__ import annotations

from lmtool.engine.prefix_cache import PrefixCache

TEXT = list(range(100))


def filled(*, chunks=3):
    """A cache of chunks of 4 ids with the beginning of `TEXT`, held by one sequence."""
    cache, held = PrefixCache(4), []
    for n in range(chunks):
        parent = held[-1] if held else None
        held.append(cache.add(parent, TEXT[4 * n : 4 * n + 4], [2 * n + 1, 2 * n + 2]))
    return cache, held


def test_the_longest_beginning():
    """Chunks match from the start as far as the ids are the same; a chunk counts only behind its own beginning."""
    cache, held = filled()
    assert cache.match(TEXT, 100) == held
    assert cache.match(TEXT, 8) == held[:2]
    assert cache.match([*TEXT[:7], 0, *TEXT[8:]], 100) == held[:1]
    assert cache.match(TEXT[4:], 100) == []


def test_the_last_position_is_always_computed():
    """What a prompt's last position predicts is not kept: at least that one position is left over."""
    assert [PrefixCache(4).reusable(length) for length in (0, 1, 4, 5, 8, 9)] == [0, 0, 0, 4, 4, 8]


def test_the_first_one_stays():
    """A chunk that is there already is held once more; the newcomer keeps its own blocks."""
    cache, held = filled(chunks=1)
    again = cache.add(None, TEXT[:4], [8, 9])
    assert again is held[0]
    assert (again.blocks, again.users) == ((1, 2), 2)


def test_what_is_used_stays():
    """Only chunks without a user can be given up: an end before its beginning, the unused longest first."""
    cache, held = filled()
    other = cache.add(None, [7, 7, 7, 7], [8, 9])
    assert cache.idle_blocks == 0
    cache.release(held)
    cache.release([other])
    assert cache.idle_blocks == 8
    cache.hold(held[:1])
    assert [cache.evict(), cache.evict(), cache.evict()] == [(5, 6), (3, 4), (8, 9)]
    assert cache.idle_blocks == 0
    assert cache.match(TEXT, 100) == held[:1]
    assert (cache.blocks, cache.counts.evicted) == (2, 6)
