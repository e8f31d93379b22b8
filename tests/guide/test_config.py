"""The limits."""

from lmtool.guide.config import GuideConfig


def test_defaults():
    """At least one thread compiles and fills; a request waits ten seconds at most; failures are kept a minute."""
    config = GuideConfig()
    assert config.threads >= 1
    assert config.fill_threads >= 1
    assert (config.deadline, config.failure_seconds) == (10, 60)
