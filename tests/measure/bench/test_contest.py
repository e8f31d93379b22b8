"""The rules of a contest: order, valid rounds, agreement of ids, ratios."""

from __future__ import annotations

import pytest

from lmtool.measure.bench.contest import Round, Timing, agreement, clearest_prompts, rotate, standings, timing


def timing_at(rate: float, **waits: float) -> Timing:
    return Timing(100, 16, 0.5, 100 / rate, 0.25, 50 / rate, waits)


def test_each_is_first_in_turn() -> None:
    """A round begins with the next one, and keeps the order."""
    assert [rotate(["a", "b", "c"], turn) for turn in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert rotate([], 3) == []


@pytest.mark.parametrize(("after", "steady"), [(100, True), (91, True), (89, False), (112, False)])
def test_a_round_is_steady_when_the_machine_is_as_fast_after_as_before(after: float, steady: bool) -> None:
    """The calibration kernel may differ by a tenth."""
    assert Round({}, 100.0, after).steady is steady


def test_ratios_are_taken_within_a_round() -> None:
    """Ours over the peer's, round by round: a slow round for both changes no ratio. Disturbed ones are left out."""
    rounds = [
        Round({"ours": timing_at(200), "peer": timing_at(100)}, 1, 1),
        Round({"ours": timing_at(20), "peer": timing_at(10)}, 1, 1),
        Round({"ours": timing_at(90), "peer": timing_at(30)}, 1, 1),
        Round({"ours": timing_at(1), "peer": timing_at(1000)}, 1, 0.5),
    ]
    by_name = standings(rounds, "ours")
    ratio = by_name["peer"].ratios["decode"]
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 3.0))
    assert by_name["ours"].ratios == {}
    ours = by_name["ours"].rates
    assert ours["decode"].median == pytest.approx(90)
    assert ours["decode_cpu"].median == pytest.approx(180)


def test_waits_are_those_of_steady_rounds() -> None:
    """In seconds; of an engine that does not tell there are none."""
    rounds = [
        Round({"ours": timing_at(2, first_mean=1, first_last=2, itl=0.1, gap=gap), "peer": timing_at(1)}, 1, after)
        for gap, after in ((0.25, 1), (0.5, 1), (0.75, 1), (9.0, 2))
    ]
    by_name = standings(rounds, "ours")
    assert {name: one.median for name, one in by_name["ours"].waits.items()} == {
        "first_mean": 1,
        "first_last": 2,
        "itl": 0.1,
        "gap": 0.5,
    }
    assert by_name["peer"].waits == {}


def test_no_steady_round_no_numbers() -> None:
    """Of a machine that was never quiet."""
    assert standings([Round({"ours": timing_at(1)}, 1, 2)], "ours") == {}


def test_a_contestant_that_failed_in_a_round_has_no_standing() -> None:
    """The others have theirs."""
    rounds = [Round({"ours": timing_at(2), "peer": timing_at(1)}, 1, 1), Round({"ours": timing_at(2)}, 1, 1)]
    assert list(standings(rounds, "ours")) == ["ours"]


class TestAgreement:
    """Greedy ids against the reference's."""

    def test_equal(self) -> None:
        """Everything is compared where nothing is near a tie."""
        result = agreement([[1, 2, 3]], [[1.0, 1.0, 1.0]], [[1, 2, 3]], "float32")
        assert (result.checked, result.wrong, result.holds) == (3, 0, True)

    def test_a_difference_behind_a_near_tie_is_none(self) -> None:
        """From there on the streams are two different texts."""
        gaps = [[1.0, 0.01, 1.0]]
        assert not agreement([[1, 2, 3]], gaps, [[1, 9, 9]], "float32").holds
        result = agreement([[1, 2, 3]], gaps, [[1, 9, 9]], "bfloat16")
        assert (result.checked, result.holds) == (1, True)

    def test_a_difference_before_it_is_one(self) -> None:
        """Then the peer's numbers do not count."""
        result = agreement([[1, 2], [3, 4]], [[1.0, 1.0]] * 2, [[1, 2], [3, 5]], "int8")
        assert (result.wrong, result.holds) == (1, False)

    def test_nothing_compared_is_no_agreement(self) -> None:
        """A check that cannot fail shows nothing."""
        assert not agreement([[1]], [[0.0]], [[1]], "float32").holds


def test_the_clearest_prompts() -> None:
    """Those with the clearest first ids, the clearest one first."""
    assert clearest_prompts(["a", "b", "c", "d"], [0.1, 2.0, 0.3, 1.0], 2) == ["b", "d"]
    assert clearest_prompts(["a", "b"], [0.5, 0.5], 3) == ["b", "a"]


ANSWER = {"prefill_s": 1.0, "prefill_cpu_s": 0.5, "total_s": 5.0, "total_cpu_s": 2.5, "lengths": [9, 9]}


class TestTiming:
    """A worker's answer."""

    def test_decoding_is_the_whole_run_minus_the_prompts(self) -> None:
        """The first token of each stream comes with the prompt."""
        run = timing(ANSWER, 32, 9)
        assert (run.tokens, run.decode_s, run.decode_cpu_s) == (16, 4.0, 2.0)
        assert run.rates == {"decode": 4.0, "decode_cpu": 8.0, "prefill": 32.0, "prefill_cpu": 64.0}

    def test_a_stream_that_ended_early_makes_no_number(self) -> None:
        """Every contestant does the same work."""
        with pytest.raises(ValueError, match="streams of 7 to 9 tokens instead of 9"):
            timing({**ANSWER, "lengths": [9, 7]}, 32, 9)

    def test_a_run_below_the_clock_makes_no_number(self) -> None:
        """A rate of nothing is none."""
        with pytest.raises(ValueError, match="too short"):
            timing({**ANSWER, "total_cpu_s": 0.5}, 32, 9)
