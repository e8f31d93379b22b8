"""A constraint of the simplest kind: at each step a set of ids, then the end. Plain Python, for tests of the engine."""

from __future__ import annotations

from concurrent.futures import Future

from lmtool.core.errors import ConstraintError
from lmtool.core.types import Constraint


class StepGuide:
    """An `interfaces.Guide` that allows one of a set of ids at each step, and eos behind the last one.

    sluggish: whether it says of two masks out of three that nobody should wait for them.
    """

    def __init__(self, steps, eos, at=0, *, sluggish=False):
        self.steps, self.eos, self.at, self.problem = steps, eos, at, None
        self.sluggish = sluggish
        self.warnings = ("a warning",)

    @property
    def slow(self):
        return self.sluggish and self.at % 3 < 2

    def advance(self, token):
        if token not in self.allowed():
            self.problem = ConstraintError(f"{token} is not allowed at {self.at}")
        self.at += 1

    def allowed(self):
        return self.steps[self.at] if self.at < len(self.steps) else {self.eos}

    def forced(self):
        return []

    def accepts(self, draft):
        ahead = [*self.steps[self.at :], {self.eos}]
        fits = [token in step for token, step in zip(draft, ahead, strict=False)]
        return [*fits, False].index(False)

    def fork(self):
        return StepGuide(self.steps, self.eos, self.at, sluggish=self.sluggish)

    def may_end(self):
        return self.at >= len(self.steps)

    def ended(self):
        return self.may_end()

    def error(self):
        return self.problem


class StepCompiler:
    """An `interfaces.GuideCompiler`: `7,8;9` allows 7 or 8, then 9. It is done when `finish` is called, or at once."""

    def __init__(self, eos, *, at_once=True, sluggish=False):
        self.eos, self.at_once, self.sluggish = eos, at_once, sluggish
        self.waiting: list[tuple[Constraint, Future]] = []
        self.closed = False

    def compile(self, constraint):
        answer = Future()
        self.waiting.append((constraint, answer))
        if self.at_once:
            self.finish()
        return answer

    def finish(self):
        """Answer everything that waits; `bad` cannot be compiled."""
        for constraint, answer in self.waiting:
            if not answer.set_running_or_notify_cancel():
                continue
            if constraint.text == "bad":
                answer.set_exception(ConstraintError("this is bad"))
            else:
                steps = [{int(one) for one in step.split(",")} for step in constraint.text.split(";")]
                answer.set_result(StepGuide(steps, self.eos, sluggish=self.sluggish))
        self.waiting.clear()

    def fill(self, rows, mask):
        for guide, row in rows:
            mask[row] = 0
            for token in guide.allowed():
                bit = 1 << token % 32
                mask[row, token // 32] |= bit - (1 << 32 if bit >> 31 else 0)

    def fill_drafts(self, rows, mask):
        for guide, row, draft in rows:
            ahead = guide.fork()
            self.fill([(ahead, row)], mask)
            for at, token in enumerate(draft, start=row + 1):
                ahead.advance(token)
                self.fill([(ahead, at)], mask)

    def close(self):
        self.closed = True


def steps(text):
    """A constraint for `StepCompiler`."""
    return Constraint("regex", text)
