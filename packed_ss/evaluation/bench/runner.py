"""Runs a plan: batch 1, contenders in turns within each prompt, one record on disk per response.

Each prompt starts with another contender, so that drift of the machine hits all alike.  A contender decodes once unmeasured
before its first measured response, also after a stop in between.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import transformers

from ... import __version__, cuda, ops
from ...models.loading import load_model
from ...models.tokenizer import load_tokenizer
from ...models.transformer import Transformer
from ..compare import chat_prompt
from ..peers import GREEDY_PEERS, SAMPLING_PEERS, make_peer, obstacle
from ..tasks import Task
from .engines import Ours
from .latency import measure
from .measured import Engine
from .plan import Cell, Contender, Plan
from .records import Recorder, Response, Run

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
        """Lets go of the weights, before another checkpoint's are loaded."""
        self._models.clear()


def peers_of(model: Transformer) -> tuple[list[str], list[str], dict[str, str]]:
    """The peers of greedy decoding and those of sampling that can run on a model here, and why the others cannot."""
    reasons = {peer: obstacle(peer, model) for peer in (*GREEDY_PEERS, *SAMPLING_PEERS)}
    able = [[peer for peer in kind if not reasons[peer]] for kind in (GREEDY_PEERS, SAMPLING_PEERS)]
    return *able, {peer: why for peer, why in reasons.items() if why}


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


def keys_of(cell: Cell) -> Iterator[tuple[int, int, Contender]]:
    """(prompt's index, repeat, contender) of a cell, in the order in which they run."""
    for i in range(cell.prompts):
        for repeat in range(cell.repeats):
            for j in range(len(cell.contenders)):
                yield i, repeat, cell.contenders[(i * cell.repeats + repeat + j) % len(cell.contenders)]


def resolved(cell: Cell, run: Run) -> Cell:
    """The cell with the block sizes that it left to the probe: of each schedule the one with the most tokens per second.

    Raises ValueError where the run holds no probe of a schedule.
    """

    def size(contender: Contender) -> int:
        totals: dict[int, list[float]] = {}
        for r in run.responses.values():
            if r.cell.startswith(f"probe/{cell.model}/") and r.schedule == contender.schedule and r.block_size is not None:
                total = totals.setdefault(r.block_size, [0.0, 0.0])
                total[0] += r.tokens
                total[1] += r.seconds
        if not totals:
            raise ValueError(f"{contender.name} has no block size and no probe: give a block size")
        return max(totals, key=lambda b: totals[b][0] / totals[b][1])

    open_ = [c for c in cell.contenders if c.block_size is None and c.window is None and not c.peer]
    sizes = {c.name: size(c) for c in open_}
    chosen = [replace(c, block_size=sizes[c.name]) if c.name in sizes else c for c in cell.contenders]
    return replace(cell, contenders=tuple(chosen))


def run_cell(
    cell: Cell, task: Task, models: Models, recorder: Recorder, seed: int, progress: Callable[[], None] = lambda: None
) -> None:
    """Decodes what of a cell the records lack.  ``progress`` is called once for each of `keys_of`, had or made."""
    cell = resolved(cell, recorder.run)
    tokenizer = models.tokenizer(cell.model)
    asked = task.prompts[: cell.prompts]
    prompts = [chat_prompt(tokenizer, prompt.text) for prompt in asked]
    longest = max(map(len, prompts), default=0) + cell.cap
    engines: dict[str, Engine] = {}

    def engine(contender: Contender) -> Engine:
        if contender.name not in engines:
            made = _engine(contender, models.model(cell.model, contender.adapter), longest)
            for generate in (made.generate, made.generate_timed) if made.separate else (made.generate,):
                generate(prompts[0], min(cell.cap, WARM_UP), cell.temperature, seed)
            engines[contender.name] = made
        return engines[contender.name]

    for i, repeat, contender in keys_of(cell):
        key = (cell.name, contender.name, asked[i].id, repeat, False)
        if key not in recorder.run.responses:
            made, own = engine(contender), seed + _SEEDS * i + repeat
            for timed in (True, False) if made.separate else (False,):
                out = (made.generate_timed if timed else made.generate)(prompts[i], cell.cap, cell.temperature, own)
                text = tokenizer.decode(out.tokens, skip_special_tokens=True)
                score = None if timed else task.score(asked[i], text)
                recorder.add(
                    Response(
                        cell=cell.name,
                        contender=contender.name,
                        prompt=asked[i].id,
                        repeat=repeat,
                        seed=own,
                        schedule=contender.schedule,
                        block_size=contender.block_size,
                        window=contender.window,
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


def _engine(contender: Contender, model: Transformer, max_length: int) -> Engine:
    return make_peer(contender.schedule, model, max_length) if contender.peer else Ours(model, contender, max_length)


def run_plan(
    plan: Plan,
    tasks: Callable[[Cell], Task],
    models: Models,
    recorder: Recorder,
    progress: Callable[[str, int | None], None] = lambda what, total: None,
) -> None:
    """Everything that the records of a plan lack.

    ``progress(what, total)``: a cell of so many responses begins; ``progress(what, None)``: one of them is there.
    """
    for model in dict.fromkeys(cell.model for cell in plan.cells):
        for cell in plan.cells:
            if cell.model == model:
                progress(cell.name, cell.responses)
                run_cell(cell, tasks(cell), models, recorder, plan.seed, lambda name=cell.name: progress(name, None))
        if plan.latency_seconds and model not in recorder.run.latency:
            progress(f"latency/{model}", 1)
            recorder.note("latency", measure(models.model(model), model, seconds=plan.latency_seconds))
            progress(f"latency/{model}", None)
        models.release()
