"""What people would decode the same weights with instead: contenders of the same run, or the reason why one cannot run.

transformers     `generate`, greedy, with its cache
prompt-lookup    the same, assisted by n-grams of the prompt and the output
compiled         a greedy loop of one captured, torch.compile'd call per token (GPU)
flashinfer       the linear schedule with FlashInfer's `chain_speculative_sampling` as its verification (GPU, temperature 1)

They need a causal model whose function is the decoder's: a Nemotron-Labs-Diffusion checkpoint is a Ministral 3 in its
autoregressive mode.  SetDLM verifies with MASK rows, which no causal class of transformers computes, so that ordered models
have no peers.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..decoder import Decoder
from ..models import nemotron
from ..models.export import rope_json
from ..models.rope import angles, rotate
from ..models.transformer import Transformer
from ..ops import resolve
from ..sampling import Stream, gumbel, process
from .bench.measured import Measured

#: Peers of greedy decoding and of sampling.
GREEDY_PEERS = ("transformers", "prompt-lookup", "compiled")
SAMPLING_PEERS = ("flashinfer",)
#: Tokens that prompt lookup proposes at a time: the value in transformers' own examples.
LOOKUP_TOKENS = 10


def obstacle(peer: str, model: Transformer) -> str:
    """Why a peer cannot decode this model here, in a sentence; empty where it can.  Raises ValueError for an unknown name."""
    if peer not in (*GREEDY_PEERS, *SAMPLING_PEERS):
        raise ValueError(f"the peer is {peer!r}, but it must be one of {', '.join((*GREEDY_PEERS, *SAMPLING_PEERS))}")
    if model.config.layout != "block":
        return "no causal class of transformers computes what an ordered model verifies with, a MASK row in place of a token."
    if peer in ("compiled", "flashinfer") and not model.head.weight.is_cuda:
        return "it captures CUDA graphs and needs a GPU." if peer == "compiled" else "its kernels need a GPU."
    if peer == "flashinfer":
        if importlib.util.find_spec("flashinfer") is None:
            return "FlashInfer is not installed."
        from flashinfer import sampling

        if not hasattr(sampling, "chain_speculative_sampling"):
            return "this FlashInfer has no chain_speculative_sampling."
    return ""


def make_peer(peer: str, model: Transformer, max_length: int) -> Any:
    """A peer as an `Engine`; ``max_length`` is of prompt and output.  To be asked for only where `obstacle` has none."""
    if peer == "compiled":
        return CompiledLoop(model, max_length)
    if peer == "flashinfer":
        from flashinfer.sampling import chain_speculative_sampling

        return ChainVerified(model, max_length, chain_speculative_sampling)
    return TransformersGenerate(model, lookup=LOOKUP_TOKENS if peer == "prompt-lookup" else None)


def ministral3(model: Transformer, attention: str = "sdpa") -> Any:
    """``model``'s weights, the very tensors, in transformers' `Ministral3ForCausalLM`."""
    from transformers import AutoModelForCausalLM, Ministral3Config

    c = model.config
    # transformers multiplies by the query scale whether there is one or not.
    rope = {"llama_4_scaling_beta": 0.0, "original_max_position_embeddings": 1} | rope_json(c.rope)
    positions = int((c.rope.original_max_position or 256) * (c.rope.yarn_factor or 1))  # the value that it warns without
    config = Ministral3Config(
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        rms_norm_eps=c.rms_norm_eps,
        max_position_embeddings=positions,
        tie_word_embeddings=c.tie_word_embeddings,
        rope_parameters=rope,
        sliding_window=None,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    weight = model.embed.weight
    with torch.device(weight.device):  # rotary frequencies stay float32, as in its own from_pretrained
        causal = AutoModelForCausalLM.from_config(config, dtype=weight.dtype, attn_implementation=attention)
    state = {
        name.replace("encoder.", "model.").replace("diffusion_head", "lm_head"): part
        for name, part in checkpoint_parts(model, nemotron.tensor_map(c))
    }
    if c.tie_word_embeddings:
        state["lm_head.weight"] = weight
    causal.load_state_dict(state, strict=True, assign=True)
    return causal.requires_grad_(False).eval()


def checkpoint_parts(model: Transformer, tensors: Any) -> list[tuple[str, Tensor]]:
    """The checkpoint's tensors of a model, by name."""
    named = []
    for parameter, parts in tensors.items():
        whole = model.get_parameter(parameter).detach()
        named += zip((name for name, _ in parts), whole.split([shape[0] for _, shape in parts]), strict=True)
    return named


class TransformersGenerate:
    """transformers' `generate`: greedy, KV cache, batch 1; with ``lookup`` tokens of prompt lookup at a time.

    Model calls are counted, and on a CPU timed, by hooks.
    """

    rows = None
    separate = False

    def __init__(self, model: Transformer, lookup: int | None = None) -> None:
        self._causal, self._stops = ministral3(model), list(model.config.eos_token_ids)
        self._lookup = {} if lookup is None else {"prompt_lookup_num_tokens": lookup}
        self._on_gpu = model.head.weight.is_cuda
        self._calls: list[float] = []
        self._causal.register_forward_pre_hook(lambda *_: self._calls.append(-time.perf_counter()))
        self._causal.register_forward_hook(self._ended)

    def _ended(self, *_: Any) -> None:
        self._calls[-1] += time.perf_counter()

    @torch.no_grad()
    def generate(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured:
        """``temperature`` must be 0."""
        ids = torch.tensor([prompt], device=self._causal.device)
        self._calls.clear()
        _synchronize(self._causal.device)
        begin = time.perf_counter()
        out = self._causal.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=cap,
            do_sample=False,
            use_cache=True,
            eos_token_id=self._stops or None,
            pad_token_id=self._stops[0] if self._stops else 0,
            **self._lookup,
        )
        _synchronize(self._causal.device)
        seconds = time.perf_counter() - begin
        tokens = out[0, len(prompt) :].tolist()
        return Measured(
            tokens=tokens,
            nfe=len(self._calls),
            advances=None if self._lookup else [1] * len(tokens),
            seconds=seconds,
            finish_reason=_reason(tokens, self._stops),
            model_seconds=None if self._on_gpu else sum(self._calls),
            first_model_seconds=None if self._on_gpu else self._calls[0],
        )

    generate_timed = generate


class CompiledLoop:
    """Greedy decoding as a loop of one compiled call per token over a static cache, captured as a CUDA graph by torch.compile.

    ``compiled`` turns the step into what runs; other than the default it is for tests.
    """

    rows = 1
    separate = False

    def __init__(self, model: Transformer, max_length: int, compiled: Callable[[Any], Any] | None = None) -> None:
        c, weight = model.config, model.head.weight
        self.model, self.max_length = model, max_length
        shape = (c.num_layers, 1, max_length, c.num_kv_heads, c.head_dim)
        self._keys, self._values = (torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(2))
        self._place = torch.arange(max_length, device=weight.device)
        self._step = (compiled or self._captured)(self._call)

    def _captured(self, step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        for cache in (self._keys, self._values):  # written in place: without this torch would not capture the call
            torch._dynamo.mark_static_address(cache)
        return torch.compile(step, mode="reduce-overhead")

    def _call(self, ids: Tensor, positions: Tensor) -> Tensor:
        """The argmax after the last of ``ids`` [1, R] at ``positions`` [R], whose keys and values go into the cache."""
        model = self.model
        cos, sin, scale = angles(model.config.rope, model.frequencies, positions[None])
        seen = self._place[None] <= positions[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            if scale is not None:
                q = q * scale[..., None, None].to(q.dtype)
            keys, values = self._keys[layer].index_copy_(1, positions, k), self._values[layer].index_copy_(1, positions, v)
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), attn_mask=seen, enable_gqa=True
            ).transpose(1, 2)

        return model(ids, attend, 1)[0].argmax(-1)

    @torch.no_grad()
    def generate(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured:
        """``temperature`` must be 0."""
        stops, device = set(self.model.config.eos_token_ids), self._place.device
        _synchronize(device)
        begin = time.perf_counter()
        token = self._call(torch.tensor([prompt], device=device), self._place[: len(prompt)])
        tokens = [int(token)]
        while tokens[-1] not in stops and len(tokens) < cap:
            at = len(prompt) + len(tokens) - 1
            # A clone, for the next replay writes over what this one returns.
            token = self._step(token[None], self._place[at : at + 1]).clone()
            tokens.append(int(token))
        seconds = time.perf_counter() - begin
        return Measured(
            tokens=tokens,
            nfe=len(tokens),
            advances=[1] * len(tokens),
            seconds=seconds,
            finish_reason=_reason(tokens, list(stops)),
        )

    generate_timed = generate


class ChainVerified:
    """Linear decoding at temperature > 0 whose verification is ``chain``, FlashInfer's `chain_speculative_sampling` or its like.

    The draft, the state and the commit are ours; the coins and the corrections are its own, so that texts have the model's law
    but are not those of a seed.
    """

    separate = False

    def __init__(self, model: Transformer, max_length: int, chain: Callable[..., Any], schedule: str = "linear") -> None:
        self._decoder = _ChainDecoder(model, schedule, max_length=max_length)
        self._decoder.chain = chain
        self.rows = max(call.rows for call in self._decoder.schedule.cycle)

    def generate(self, prompt: list[int], cap: int, temperature: float, seed: int) -> Measured:
        out = self._decoder.generate(prompt, max_new_tokens=cap, temperature=temperature, seed=seed, verification="rejection")
        return Measured(
            tokens=out.tokens[0].tolist(),
            nfe=out.nfe[0],
            advances=out.advances[0],
            seconds=out.seconds,
            finish_reason=out.finish_reason[0],
        )

    generate_timed = generate


class _ChainDecoder(Decoder):
    """The plain decoder, batch 1, with another verification: its calls have no verifier row without a draft but the last."""

    chain: Callable[..., Any]

    def _resolve(self, outputs: tuple[Tensor, ...], state: Any, request: Any, call: Any, following: Any = None) -> None:
        (logits,) = outputs
        filters = (request.temperature, request.top_k, request.top_p)
        shape = (call.verifier_rows, call.block_size, list(call.cuts), call.shift, 0, 0, [], None, None, None)
        bound = resolve._Call(*state.operands(), *shape)
        v, h, advance = call.verifier_rows, None, None
        if v:
            target = process(logits[:, :v], *filters).softmax(-1)
            if v > 1:
                drafts = state.draft_log_q[:, : v - 1].exp()
                out, _, emitted = self.chain(drafts, state.draft[:, : v - 1].contiguous(), target)
                h = emitted.long()
            else:
                out, h = torch.multinomial(target[:, 0], 1), torch.zeros_like(state.length, dtype=torch.int64)
            advance = resolve.commit(bound, out.clamp(min=0).int(), h, h + 1)
        if call.cuts:
            rows, count = resolve.retained_rows(bound, h, advance)
            log_q = process(resolve._rows_of(logits, rows), *filters).log_softmax(-1)
            place = state.length.unsqueeze(1) + torch.arange(log_q.shape[1], dtype=torch.int32, device=logits.device)
            noise = gumbel(state.seed, place, Stream.DRAFT, log_q.shape[-1])
            state.draft_log_q.copy_(log_q)
            resolve.retain(bound, (log_q + noise).argmax(-1).int(), count)
        resolve.finish(bound)


def _reason(tokens: Sequence[int], stops: Sequence[int]) -> str:
    return "stop" if tokens and tokens[-1] in stops else "length"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
