"""Times that are over."""

import threading

from lmtool.guide.deadlines import Deadlines


def test_called_in_order():
    """Callbacks come in the order of their times, not of their adding."""
    deadlines, called, done = Deadlines(), [], threading.Event()
    deadlines.add(0.02, lambda: (called.append(2), done.set()))
    deadlines.add(0.01, lambda: called.append(1))
    assert done.wait(10)
    assert called == [1, 2]
    deadlines.close()


def test_nothing_after_close():
    """A closed clock calls nobody, and its thread ends."""
    deadlines, called = Deadlines(), []
    deadlines.add(60, lambda: called.append(1))
    thread = deadlines._thread
    assert thread is not None
    deadlines.close()
    thread.join(10)
    assert not thread.is_alive()
    assert called == []
