"""What a check runs beside the device: LiteRT's interpreter, with XNNPACK and with its reference
kernels; tflgpu's NumPy references where that is not installed or does not take the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tflgpu.devices.cpu_side import REFERENCES
from tflgpu.errors import TflgpuError, UnsupportedError
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import Array
from tflgpu.tools.runs import run_once

Sample = Mapping[int, Array]

XNNPACK, BUILTIN_REF, NUMPY = "LiteRT (XNNPACK)", "LiteRT (BUILTIN_REF)", "NumPy references"


def references(
    content: bytes, samples: Sequence[Sample]
) -> tuple[dict[str, list[list[Array]]], list[str]]:
    """The outputs of each sample, by what made them, the best reference first; and notes on what
    is missing.

    Raises:
        UnsupportedError: nothing on the CPU runs the model.
    """
    found: dict[str, list[list[Array]]] = {}
    notes = []
    for name in (XNNPACK, BUILTIN_REF):
        outputs = _litert(content, samples, plain=name == BUILTIN_REF)
        if isinstance(outputs, str):
            notes.append(f"{name}: {outputs}")
        else:
            found[name] = outputs
    if not found:
        try:
            with Interpreter(None, content, [], cpu_backend=REFERENCES) as interpreter:
                found[NUMPY] = run_samples(interpreter, samples)
        except TflgpuError as error:
            notes.append(f"{NUMPY}: {error}")
            why = "; ".join(notes)
            raise UnsupportedError(f"there is nothing to compare with: {why}") from error
    return found, notes


def run_samples(interpreter: Any, samples: Sequence[Sample]) -> list[list[Array]]:
    """The outputs of an interpreter, of either kind, sample by sample; state begins anew."""
    shapes: dict[int, tuple[int, ...]] | None = None
    found = []
    for sample in samples:
        wanted = {index: array.shape for index, array in sample.items()}
        if wanted != shapes:
            for index, shape in wanted.items():
                interpreter.resize_tensor_input(index, shape)
            interpreter.allocate_tensors()
            shapes = wanted
        interpreter.reset_all_variables()
        found.append(run_once(interpreter, sample))
    return found


def _litert(content: bytes, samples: Sequence[Sample], *, plain: bool) -> list[list[Array]] | str:
    """LiteRT's outputs, or why there are none."""
    try:
        from ai_edge_litert import interpreter as litert
    except ImportError:
        return "ai-edge-litert is not installed"
    resolver = litert.OpResolverType.BUILTIN_REF if plain else litert.OpResolverType.AUTO
    try:
        interpreter: Any = litert.Interpreter(
            model_content=content, experimental_op_resolver_type=resolver
        )
        return run_samples(interpreter, samples)
    except (ValueError, RuntimeError) as error:
        return " ".join(str(error).split())[:300]
