"""Run a plan: batch 1, candidates in turns within each prompt, one record on disk per response.

Each prompt starts with another candidate, so that drift of the machine hits all alike.  A candidate decodes once unmeasured
before its first measured response, also after a stop in between.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers

from ... import __version__, cuda, ops
from ...models.loading import load_model
from ...models.tokenizer import load_tokenizer
from ...models.transformer import Transformer
from ..compare import chat_prompt
from ..tasks import Task
from .baselines import GREEDY_BASELINES, SAMPLING_BASELINES, make_baseline, unavailable
from .engines import Ours
from .latency import measure
from .measured import Engine
from .plan import Candidate, Plan, Setting
from .run_records import Recorder, Response, Run

#: New tokens of the unmeasured response.
WARM_UP = 16
#: One prompt's repeats have seeds from this apart.
_SEEDS = 1000


class Models:
    """Checkpoints and tokenizers by name, loaded once each."""

    def __init__(self, device: str, dtype: torch.dtype | None) -> None:
        self.device, self.dtype = device, dtype
        self._models: dict[tuple[str, str | None], Transformer] = {}
        self._tokenizers: dict[str, Any] = {}

    def model(self, name: str, adapter: str | None = None) -> Transformer:
        """The checkpoint, with a proposal-only adapter where one is named."""
        if (name, adapter) not in self._models:
            options = {} if adapter is None else {"adapter": adapter}
            self._models[name, adapter] = load_model(name, device=self.device, dtype=self.dtype, **options)
        return self._models[name, adapter]

    def tokenizer(self, name: str) -> Any:
        if name not in self._tokenizers:
            self._tokenizers[name] = load_tokenizer(name)
        return self._tokenizers[name]

    def release(self) -> None:
        """Let go of the weights, before another checkpoint's are loaded."""
        self._models.clear()


def baselines_of(model: Transformer) -> tuple[list[str], list[str], dict[str, str]]:
    """The baselines of greedy decoding and those of sampling that can run on a model here, and why the others cannot."""
    reasons = {baseline: unavailable(baseline, model) for baseline in (*GREEDY_BASELINES, *SAMPLING_BASELINES)}
    greedy, sampling = ([one for one in kind if not reasons[one]] for kind in (GREEDY_BASELINES, SAMPLING_BASELINES))
    return greedy, sampling, {baseline: why for baseline, why in reasons.items() if why}


def environment(device: str) -> dict[str, Any]:
    """What the records were made with and on."""
    on_gpu = device.startswith("cuda")
    return {
        "packed_ss": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "kernels": ops.kernels(device.split(":")[0]),
        "machine": torch.cuda.get_device_name() if on_gpu else f"CPU ({torch.backends.cpu.get_cpu_capability()})",
        "cores": os.cpu_count(),
        "load_average": round(os.getloadavg()[0], 2),
        **({"cuda": cuda.info()} if on_gpu else {}),
    }


def keys_of(setting: Setting) -> Iterator[tuple[int, int, Candidate]]:
    """(prompt's index, repeat, candidate) of a setting, in the order in which they run."""
    for i in range(setting.prompts):
        for repeat in range(setting.repeats):
            for j in range(len(setting.candidates)):
                yield i, repeat, setting.candidates[(i * setting.repeats + repeat + j) % len(setting.candidates)]


def resolved(setting: Setting, run: Run) -> Setting:
    """The setting with the block sizes that it left to the probe: of each schedule the one with the most tokens per second.

    Raise ValueError where the run holds no probe of a schedule.
    """

    def size(candidate: Candidate) -> int:
        totals: dict[int, list[float]] = {}
        for r in run.responses.values():
            if r.setting.startswith(f"probe/{setting.model}/") and r.schedule == candidate.schedule and r.block_size is not None:
                total = totals.setdefault(r.block_size, [0.0, 0.0])
                total[0] += r.tokens
                total[1] += r.seconds
        if not totals:
            raise ValueError(f"{candidate.name} has no block size and no probe: give a block size")
        return max(totals, key=lambda b: totals[b][0] / totals[b][1])

    open_ = [c for c in setting.candidates if c.block_size is None and c.window is None and not c.external]
    sizes = {c.name: size(c) for c in open_}
    chosen = [replace(c, block_size=sizes[c.name]) if c.name in sizes else c for c in setting.candidates]
    return replace(setting, candidates=tuple(chosen))


def run_setting(
    setting: Setting, task: Task, models: Models, recorder: Recorder, seed: int, progress: Callable[[], None] = lambda: None
) -> None:
    """Decode what of a setting the records lack.  ``progress`` is called once for each of `keys_of`, had or made."""
    setting = resolved(setting, recorder.run)
    tokenizer = models.tokenizer(setting.model)
    asked = task.prompts[: setting.prompts]
    prompts = [chat_prompt(tokenizer, prompt.text) for prompt in asked]
    longest = max(map(len, prompts), default=0) + setting.cap
    engines: dict[str, Engine] = {}

    def engine(candidate: Candidate) -> Engine:
        if candidate.name not in engines:
            made = _engine(candidate, models.model(setting.model, candidate.adapter), longest)
            for generate in (made.generate, made.generate_timed) if made.separate else (made.generate,):
                generate(prompts[0], min(setting.cap, WARM_UP), setting.temperature, seed)
            engines[candidate.name] = made
        return engines[candidate.name]

    for i, repeat, candidate in keys_of(setting):
        key = (setting.name, candidate.name, asked[i].id, repeat, False)
        if key not in recorder.run.responses:
            made, own = engine(candidate), seed + _SEEDS * i + repeat
            for timed in (True, False) if made.separate else (False,):
                out = (made.generate_timed if timed else made.generate)(prompts[i], setting.cap, setting.temperature, own)
                text = tokenizer.decode(out.tokens, skip_special_tokens=True)
                score = None if timed else task.score(asked[i], text)
                recorder.add(
                    Response(
                        setting=setting.name,
                        candidate=candidate.name,
                        prompt=asked[i].id,
                        repeat=repeat,
                        seed=own,
                        schedule=candidate.schedule,
                        block_size=candidate.block_size,
                        window=candidate.window,
                        rows=made.rows,
                        tokens=len(out.tokens),
                        nfe=out.nfe,
                        advances=out.advances,
                        seconds=out.seconds,
                        model_seconds=out.model_seconds,
                        first_model_seconds=out.first_model_seconds,
                        finish_reason=out.finish_reason,
                        text=text,
                        score=None if score is None else float(score),
                        timed=timed,
                    )
                )
        progress()


def _engine(candidate: Candidate, model: Transformer, max_length: int) -> Engine:
    return make_baseline(candidate.schedule, model, max_length) if candidate.external else Ours(model, candidate, max_length)


def run_plan(
    plan: Plan,
    tasks: Callable[[Setting], Task],
    models: Models,
    recorder: Recorder,
    progress: Callable[[str, int | None], None] = lambda what, total: None,
) -> None:
    """Everything that the records of a plan lack.

    ``progress(what, total)``: a setting of so many responses begins; ``progress(what, None)``: one of them is there.
    """
    for model in dict.fromkeys(setting.model for setting in plan.settings):
        for setting in plan.settings:
            if setting.model == model:
                progress(setting.name, setting.responses)
                run_setting(setting, tasks(setting), models, recorder, plan.seed, partial(progress, setting.name, None))
        if plan.latency_seconds and model not in recorder.run.latency:
            progress(f"latency/{model}", 1)
            recorder.note("latency", measure(models.model(model), model, seconds=plan.latency_seconds))
            progress(f"latency/{model}", None)
        models.release()
