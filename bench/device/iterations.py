"""Stage "iterations": the captured iteration of each schedule, with and without what stands around the model.

The prefix is cached, the weights are random in the shape of a public checkpoint, and every sample starts from the same state.
The share outside the model is that of pack and resolve: one minus the time of the same calls captured alone, in turns.
"""

from __future__ import annotations

import dataclasses
import gc
from typing import Any

import torch

from packed_ss import Decoder
from packed_ss.evaluation.bench.bandwidth import measure_bandwidth
from packed_ss.evaluation.bench.clock import Sampler, interleave, open_runtime
from packed_ss.evaluation.bench.latency import weight_bytes
from packed_ss.request import check_request

from .models import largest_model
from .record import Results
from .stages import Bench

SCHEDULES = ("autoregressive", "linear", "packed", "quadratic")
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": {"temperature": 0.8, "verification": "coupled"},
    "rejection": {"temperature": 0.8, "verification": "rejection"},
    "rejection, top-k 50 top-p 0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "verification": "rejection"},
}
#: What an iteration of a packed schedule is to reach: share of the weights' floor, and at most so much outside the model.
ATTAINED, OUTSIDE = 0.75, 0.03
#: Replays of a sample: each advances the sequence.
REPLAYS = 4


def run(bench: Bench, results: Results) -> None:
    """Every schedule greedily with the fused head, then packed in the other ways."""
    sizes = bench.sizes
    shape, model = largest_model(bench)
    weights = weight_bytes(model)
    prompt = torch.randint(4, model.config.vocab_size, (sizes.prefix,), generator=torch.Generator().manual_seed(0)).tolist()
    runs = [(schedule, "greedy", "fused") for schedule in SCHEDULES]
    runs += [("packed", mode, "logits") for mode in SAMPLING]
    profiled = False
    for schedule, mode, head in runs:
        name = f"{schedule}, {mode}, {head} head"
        try:
            decoder = Decoder(model, schedule, sizes.block_size, sizes.prefix + 1024, head=head)
            iteration = Iteration(decoder, prompt, SAMPLING[mode])
            bandwidth = measure_bandwidth(open_runtime(bench.device), sizes.copy_bytes, seconds=sizes.seconds / 4)
            times = interleave(iteration.samplers(), sizes.seconds)
        except Exception as error:  # a kernel that fails takes its line with it, not the table
            results.fail(f"{name}: {type(error).__name__}: {error}")
            continue
        calls = len(decoder.schedule.cycle)
        entry = _entry(name, schedule, calls, sum(call.rows for call in decoder.schedule.cycle), times, weights, bandwidth)
        results.add("iterations", entry)
        _rows(results, entry, shape)
        if bench.on_gpu and not profiled and schedule == "packed":
            profiled = True
            results.put("kernels of a packed iteration", profile(iteration))
        del decoder, iteration
        gc.collect()


class Iteration:
    """A decoder's iteration on a state whose prefix is cached, which every sample starts from; captured where the decoder is."""

    def __init__(self, decoder: Decoder, prompt: list[int], sampling: dict[str, Any]) -> None:
        self.decoder, self.runtime = decoder, decoder.runtime
        self.request = check_request(
            decoder.model.config,
            batch_size=1,
            max_length=decoder.max_length,
            input_ids=prompt,
            max_new_tokens=1000,
            seed=0,
            eos_token_id=[],
            stop_sequences=(),
            **({"temperature": 0.0, "top_k": 0, "top_p": 1.0, "verification": "auto"} | sampling),
        )
        with self.runtime.active():
            self.state = self.runtime.start(decoder, self.request)
            decoder.first_call(self.state, self.request)
            self._saved = {field.name: getattr(self.state, field.name).clone() for field in dataclasses.fields(self.state)}
            self.restore()
        captured = self.runtime.name == "captured"
        self.replay = self.runtime.session(decoder, self.request).graph.replay if captured else self._steps

    def restore(self) -> None:
        """Put back the state and the rows after the first call."""
        for name, value in self._saved.items():
            getattr(self.state, name).copy_(value)
        self.decoder.layout.pack(self.state, self.decoder.schedule.cycle[0], self.decoder.cache.capacity - 1)

    def _steps(self) -> None:
        for call in self.decoder.schedule.cycle:
            self.decoder.step(self.state, self.request, call, self.decoder.cache.capacity)

    def calls(self) -> None:
        """Make the model calls of the iteration, and nothing else of it."""
        for call in self.decoder.schedule.cycle:
            rows = self.decoder.layout.buffers(self.state, call)
            self.decoder.forward(rows, self.decoder.cache.capacity, call, self.request)

    def samplers(self) -> dict[str, Sampler]:
        """The whole iteration, as the decoder has captured it, and its calls alone."""
        runtime = self.runtime.graphs if self.runtime.name == "captured" else self.runtime
        return {
            "iteration": Sampler(runtime, self.replay, before=self.restore, inner=REPLAYS, captured=False),
            "calls": Sampler(runtime, self.calls, before=self.restore, inner=REPLAYS),
        }


def _entry(
    name: str, schedule: str, calls: int, rows: int, times: dict[str, dict[str, float]], weights: int, bandwidth: dict[str, float]
) -> dict[str, Any]:
    iteration, inside = (times[part]["median_ms"] for part in ("iteration", "calls"))
    floor = calls * weights / bandwidth["copy_gb_s"] / 1e6
    return {
        "name": name,
        "schedule": schedule,
        "calls": calls,
        "rows": rows,
        "weight_bytes": weights,
        **bandwidth,
        "times": times,
        "floor_ms": floor,
        "read_floor_ms": calls * weights / bandwidth["read_gb_s"] / 1e6,
        "attained": floor / iteration,
        "outside": 1 - inside / iteration,
    }


def _rows(results: Results, entry: dict[str, Any], shape: str) -> None:
    judged = entry["name"] == "packed, greedy, fused head"
    attained, outside, time = entry["attained"], entry["outside"], entry["times"]["iteration"]["median_ms"]
    results.row(
        f"{shape}, {entry['name']}",
        f"{time:.3f} ms",
        floor=f"{entry['floor_ms']:.3f} ms",
        target=f"at least {ATTAINED:.0%} of it" if judged else "",
        met=attained >= ATTAINED if judged else None,
        note=f"{attained:.1%} of the floor, {entry['read_floor_ms'] / time:.1%} of a read's; "
        f"{entry['calls'] * entry['weight_bytes'] / time / 1e6:.0f} GB/s of weights; {entry['calls']} calls, "
        f"{entry['rows']} rows",
    )
    results.row(
        "  of it outside the model",
        f"{outside:.2%}",
        target=f"at most {OUTSIDE:.0%}" if judged else "",
        met=outside <= OUTSIDE if judged else None,
    )


def profile(iteration: Iteration, most: int = 25) -> Any:
    """Time and number of each kernel in one replay, the largest first; why there is none where the profiler does not work."""
    try:
        from torch.profiler import ProfilerActivity
        from torch.profiler import profile as profiler

        with iteration.runtime.active(), profiler(activities=[ProfilerActivity.CUDA]) as found:
            iteration.restore()
            iteration.replay()
            torch.cuda.synchronize()
        kernels = [(event.key[:100], event.self_device_time_total, event.count) for event in found.key_averages()]
        return [
            {"kernel": name, "us": round(time, 1), "count": count}
            for name, time, count in sorted(kernels, key=lambda one: -one[1])[:most]
            if time
        ]
    except Exception as error:  # CUPTI is not everywhere
        return f"the profiler does not work here: {error!r}"[:300]
