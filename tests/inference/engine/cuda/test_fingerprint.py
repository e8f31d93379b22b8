"""The digest of a model's weights: the same wherever they are."""

from __future__ import annotations

import pytest
import torch

from lmtool.inference.engine import fingerprint


@pytest.mark.cuda
def test_on_a_gpu(gpu, monkeypatch):
    """Bytes are copied in parts; numbers, empty tensors and those that are not contiguous as well."""
    monkeypatch.setattr(fingerprint, "_COPIED_BYTES", 1000)
    tensors = [torch.randn(7001), torch.empty(0), torch.tensor(5.0), torch.ones(3, 4).T, torch.arange(9).bfloat16()]
    digests = [
        fingerprint.contents_digest({}, [(str(number), own.to(device)) for number, own in enumerate(tensors)])
        for device in ("cpu", gpu)
    ]
    assert digests[0] == digests[1]
