"""Schemas of ``torch.ops.packed_ss.*``, the one place where they stand.

Shapes: N sequences, R rows, V vocabulary, B block size, W = B - 1, C cache slots, T token capacity.  Arguments marked
``(a!)`` are written in place; everything a call changes is marked.

The state that the resolves advance (see `packed_ss.state.DecodeState`):
tokens [N, T] int32, length / cache_len / draft_len / finish_reason / nfe / limit / prompt_length [N] int32,
draft [N, W] int32, advances [N, calls] int32, stops [S, M] int32 (right-aligned, padded with -1).

A resolve also writes the rows of the next call where it is given their buffers (next_ids, next_positions, next_slots
[N, R'] int32, all or none) and that call's shape: fixed shapes let it, and save a launch.  Where the shape depends on what
the resolve finds, as on a CPU, pack_block writes them afterwards.

The ordered layout (`packed_ss.layouts.ordered`) has operators of two kinds.  argmax_rows, draw_rows and verify_rows turn rows of
logits into tokens, -1 where a row has no finite maximum; resolve_ordered and resolve_native turn these into the next state
(`packed_ss.ordered_state.OrderedState`), compact_cache moves what a resolve has moved, and pack_ordered writes the next rows.
"""

_STATE = (
    "Tensor(a!) tokens, Tensor(b!) length, Tensor(c!) cache_len, Tensor(d!) draft, Tensor(e!) draft_len, "
    "Tensor(f!) finish_reason, Tensor(g!) nfe, Tensor(h!) advances, Tensor limit, Tensor prompt_length, Tensor stops, "
    "int verifier_rows, int block_size, int[] cuts, int shift, "
    "int mask_token_id, int next_verifier_rows, int[] next_cuts, Tensor(i!)? next_ids, Tensor(j!)? next_positions, "
    "Tensor(k!)? next_slots"
)
_ORDERED = (
    "Tensor(a!) tokens, Tensor(b!) length, Tensor(c!) cache_len, Tensor(d!) finish_reason, Tensor(e!) nfe, Tensor(f!) advances, "
    "Tensor(g!) end, Tensor(h!) stopped, Tensor prompt_length, Tensor stops, Tensor(i!) order, Tensor(j!) draft, "
    "Tensor(k!) waiting, Tensor(l!) cached, Tensor(m!) source, Tensor(n!) moved, Tensor(o!) retained"
)
_SAMPLING = "Tensor seed, float temperature, int top_k, float top_p"

SCHEMAS = (
    "uniform_noise(Tensor seed, Tensor position, int stream, int vocab_size) -> Tensor",
    "rope_store(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, Tensor? query_scale, Tensor slots, "
    "Tensor(a!) k_cache, Tensor(b!) v_cache) -> Tensor",
    "tail_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor cache_len, Tensor tail_mask, float scale) -> Tensor",
    "pack_block(Tensor tokens, Tensor length, Tensor cache_len, Tensor draft, Tensor draft_len, int mask_token_id, "
    "int verifier_rows, int block_size, int[] cuts, Tensor(a!) ids, Tensor(b!) positions, Tensor(c!) slots) -> ()",
    "linear_argmax(Tensor x, Tensor weight) -> (Tensor, Tensor)",
    f"resolve_argmax(Tensor best, Tensor ids, {_STATE}) -> ()",
    f"resolve_greedy(Tensor logits, {_STATE}) -> ()",
    f"resolve_coupled(Tensor logits, {_STATE}, {_SAMPLING}) -> ()",
    f"resolve_match(Tensor logits, {_STATE}, {_SAMPLING}) -> ()",
    f"resolve_rejection(Tensor logits, {_STATE}, {_SAMPLING}, Tensor(l!) draft_log_q) -> ()",
    "argmax_rows(Tensor logits, bool probability) -> (Tensor, Tensor)",
    f"draw_rows(Tensor logits, Tensor rows, Tensor positions, {_SAMPLING}, int stream, Tensor(a!) ids, Tensor(b!)? log_q) -> ()",
    f"verify_rows(Tensor logits, Tensor rows, Tensor positions, {_SAMPLING}, Tensor draft, Tensor draft_log_q) "
    "-> (Tensor, Tensor)",
    f"resolve_ordered(Tensor ids, Tensor? probability, Tensor? accepted, {_ORDERED}, int waiting_rows, int window, "
    "bool verifies, int[] cuts, bool by_confidence) -> ()",
    f"resolve_native(Tensor ids, Tensor probability, {_ORDERED}, int window, float threshold) -> ()",
    "compact_cache(Tensor(a!) keys, Tensor(b!) values, Tensor cache_len, Tensor source, Tensor moved) -> ()",
    "pack_ordered(Tensor tokens, Tensor cache_len, Tensor order, Tensor draft, Tensor waiting, int mask_token_id, "
    "int spare_slot, int waiting_rows, int window, bool drafts, bool verifies, int[] cuts, Tensor(a!) ids, Tensor(b!) positions, "
    "Tensor(c!) slots, Tensor(d!) tail_mask, Tensor(e!) consulted) -> ()",
)
