"""The health of one member."""

from __future__ import annotations

from lmtool.errors import ConnectError
from lmtool.routing.health import MAX_BACKOFF, Health


class TestHealth:
    """Up from a check that succeeds to a loss or a check that fails."""

    def test_a_member_begins_down_and_comes_up_with_a_check(self) -> None:
        """Before the first check there is nothing to say why it is down."""
        health = Health()
        assert (health.up, health.ever_up, health.error) == (False, False, None)
        health.succeed()
        assert (health.up, health.ever_up, health.error) == (True, True, None)

    def test_a_loss_takes_it_down_until_the_next_check(self) -> None:
        """It was up once, which stays known; the first check may follow at once."""
        health, lost = Health(), ConnectError("lost")
        health.succeed()
        health.lose(lost)
        assert (health.up, health.ever_up, health.error, health.failed_checks) == (False, True, lost, 0)
        health.succeed()
        assert (health.up, health.error) == (True, None)

    def test_checks_back_off_while_they_fail(self) -> None:
        """Doubled with each failure in a row, up to a limit; a success starts over."""
        health = Health()
        delays = [health.check_delay(2.0)]
        for _ in range(7):
            health.fail(ConnectError("down"))
            delays.append(health.check_delay(2.0))
        assert delays == [2.0, 2.0, 4.0, 8.0, 16.0, 32.0, 2.0 * MAX_BACKOFF, 2.0 * MAX_BACKOFF]
        health.succeed()
        assert health.check_delay(2.0) == 2.0
