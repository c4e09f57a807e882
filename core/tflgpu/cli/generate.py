"""`tflgpu generate`: answers a prompt by a language model."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from tflgpu.cli import console
from tflgpu.cli.models import (
    NO_FLAGS,
    Backend,
    Device,
    Flags,
    Precision,
    options_of,
    quiet_delegate,
    quiet_logs,
    with_delegate_flags,
)
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.language_models.language_model import LanguageModel
from tflgpu.options import DelegateOptions


@with_delegate_flags
def generate(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A .litertlm, .task or .tflite file.", show_default=False
        ),
    ],
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="A text; - reads it.", show_default=False)
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="tokenizer.json or SentencePiece.  [default: the bundle's]"
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Most tokens.  [default: all with room]")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, metavar="T", help="0: the likeliest token each time.")
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of the N likeliest.")
    ] = None,
    top_p: Annotated[
        float | None, typer.Option(metavar="P", help="Of the likeliest with this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, metavar="N", help="Of the choice.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Ends the answer; several times.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="The prompt as it is, without the bundle's template.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Where it ran, and tokens a second.")
    ] = False,
    backend: Backend = None,
    device: Device = None,
    precision: Precision = None,
    flags: Flags = NO_FLAGS,
) -> None:
    """Answer a prompt by a language model: the answer is printed as it comes."""
    text = sys.stdin.read() if prompt == "-" else prompt
    options = options_of(backend, device, precision, None, flags)
    with quiet_logs(), ExitStack() as stack:
        delegate: GpuDelegate | DelegateOptions = options
        if options.backend is not None or options.device is not None:
            delegate = stack.enter_context(quiet_delegate(options, progress=console.kernels))
        with console.working("preparing the model"):
            opened = stack.enter_context(
                LanguageModel(model, tokenizer=tokenizer, delegate=delegate)
            )
        answer = opened.stream(
            text,
            max_tokens=max_tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            seed=seed,
            stop=stop or (),
            raw=raw,
        )
        for piece in answer:
            console.piece(piece)
        console.piece("\n")
        made = answer.generation
        assert made is not None
        if verbose:
            console.note(opened.report.summary)
            first, rest = made.seconds
            console.note(
                f"{made.prompt_tokens} tokens of prompt, the first of the answer after {first:.2f} "
                f"s; {len(made.tokens)} tokens, ended by {made.reason}"
                + (f", {(len(made.tokens) - 1) / rest:.1f} a second" if rest else "")
            )
