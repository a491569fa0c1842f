"""The first call: the prompt and the first proposal block together (App. E.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..rows import Rows, pack_bits

#: Prompt rows of one pass.  A longer prompt goes through the model in several passes, counted as the one call they are.
CHUNK = 1024


def prefill_passes(
    prompts: Sequence[Sequence[int]], masks: int, mask_token_id: int, spare_slot: int, device: torch.device
) -> Iterator[tuple[Rows, bool]]:
    """Rows of the passes that make up the first call, each with whether it is the last one, whose logits are wanted.

    The last pass ends in the last prompt token, the only verifier row, and ``masks`` MASK rows at the positions after the
    prompt, which see all of it.  Prompts of different lengths are padded on the left; a pad row has position 0, writes to
    the spare slot and is seen by nobody.
    """
    lengths = np.array([len(prompt) for prompt in prompts])
    columns = int(lengths.max()) - 1  # prompt rows but the last, which must be in the last pass for every sequence
    bounds = [*range(0, columns, CHUNK)][1:] + [columns] if columns else [0]
    begin = 0
    for end in bounds:
        last = end == columns
        yield _pass(prompts, lengths, begin, end, masks if last else None, mask_token_id, spare_slot, device), last
        begin = end


def _pass(
    prompts: Sequence[Sequence[int]],
    lengths: np.ndarray,
    begin: int,
    end: int,
    masks: int | None,
    mask_token_id: int,
    spare_slot: int,
    device: torch.device,
) -> Rows:
    """Columns begin ... end-1 of the left-padded prompts; with ``masks`` given, the last token and the MASK rows too."""
    tail = 0 if masks is None else 1 + masks
    longest = int(lengths.max())
    column = np.concatenate([np.arange(begin, end), np.arange(longest - 1, longest - 1 + tail)])
    position = column[None] - (longest - lengths)[:, None]  # negative: padding
    real = position >= 0
    ids = np.full(position.shape, mask_token_id, dtype=np.int32)
    for i, prompt in enumerate(prompts):
        known = real[i] & (position[i] < len(prompt))
        ids[i, known] = np.asarray(prompt, dtype=np.int32)[position[i, known]]
    cached = np.maximum(begin - (longest - lengths), 0)
    tail_slot = position - cached[:, None]
    seen_until = np.where(position >= lengths[:, None], (lengths + (masks or 0) - cached - 1)[:, None], tail_slot)
    seen_until = np.where(real, seen_until, 0)
    width = int(tail_slot.max()) + 1
    visible = np.arange(width)[None, None] <= seen_until[:, :, None]

    def put(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)).to(device)

    predicts = np.full(position.shape, -1, dtype=np.int32)
    if masks is not None:  # the last token predicts the next one, a MASK row its own position; the first MASK row has no use
        predicts[:, end - begin] = lengths
        predicts[:, end - begin + 2 :] = position[:, end - begin + 2 :]
    return Rows(
        ids=put(ids),
        positions=put(np.where(real, position, 0)),
        slots=put(np.where(real, position, spare_slot)),
        predicts=put(predicts),
        tail_mask=put(pack_bits(visible)),
        cache_len=put(cached),
    )
