"""A bias of many ids."""

from __future__ import annotations

import pickle
from array import array

import pytest

from lmtool.core.logit_bias import MANY, PackedBias, pack_bias


def test_a_mapping() -> None:
    """It is read like any mapping, and equals one of the same ids and numbers."""
    bias = PackedBias(array("q", [7, 3]), array("d", [-100.0, 2.5]))
    assert (len(bias), list(bias), bias[3], bias.get(4)) == (2, [7, 3], 2.5, None)
    assert bias == {7: -100.0, 3: 2.5}
    with pytest.raises(KeyError):
        bias[4]


def test_packed() -> None:
    """A few ids stay as they are; many are packed, in their order, and come from another process as they went."""
    few, many = dict.fromkeys(range(MANY - 1), 1.0), dict.fromkeys(range(MANY, 0, -1), 0.1)
    assert pack_bias(few) is few
    bias = pack_bias(many)
    assert isinstance(bias, PackedBias)
    assert list(bias.items()) == list(many.items())
    sent = pickle.dumps(bias)
    assert len(sent) < 16 * MANY + 200
    assert pickle.loads(sent) == many
    assert pickle.loads(pickle.dumps(pack_bias(many, b"{}"))).json == b"{}"
