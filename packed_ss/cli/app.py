"""Commands and their options.  What they do is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="packed-ss",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Lossless self-speculative decoding that drafts one call ahead.",
)

Model = Annotated[str, typer.Option(help="Bundled name, local folder, or hub id.")]
BlockSize = Annotated[int | None, typer.Option(help="B, rows of a proposal region; default: the checkpoint's.")]
Window = Annotated[int | None, typer.Option(help="W, positions of an ordered model's window; default: half of its horizon.")]
MaxNew = Annotated[int, typer.Option(help="Most tokens of an answer.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the likeliest tokens up to this mass, in (0, 1].")]
Seed = Annotated[int, typer.Option(help="Same seed, same text.")]
Verification = Annotated[str, typer.Option(help="auto, greedy, rejection, coupled or match.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; '-' or nothing reads standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from this file.")] = None,
    model: Model = "tiny",
    schedule: Annotated[
        str, typer.Option(help="autoregressive, linear, packed, quadratic, branched:0,4,... or, of an ordered model, native.")
    ] = "packed",
    block_size: BlockSize = None,
    window: Window = None,
    order: Annotated[str | None, typer.Option(help="Of an ordered model: left_to_right (default) or confidence.")] = None,
    max_new_tokens: MaxNew = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    verification: Verification = "auto",
    stop: Annotated[list[str] | None, typer.Option(help="End after this text (its tokens); may be repeated.")] = None,
    raw: Annotated[bool, typer.Option(help="No chat template: continue the text itself.")] = False,
    json: Json = False,
) -> None:
    """Answer one prompt, streaming as tokens are accepted."""
    given = locals()
    from .generate import run

    run(as_json=given.pop("json"), stop=given.pop("stop") or [], **given)


@app.command()
def compare(
    model: Model = "tiny",
    problems: Annotated[Path | None, typer.Option(help="JSONL with 'question' and 'answer'; default: the model's own.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N problems.")] = None,
    schedules: Annotated[
        str | None,
        typer.Option(help="Separated by ';' or ' '; outputs are compared with the first's; default: all that the model has."),
    ] = None,
    block_size: BlockSize = None,
    window: Window = None,
    order: Annotated[str, typer.Option(help="Of an ordered model: left_to_right (default), confidence, or both.")] = "",
    max_new_tokens: MaxNew = 256,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    verification: Verification = "auto",
    json: Json = False,
    plot: Annotated[Path | None, typer.Option(help="Write a figure (png, svg, pdf).")] = None,
) -> None:
    """Run schedules side by side on held-out problems."""
    given = locals()
    from .compare import run

    named = given.pop("schedules")
    schedules = None if named is None else named.replace(";", " ").split()
    run(schedules=schedules, orders=list(_words(given.pop("order"))), as_json=given.pop("json"), **given)


@app.command()
def bench(
    model: Annotated[list[str] | None, typer.Option(help="May be repeated; default: every bundled checkpoint.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="May be repeated; default: word-problems.")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Folder of the tasks' files, or TASK=PATH; may be repeated.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of records, tables and figures.")] = Path("bench-results"),
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N prompts of a task.")] = None,
    modes: Annotated[str, typer.Option(help="Of greedy, rejection, coupled, match.")] = "greedy rejection match",
    schedules: Annotated[str | None, typer.Option(help="Default: all that the model has.")] = None,
    block_size: Annotated[int | None, typer.Option(help="B of every schedule; default: each one's fastest in a probe.")] = None,
    windows: Annotated[str | None, typer.Option(help="W of ordered models; default: half of the trained horizon.")] = None,
    orders: Annotated[str, typer.Option(help="Of ordered models.")] = "left_to_right confidence",
    repeats: Annotated[int | None, typer.Option(min=1, help="Responses per prompt; default: the task's.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer; default: the task's.")] = None,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    baselines: Annotated[bool, typer.Option(help="Also run transformers and other decoders on the same weights.")] = True,
    lora: Annotated[bool, typer.Option(help="Also run the checkpoint's proposal-only adapter, if it has one.")] = True,
    latency_seconds: Annotated[float, typer.Option(min=0, help="Time for one call against its rows, per model; 0: none.")] = 20.0,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; default: cuda where there is one.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Default: float32 on a CPU, the checkpoint's own on a GPU.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of a CPU.")] = None,
    columns: Annotated[str | None, typer.Option(help="Only these columns of the tables, separated by commas.")] = None,
    allow_code_execution: Annotated[
        bool, typer.Option("--allow-code-execution", help="Score code by running it, confined.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the records of another run in the folder.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Only write tables and figures from the records.")] = False,
) -> None:
    """Measure as the paper did: prompts x schedules x modes, tables and figures.  A stopped run goes on where it was."""
    from ..evaluation.bench.plan import Wanted
    from .bench import run

    wanted = Wanted(
        modes=_words(modes),
        schedules=_words(schedules) if schedules else None,
        block_size=block_size,
        windows=_numbers("windows", windows) if windows else None,
        orders=_words(orders),
        limit=limit,
        repeats=repeats,
        cap=max_new_tokens,
        baselines=baselines,
    )
    run(
        model or (),
        task or ("word-problems",),
        wanted,
        out,
        overwrite=overwrite,
        report_only=report_only,
        seed=seed,
        device=device,
        dtype=dtype,
        threads=threads,
        lora=lora,
        columns=[column.strip() for column in columns.split(",")] if columns else [],
        latency_seconds=latency_seconds,
        data=data or (),
        allow_code_execution=allow_code_execution,
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(";", " ").replace(",", " ").split())


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError:
        raise ValueError(f"{name} is {text!r}, but whole numbers are needed") from None


@app.command()
def verify(
    output: Annotated[Path | None, typer.Argument(help="What 'generate --json' printed; '-' or nothing: standard input.")] = None,
    model: Annotated[str | None, typer.Option(help="Instead of the model that the file names.")] = None,
    float64: Annotated[bool, typer.Option("--float64", help="Check in double precision.")] = False,
    json: Json = False,
) -> None:
    """Teacher-force an output through plain AR and report every token that is not the one AR emits."""
    from .verify import run

    run(output, model, float64, as_json=json)


@app.command()
def info(
    model: Annotated[str | None, typer.Argument(help="Also describe this checkpoint.")] = None,
    json: Json = False,
) -> None:
    """Versions, kernels and devices; and what a checkpoint is made of."""
    from .info import run

    run(model, as_json=json)
