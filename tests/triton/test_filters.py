"""Top-k and top-p by the Triton kernel where its brackets are narrowed, have no room, or do not exist: with small tiles."""

from __future__ import annotations

import pytest
import torch

from packed_ss.reference.distributions import log_probabilities

from ..kernels.backends import BACKENDS, no_triton
from ..kernels.row_cases import DRAFT, Setting, sampling

pytest.importorskip("triton")

from packed_ss.triton_kernels import tiles

pytestmark = pytest.mark.skipif(bool(no_triton()), reason=no_triton())
[TRITON] = [backend for backend in BACKENDS if backend.name == "triton"]
VOCAB = 300
#: With room for every bracket but the widest, for narrow ones, and for none.
ROOMS = (128, 32, 1)
SETTINGS = [
    Setting(0.7, top_k, top_p)
    for top_k, top_p in ((0, 0.9031), (0, 0.3), (9, 1.0), (200, 0.7), (40, 0.9031), (0, 1 - 2**-40), (0, 1.0), (0, -1.0))
]


def row(name: str) -> torch.Tensor:
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(VOCAB, generator=rng)
    return {
        "random": x * 2,
        "flat": x * 0.05,
        "peaked": x * 12,
        "equal": torch.full((VOCAB,), -3.0),
        "two values": torch.where(x > 0.3, 1.25, 0.5),
        "few": torch.where(x > 1.8, x, -torch.inf),
        "descending": torch.linspace(5.0, -5.0, VOCAB),
    }[name]


@pytest.mark.parametrize("room", ROOMS)
@pytest.mark.parametrize("name", ["random", "flat", "peaked", "equal", "two values", "few", "descending"])
def test_every_way_through(monkeypatch: pytest.MonkeyPatch, name: str, room: int) -> None:
    monkeypatch.setattr(tiles, "filter_tile", lambda vocab, capability: tiles.FilterTile(64, 32, room, 16))
    x, settings = row(name), TRITON.some(SETTINGS, 4) if room > 1 else SETTINGS[:3]
    n = len(settings)
    ids, log_q = torch.zeros(n, 1, dtype=torch.int32), torch.zeros(n, 1, VOCAB)
    TRITON(
        "draw_rows", x.expand(n, 1, VOCAB), None, torch.ones_like(ids), None, *sampling(range(n), settings), DRAFT, ids, log_q,
        None, 0,
    )  # fmt: skip
    for one, got in zip(settings, log_q[:, 0], strict=True):
        scores = ((x - x.max()) / 0.7).tolist()
        want = torch.tensor(log_probabilities(scores, 1.0, one.top_k, max(one.top_p, 1e-300)), dtype=torch.float64)
        assert torch.equal(got.isinf(), want.isinf()), one
        torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-6)
