"""Schemas of ``torch.ops.packed_ss.*``, the one place where they stand.

Shapes: N sequences, R rows, V vocabulary, B block size, W draft entries, C cache slots.  Arguments marked ``(a!)`` are written in
place.  A state is one operand, the list of its layout (`packed_ss.state.BLOCK_STATE`, `packed_ss.ordered_state.ORDERED_STATE`),
and so are the buffers of a call's rows (`packed_ss.rows`).

*Row operators* turn rows of logits into tokens: argmax_rows, draw_rows, verify_rows, and linear_argmax, which is the head and its
argmax in one.  *Advance operators* turn tokens into state: advance_block, advance_ordered, advance_native.  Where they are given
next_rows, they also write the rows of the next call: fixed shapes let them, and save a launch.  Where the shape depends on what
they find, as on a CPU, the list is empty, and pack_block or pack_ordered write the rows afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

_SAMPLING = "Tensor seed, Tensor temperature, Tensor top_k, Tensor top_p"
_NEXT_ORDERED = (
    "int mask_token_id, int spare_slot, int next_waiting_rows, int next_window, bool next_drafts, bool next_verifies, "
    "int[] next_cuts, Tensor(b!)[] next_rows"
)

SCHEMAS = (
    "uniform_noise(Tensor seed, Tensor position, int stream, int vocab_size) -> Tensor",
    "rope_store(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor? query_scale, Tensor slots, "
    "Tensor(a!) k_cache, Tensor(b!) v_cache) -> Tensor",
    "tail_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor cache_len, Tensor tail_mask, float scale) -> Tensor",
    "linear_argmax(Tensor x, Tensor weight) -> Tensor",
    "argmax_rows(Tensor logits, Tensor? rows, Tensor? positions, Tensor? draft, Tensor(a!) ids, Tensor(b!)? probability) -> ()",
    f"draw_rows(Tensor logits, Tensor? rows, Tensor positions, Tensor? draft, {_SAMPLING}, int stream, Tensor(a!) ids, "
    "Tensor(b!)? log_q, Tensor(c!)? next_ids, int next_column) -> ()",
    f"verify_rows(Tensor logits, Tensor positions, {_SAMPLING}, Tensor draft, Tensor draft_log_q, Tensor(a!) ids, "
    "Tensor(b!) accepted) -> ()",
    "pack_block(Tensor[] state, int mask_token_id, int verifier_rows, int block_size, int[] cuts, Tensor(a!)[] rows) -> ()",
    "pack_ordered(Tensor[] state, int mask_token_id, int spare_slot, int waiting_rows, int window, bool drafts, bool verifies, "
    "int[] cuts, Tensor(a!)[] rows) -> ()",
    "advance_block(Tensor ids, Tensor? accepted, Tensor(a!)[] state, int verifier_rows, int block_size, int[] cuts, int shift, "
    "int mask_token_id, int next_verifier_rows, int[] next_cuts, Tensor(b!)[] next_rows) -> ()",
    "advance_ordered(Tensor ids, Tensor? probability, Tensor? accepted, Tensor(a!)[] state, int waiting_rows, int window, "
    f"bool verifies, int[] cuts, bool by_confidence, {_NEXT_ORDERED}) -> ()",
    f"advance_native(Tensor ids, Tensor probability, Tensor(a!)[] state, int window, float threshold, {_NEXT_ORDERED}) -> ()",
    "compact_cache(Tensor(a!) keys, Tensor(b!) values, Tensor cache_len, Tensor first_moved, Tensor moved_from) -> ()",
)


@functools.cache
def _names() -> dict[str, tuple[str, ...]]:
    parsed = [torch._C.parse_schema(schema) for schema in SCHEMAS]
    return {schema.name: tuple(argument.name for argument in schema.arguments) for schema in parsed}


def named_arguments(op: str, arguments: Sequence[Any]) -> dict[str, Any]:
    """What an operator is given, by the names in its schema."""
    return dict(zip(_names()[op], arguments, strict=True))
