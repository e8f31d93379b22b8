"""Rules read from SPEC.md, and how much of them the cases cover."""

from __future__ import annotations

from pathlib import Path

import lmtool.protocol.lmtp
from lmtool.measure.conformance.case import cases
from lmtool.measure.conformance.rules import GRADES, rules

NO_CASE = {
    "ERR-8": "it advises clients when to send a request again; a server that is full is not made from outside",
    "TRA-7": "over a pipe there is no address to dial; tests/spec starts the server itself",
    "TRA-13": "which other routes a port has is not LMTP's; tests/cli/serving walks them",
    "TRA-14": "a peer's own interval is not known; waiting a minute for its pings would double the time of the suite",
    "INF-5": "a peer cannot be made to load a model from outside",
    "LOAD-1": "a peer cannot be made to load a model from outside",
    "TXT-5": "not every peer has a pool; tests/spec reads and writes its entries, a recording shows them",
    "TXT-6": "not every peer has a pool; tests/gateway/pools breaks answers off on every wire, a recording shows one",
    "WAT-2": "who may watch is the peer's choice (WAT-4); tests/spec/test_lmtp_watch.py watches one",
    "WAT-3": "as WAT-2, and a reader that is too slow takes long to make",
    "WAT-5": "as WAT-2, and a peer's keys are not known",
    "WAT-6": "as WAT-2",
    "GEN-14": "who begins first shows only on a server that is full",
}
"""Rules that no case can hold a peer to from outside, and why."""


def test_every_rule_is_read() -> None:
    """Each line in bold of SPEC.md is a rule with its grade and a sentence."""
    text = (Path(lmtool.protocol.lmtp.__path__[0]) / "SPEC.md").read_text(encoding="utf-8")
    assert len(rules()) == sum(line.startswith("**") for line in text.splitlines()) > 60
    assert {rule.grade for rule in rules().values()} == set(GRADES)
    assert all(rule.sentence.endswith((".", ":")) and "\n" not in rule.sentence for rule in rules().values())
    assert rules()["GEN-3"].sentence == (
        "`max_tokens`, an integer from 0, is the most tokens the stream will have; 32 when left out."
    )


def test_every_rule_has_a_case() -> None:
    """Every rule has at least one case, or a reason why it has none."""
    covered = {rule for role in ("server", "client") for case in cases(role) for rule in case.rules}
    assert set(rules()) - covered == set(NO_CASE)
