"""What people would decode the same weights with instead, as candidates of the same run.

transformers     `generate`, greedy, with its cache
prompt-lookup    the same, assisted by n-grams of the prompt and the output
compiled         a greedy loop of one captured, torch.compile'd call per token (GPU)
flashinfer       the linear schedule with FlashInfer's `chain_speculative_sampling` as its verification (GPU, temperature 1)

They need a causal model whose function is the decoder's: a Nemotron-Labs-Diffusion checkpoint is a Ministral 3 in its
autoregressive mode.  SetDLM verifies with MASK rows, which no causal class of transformers computes, so that ordered models
have no baselines.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...decoder import Decoder
from ...models import nemotron
from ...models.export import rope_json
from ...models.rope import angles, rotate
from ...models.transformer import Transformer
from ...resolve import Resolver
from ...sampling import process
from .measured import Measured

#: Baselines of greedy decoding and of sampling.
GREEDY_BASELINES = ("transformers", "prompt-lookup", "compiled")
SAMPLING_BASELINES = ("flashinfer",)
#: Tokens that prompt lookup proposes at a time: the value in transformers' own examples.
LOOKUP_TOKENS = 10


def unavailable(baseline: str, model: Transformer) -> str:
    """Why a baseline cannot decode this model here, in a sentence; empty where it can.  Raise ValueError for an unknown name."""
    if baseline not in (*GREEDY_BASELINES, *SAMPLING_BASELINES):
        raise ValueError(
            f"the baseline is {baseline!r}, but it must be one of {', '.join((*GREEDY_BASELINES, *SAMPLING_BASELINES))}"
        )
    if model.config.layout != "block":
        return "no causal class of transformers computes what an ordered model verifies with, a MASK row in place of a token."
    if baseline in ("compiled", "flashinfer") and not model.head.weight.is_cuda:
        return "it captures CUDA graphs and needs a GPU." if baseline == "compiled" else "its kernels need a GPU."
    if baseline == "flashinfer":
        if importlib.util.find_spec("flashinfer") is None:
            return "FlashInfer is not installed."
        from flashinfer import sampling

        if not hasattr(sampling, "chain_speculative_sampling"):
            return "this FlashInfer has no chain_speculative_sampling."
    return ""


def make_baseline(baseline: str, model: Transformer, max_length: int) -> Any:
    """A baseline as an `Engine`; ``max_length`` is of prompt and output.  For one that is not `unavailable`."""
    if baseline == "compiled":
        return CompiledLoop(model, max_length)
    if baseline == "flashinfer":
        from flashinfer.sampling import chain_speculative_sampling

        return ChainVerified(model, max_length, chain_speculative_sampling)
    return TransformersGenerate(model, lookup=LOOKUP_TOKENS if baseline == "prompt-lookup" else None)


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
    named: list[tuple[str, Tensor]] = []
    for parameter, parts in tensors.items():
        weight = model.get_parameter(parameter).detach()
        named += zip((name for name, _ in parts), weight.split([shape[0] for _, shape in parts]), strict=True)
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
        self._slots = torch.arange(max_length, device=weight.device)
        self._step = (compiled or self._captured)(self._call)

    def _captured(self, step: Callable[..., Tensor]) -> Callable[..., Tensor]:
        for cache in (self._keys, self._values):  # written in place: without this torch would not capture the call
            torch._dynamo.mark_static_address(cache)
        return torch.compile(step, mode="reduce-overhead")

    def _call(self, ids: Tensor, positions: Tensor) -> Tensor:
        """The argmax after the last of ``ids`` [1, R] at ``positions`` [R], whose keys and values go into the cache."""
        model = self.model
        cos, sin, scale = angles(model.config.rope, model.frequencies, positions[None])
        seen = self._slots[None] <= positions[:, None]

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
        stops, device = set(self.model.config.eos_token_ids), self._slots.device
        _synchronize(device)
        begin = time.perf_counter()
        token = self._call(torch.tensor([prompt], device=device), self._slots[: len(prompt)])
        tokens = [int(token)]
        while tokens[-1] not in stops and len(tokens) < cap:
            at = len(prompt) + len(tokens) - 1
            # A clone, for the next replay writes over what this one returns.
            token = self._step(token[None], self._slots[at : at + 1]).clone()
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

    Everything else is ours; the coins and the corrections are its own, so that texts have the model's law but are not those of
    a seed.
    """

    separate = False

    def __init__(self, model: Transformer, max_length: int, chain: Callable[..., Any], schedule: str = "linear") -> None:
        # Eager: its generator's state cannot be part of a captured graph.
        self._decoder = Decoder(model, schedule, max_length=max_length, runtime="eager")
        self._decoder.resolver = _ChainResolver(self._decoder.layout, chain)
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


class _ChainResolver(Resolver):
    """Verify by ``chain``, batch 1, where no verifier row of a call but the last is without a draft."""

    def __init__(self, layout: Any, chain: Callable[..., Any]) -> None:
        super().__init__(layout)
        self._chain = chain

    def verify(self, logits: Tensor, predicts: Tensor, state: Any, ids: Tensor, accepted: Tensor) -> None:
        v = ids.shape[1]
        target = process(logits[:, :v], state.temperature, state.top_k, state.top_p).softmax(-1)
        accepted.zero_()
        if v == 1:
            ids.copy_(torch.multinomial(target[:, 0], 1))
            return
        drafts = state.draft_log_q[:, : v - 1].exp()
        out, _, emitted = self._chain(drafts, state.draft[:, : v - 1].contiguous(), target)
        ids.copy_(out)
        accepted.copy_(torch.arange(v, device=ids.device) < emitted[:, None])


def _reason(tokens: Sequence[int], stops: Sequence[int]) -> str:
    return "stop" if tokens and tokens[-1] in stops else "length"


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
