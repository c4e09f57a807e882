"""How far rounding errors carry in a model: what decides how close two right answers must be.

The model is computed by the references in 64-bit floats, once as it is and a few times with every
number that an operator makes moved by about what one rounding in 32 bits may move it; in a
quantized model, every stored number by one step, since each op of LiteRT's may round to a
neighbour. What the outputs move by then is what another order of summing may move them by.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.ops.quantize_and_dequantize import OP as SIMULATOR
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.float_view import float_view
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.differential.case import Script, draw

_TRIALS = 6
_HYBRID = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL"})
#: A few units in the last place of f32: about what a transcendental function of a device may be
#: off.
_NUDGE = {"f32": 2.0**-21, "f32_f16": 2.0**-10, "f16": 2.0**-8}


@attrs.frozen
class Spread:
    """What is known of the runs of a case.

    Attributes:
        moved: for each run and output, the most that each element moved.
        overflows: for each run, whether a number in it is finite, and so large that it or what it
            was summed from may be too large for f32.
        odd: for each run, whether a number in it is NaN or infinite.
    """

    moved: list[list[Array]]
    overflows: list[bool]
    odd: list[bool]


def spread(content: bytes, script: Script) -> Spread | str:
    """How far rounding errors carry in a case; or why that is not known.

    Models with state are left out: an error would have to be carried from run to run.
    """
    try:
        model = read_model(content)
        inputs = set(model.main.inputs)
        moved, overflows, odd = [], [], []
        for run in range(len(script.runs)):
            wanted = (
                {} if script.resize_after and run == 0 and len(script.runs) > 1 else script.resize
            )
            shapes = {i: tuple(s) for i, s in wanted.items() if i in inputs}
            graph = build_graph(model, 0, builtin_ops(), shapes)
            if any(v.is_variable for v in graph.values.values()):
                return "it has state"
            given = {
                v.id: draw(script, run, i, v.id, v.shape, v.dtype.numpy)
                for i, v in enumerate(graph.inputs)
            }
            hybrid = frozenset(o for n in graph.nodes if is_hybrid(n) for o in n.origins)
            view = float_view(graph, builtin_ops()).graph
            seen: list[float] = []
            moved.append(_run(view, given, _NUDGE[script.precision], hybrid, seen))
            # Parts of a sum may be larger than the sum.
            largest = float(np.finfo(np.float32).max) / 64
            overflows.append(any(largest < s < np.inf for s in seen))
            odd.append(any(not s < np.inf for s in seen))
    except Exception as error:  # noqa: BLE001 (only a yardstick: without it nothing is excused)
        return f"{type(error).__name__}: {error}"
    return Spread(moved, overflows, odd)


def _run(
    graph: Graph,
    inputs: Mapping[int, Array],
    nudge: float,
    hybrid: frozenset[int],
    seen: list[float],
) -> list[Array]:
    base = _evaluate(graph, inputs, 0.0, hybrid, None, seen)
    most = [np.zeros(np.shape(b)) for b in base]
    for trial in range(_TRIALS):
        moved = _evaluate(graph, inputs, nudge, hybrid, np.random.default_rng(trial))
        for at, (a, b) in enumerate(zip(base, moved, strict=True)):
            difference = np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))
            most[at] = np.maximum(most[at], np.nan_to_num(difference, nan=0.0, posinf=np.inf))
    return most


def _evaluate(
    graph: Graph,
    inputs: Mapping[int, Array],
    nudge: float,
    hybrid: frozenset[int],
    rng: np.random.Generator | None,
    seen: list[float] | None = None,
) -> list[Array]:
    ops = builtin_ops()

    def widened(array: Array, step: float = 0.0) -> Array:
        if array.dtype.kind != "f":
            return array
        wide = array.astype(np.float64)
        if rng is None:
            return wide
        return wide * (1 + rng.uniform(-nudge, nudge, wide.shape)) + step * rng.integers(
            -1, 2, wide.shape
        )

    env: dict[int, Array] = {i: widened(a) for i, a in inputs.items()}
    for value in graph.values.values():
        if value.data is not None:
            env[value.id] = widened(value.data)
    for node in graph:
        operands = [None if v is None else env[v.id] for v in node.inputs]
        if rng is not None and hybrid.intersection(node.origins) and node.op in _HYBRID:
            operands[0] = _in_8_bits(operands[0], rng)
        if seen is not None and node.op == "REDUCE_PROD" and operands[0] is not None:
            # Some of the factors may be beyond f32 where all of them are not.
            large = np.maximum(np.abs(np.asarray(operands[0], np.float64)), 1)
            seen.append(float(np.exp(min(np.nansum(np.log(large)), 600.0))))
        # A conversion of stored numbers looks at their type; its results are made wide after it.
        results = ops[node.op].reference(node.attrs, operands)
        step = node.attrs.scale if node.op == SIMULATOR else 0.0
        for value, array in zip(node.outputs, results, strict=False):
            env[value.id] = widened(np.asarray(array), step)
            if seen is not None and array.dtype.kind == "f" and array.size:
                sizes = np.abs(env[value.id])
                finite = sizes[np.isfinite(sizes)]
                seen.extend([float(finite.max(initial=0.0)), float(sizes.max())])
    return [env[v.id] for v in graph.outputs]


def is_hybrid(node: Node) -> bool:
    """Whether LiteRT rounds the first operand to 8 bits, since the weights are such and it is
    not."""
    if node.op not in _HYBRID:
        return False
    x, weights = node.inputs[:2]
    if x is None or weights is None or x.quant is not None:
        return False
    return x.dtype is DType.F32 and weights.dtype in (DType.I8, DType.U8)


def _in_8_bits(x: Array | None, rng: np.random.Generator) -> Array | None:
    if x is None or x.size == 0:
        return x
    step = np.abs(x).max() / 127
    return x + step * rng.uniform(-0.5, 0.5, x.shape)
