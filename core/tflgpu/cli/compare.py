"""`tflgpu run --compare`: outputs held against the NumPy references and LiteRT's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tflgpu.cli import console
from tflgpu.cli.models import opened
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array
from tflgpu.options import CPU
from tflgpu.tflite.read import read_model
from tflgpu.tools.check import limit_of
from tflgpu.tools.check_outputs import Gap, gap_of
from tflgpu.tools.difference import difference
from tflgpu.tools.runs import run_once


def compare(
    model: Path,
    arrays: Mapping[int, Array],
    details: Sequence[Mapping[str, Any]],
    outputs: Sequence[Array],
    batch: int,
    precision: str,
    *,
    skip_references: bool,
) -> None:
    """Show how far outputs are from those of other runtimes on the same inputs, and whether that is
    what ``precision`` allows, by the limits of `tflgpu check`."""
    table = console.table(
        "Difference",
        "from",
        "output",
        "max abs",
        "relative L2",
        right=("max abs", "relative L2"),
        whole=("max abs", "relative L2"),
    )
    others = [("LiteRT CPU", _litert)]
    if not skip_references:
        others.insert(0, ("NumPy references", _references))
    names = [str(each["name"]) for each in details]
    limit = limit_of(read_model(str(model)), precision)
    verdicts = []
    for title, answer in others:
        with console.working(f"running {title}"):
            theirs = answer(model, arrays, batch)
        if isinstance(theirs, str):
            table.add_row(title, f"cannot be compared: {theirs}")
            continue
        for name, ours, other in zip(names, outputs, theirs, strict=True):
            gap = difference(ours, other)
            table.add_row(title, name, f"{gap.max_abs:.3g}", f"{gap.relative_l2:.3g}")
        # Of quantized numbers it is real ones that are judged: a step more or less is little.
        gaps = [
            gap_of(ours, other, each["quantization"])
            for ours, other, each in zip(outputs, theirs, details, strict=True)
        ]
        verdicts.append(_verdict(title, names, gaps, limit))
    console.show(table)
    for line in verdicts:
        console.say(line)


def _verdict(title: str, names: Sequence[str], gaps: Sequence[Gap], limit: float) -> str:
    worst = max(range(len(gaps)), key=lambda i: (gaps[i].lost, gaps[i].share), default=None)
    if worst is None:
        return f"agrees with {title}: there are no outputs"
    gap, allowed = gaps[worst], f"{limit:.2g} is allowed"
    if gap.lost:
        off = f"{gap.lost} values of {names[worst]} are NaN or infinite here alone"
    elif gap.share > limit:
        off = f"{names[worst]} is off by {gap.share:.2g} of its largest value, and {allowed}"
    else:
        return f"agrees with {title}: within {gap.share:.2g} of the largest value; {allowed}"
    return f"DIFFERS from {title}: {off}; `tflgpu check` looks for the operator"


def _references(model: Path, arrays: Mapping[int, Array], batch: int) -> list[Array] | str:
    """The references' outputs, or why there are none."""
    try:
        with opened(model, CPU, batch=batch) as interpreter:
            for index, array in arrays.items():
                interpreter.resize_tensor_input(index, array.shape)
            interpreter.allocate_tensors()
            return run_once(interpreter, arrays)
    except TflgpuError as error:
        return str(error)


def _litert(model: Path, arrays: Mapping[int, Array], batch: int) -> list[Array] | str:
    """LiteRT's outputs, of items one by one; or why there are none."""
    try:
        from ai_edge_litert.interpreter import Interpreter as LiteRT
    except ImportError:
        return "ai-edge-litert is not installed"
    try:
        interpreter: Any = LiteRT(**_for_litert(model))
        items = [arrays]
        if batch > 1:
            items = [{i: a[n : n + 1] for i, a in arrays.items()} for n in range(batch)]
        for index, array in items[0].items():
            interpreter.resize_tensor_input(index, array.shape)
        interpreter.allocate_tensors()
        parts = [run_once(interpreter, item) for item in items]
        return parts[0] if batch == 1 else [np.concatenate(p) for p in zip(*parts, strict=True)]
    except (ValueError, RuntimeError) as error:
        return str(error)


def _for_litert(model: Path) -> dict[str, Any]:
    """The model as LiteRT takes it: names of files that are no UTF-8 have no way into its
    library."""
    try:
        str(model).encode()
    except UnicodeEncodeError:
        return {"model_content": model.read_bytes()}
    return {"model_path": str(model)}
