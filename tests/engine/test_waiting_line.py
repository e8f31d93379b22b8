"""Who gets a place first: the more urgent, then clients in turn, then who came first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmtool.engine.sequence import Sequence
from lmtool.engine.waiting_line import WaitingLine, rank


def waiting(number, client="a", priority=0):
    """A sequence of a client."""
    return Sequence(number, [1], 1, 2, client=client, priority=priority)


def line_of(*sequences):
    """A line that these joined in order."""
    line = WaitingLine()
    for sequence in sequences:
        line.join(sequence)
    return line


def serve(line, count=None):
    """The numbers of the first `count` (None: all), as they get their places."""
    numbers = []
    for sequence in line:
        if len(numbers) == count:
            break
        line.serve(sequence)
        numbers.append(sequence.number)
    return numbers


def test_one_client_in_order():
    """A client's own sequences are served in order of arrival."""
    assert serve(line_of(*map(waiting, range(1, 6)))) == [1, 2, 3, 4, 5]


def test_clients_take_turns():
    """Clients that wait at once are served one sequence a round."""
    line = line_of(*[waiting(n) for n in range(1, 5)], *[waiting(n, "b") for n in (5, 6)], waiting(7, "c"))
    assert serve(line) == [1, 5, 7, 2, 6, 3, 4]


def test_a_newcomer_joins_the_round_being_served():
    """Who comes later waits for one of each other client, and catches up nothing for the time it was away."""
    line = line_of(*[waiting(n) for n in range(1, 10)])
    assert serve(line, 4) == [1, 2, 3, 4]
    for number in (10, 11):
        line.join(waiting(number, "b"))
    assert serve(line) == [10, 5, 11, 6, 7, 8, 9]


def test_what_left_the_line_costs_no_turn():
    """Cancelled sequences do not push their client's later ones back."""
    many = [waiting(n) for n in range(1, 10)]
    line = line_of(*many)
    for sequence in many:
        line.remove(sequence)
    line.join(waiting(10, "b"))
    line.join(waiting(11, "b"))
    line.join(waiting(12))
    assert serve(line) == [10, 12, 11]


def test_priority_comes_first():
    """A lower number is served before any higher one, whoever it belongs to; turns hold within a number."""
    line = line_of(waiting(1), waiting(2, "b", 3), waiting(3), waiting(4, "b", -1), waiting(5, "a", -1))
    assert serve(line) == [4, 5, 1, 3, 2]


def test_its_own_place_again():
    """What gave its place back ranks where it did."""
    line = line_of(*[waiting(n) for n in (1, 2, 3)])
    first, *_ = line
    serve(line, 2)
    line.rejoin(first)
    assert first in line
    assert serve(line) == [1, 3]


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=60))
def test_fair(events):
    """However sequences arrive (a name) and are served (None): while a client waits, no other is two rounds ahead."""
    line, number = WaitingLine(), 0
    since: dict[str, dict[str, int]] = {}
    for event in events:
        if event is not None:
            number += 1
            line.join(waiting(number, event))
            since.setdefault(event, {})
        elif len(line):
            first = next(iter(line))
            line.serve(first)
            for client, others in since.items():
                others[first.client] = 0 if client == first.client else others.get(first.client, 0) + 1
            if first.client in since:
                since[first.client] = {}
        since = {client: others for client, others in since.items() if any(s.client == client for s in line)}
        assert all(count <= 2 for others in since.values() for count in others.values())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.booleans()), max_size=60))
def test_newcomers_rank_behind_the_served(events):
    """Nobody who joins ranks before one that has a place, unless it is more urgent."""
    line, served = WaitingLine(), []
    for number, (client, priority, serves) in enumerate(events):
        joined = waiting(number, client, priority)
        line.join(joined)
        assert all(rank(joined) > rank(other) for other in served if joined.priority >= other.priority)
        if serves:
            served.append(next(iter(line)))
            line.serve(served[-1])


def test_coming_back_at_once_gains_nothing():
    """A client that sends its next request as soon as one is served does not keep another's second one waiting."""
    line = line_of(*[waiting(n) for n in (1, 2, 3)], waiting(4, "b"))
    assert serve(line, 2) == [1, 4]
    line.join(waiting(5, "b"))
    assert serve(line, 1) == [2]


def test_waiting_ages():
    """After seven others that came later, whoever has waited longest is next, and keeps its place against all."""
    line = line_of(waiting(1, "a", 9), *[waiting(n, "b", -5) for n in range(2, 20)])
    patient = next(s for s in line if s.number == 1)
    assert serve(line, 9) == [2, 3, 4, 5, 6, 7, 8, 1, 9]
    assert rank(patient) < rank(waiting(0, "b", -5))


def test_the_paused_do_not_age():
    """A paused sequence is passed over, and holds nobody up."""
    line = line_of(waiting(1), *[waiting(n, "b", -5) for n in range(2, 20)])
    next(s for s in line if s.number == 1).paused = True
    assert serve(line) == list(range(2, 20))
