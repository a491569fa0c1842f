"""Commands and their options.  What they do is in the modules beside this one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="packed-ss", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Lossless self-speculative decoding that drafts one call ahead.")

Model = Annotated[str, typer.Option(help="Bundled name, local folder, or hub id.")]
BlockSize = Annotated[int | None, typer.Option(help="B, rows of a proposal region; default: the checkpoint's.")]
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
    schedule: Annotated[str, typer.Option(help="autoregressive, linear, packed, quadratic or branched:0,4,...")] = "packed",
    block_size: BlockSize = None,
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
    from .generate import run

    run(prompt, file, model=model, schedule=schedule, block_size=block_size, stop=stop or [], raw=raw, as_json=json,
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, verification=verification)


@app.command()
def compare(
    model: Model = "tiny",
    problems: Annotated[Path | None, typer.Option(help="JSONL with 'question' and 'answer'; default: the model's own.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N problems.")] = None,
    schedules: Annotated[str, typer.Option(help="Separated by ';' or ' '; outputs are compared with the first's.")]
    = "autoregressive linear packed quadratic",
    block_size: BlockSize = None,
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
    from .compare import run

    run(model, problems, limit, schedules.replace(";", " ").split(), block_size=block_size, as_json=json, plot=plot,
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, verification=verification)


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
