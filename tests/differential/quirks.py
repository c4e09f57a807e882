"""What LiteRT's kernels do that the op's definition does not say, imitated on our references.

A class that rests on such a habit does not take our word that LiteRT has it: the model is computed
by the references with the habit, and the outputs must be LiteRT's.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph, Node
from tflgpu.ops.base import Activation
from tflgpu.ops.products import finish
from tflgpu.ops.registry import builtin_ops
from tflgpu.ops.resize import neighbours
from tflgpu.passes.float_view import float_view
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.differential.case import Script, draw

#: Clamp results to the finite numbers where no activation is asked for.
SATURATES = frozenset(
    {"ADD", "SUB", "MUL", "DIV", "CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED",
     "AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D", "TRANSPOSE_CONV"}
)  # fmt: skip
_LARGEST = np.finfo(np.float32).max

#: Take weights of 8 bits with floats.
HYBRID = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL"})


def imitate(content: bytes, script: Script, names: frozenset[str]) -> list[list[Array]] | str:
    """Outputs of each run with LiteRT's habits; or why they cannot be said.

    Args:
        content: the file.
        script: what is done with it.
        names: "saturate" for results that are clamped to the finite numbers (those of ADD_N after
            each operand); "pool" for NaN left out of MAX_POOL_2D; "order" for MAXIMUM
            and MINIMUM whose second operand is taken where one of the two is NaN, and REDUCE_MAX
            and REDUCE_MIN that so compare one element after another; "pads" for
            weights of DEPTHWISE_CONV_2D that are left out where they meet padding, which
            multiplied by infinity would be NaN; "rolling" for sums of
            LOCAL_RESPONSE_NORMALIZATION that are carried from channel to channel, adding what
            comes and taking away what goes, so that infinity leaves NaN behind; "no zero point"
            for weights of 8 bits that meet floats and are taken without their zero point;
            "weighs" for pixels of RESIZE_BILINEAR that are multiplied by weights of 0.
    """
    try:
        model = read_model(content)
        inputs = set(model.main.inputs)
        found = []
        for run in range(len(script.runs)):
            early = script.resize_after and run == 0 and len(script.runs) > 1
            shapes = {} if early else {i: s for i, s in script.resize.items() if i in inputs}
            graph = build_graph(model, 0, builtin_ops(), shapes)
            if any(v.is_variable for v in graph.values.values()):
                return "it has state"
            if "no zero point" in names:
                _drop_zero_points(graph)
            given = {
                v.id: draw(script, run, i, v.id, v.shape, v.dtype.numpy)
                for i, v in enumerate(graph.inputs)
            }
            found.append(_evaluate(float_view(graph, builtin_ops()).graph, given, names))
    except Exception as error:  # noqa: BLE001 (then nothing is excused)
        return f"{type(error).__name__}: {error}"
    return found


def _evaluate(graph: Graph, inputs: Mapping[int, Array], names: frozenset[str]) -> list[Array]:
    ops = builtin_ops()
    env: dict[int, Array] = dict(inputs)
    for value in graph.values.values():
        if value.data is not None:
            env[value.id] = value.data
    for node in graph:
        operands = [None if v is None else env[v.id] for v in node.inputs]
        if "pool" in names and node.op == "MAX_POOL_2D" and operands[0] is not None:
            operands[0] = np.where(np.isnan(operands[0]), -_LARGEST, operands[0])
        if "order" in names and node.op in ("MAXIMUM", "MINIMUM"):
            a, b = operands
            assert a is not None
            assert b is not None
            first = a > b if node.op == "MAXIMUM" else a < b
            env[node.outputs[0].id] = np.where(first, a, b)
            continue
        if "order" in names and node.op in ("REDUCE_MAX", "REDUCE_MIN"):
            env[node.outputs[0].id] = _one_by_one(node, operands)
            continue
        if "saturate" in names and node.op == "ADD_N":
            total = operands[0]
            for operand in operands[1:]:
                total = np.clip(total + operand, -_LARGEST, _LARGEST)
            env[node.outputs[0].id] = total
            continue
        if "pads" in names and node.op == "DEPTHWISE_CONV_2D":
            results = [_skipping_pads(node, operands)]
        elif "weighs" in names and node.op == "RESIZE_BILINEAR":
            results = [_weighing(node, operands)]
        elif "rolling" in names and node.op == "LOCAL_RESPONSE_NORMALIZATION":
            results = [_rolling(node, operands)]
        else:
            results = ops[node.op].reference(node.attrs, operands)
        for value, array in zip(node.outputs, results, strict=False):
            clamped = "saturate" in names and node.op in SATURATES and array.dtype == np.float32
            env[value.id] = np.clip(array, -_LARGEST, _LARGEST) if clamped else array
    return [env[v.id] for v in graph.outputs]


def _drop_zero_points(graph: Graph) -> None:
    for node in graph:
        x, weights = (*node.inputs, None, None)[:2]
        if node.op in HYBRID and x is not None and x.dtype is DType.F32 and weights is not None:
            quant = weights.quant
            if quant is not None and weights.dtype in (DType.I8, DType.U8):
                weights.quant = attrs.evolve(quant, zero_point=(0,) * len(quant.zero_point))


def _one_by_one(node: Node, operands: list[Array | None]) -> Array:
    """A reduction that keeps what it has only where that is larger (or smaller) than what comes."""
    x, axes = operands
    assert x is not None
    assert axes is not None
    reduced = sorted({int(a) % x.ndim for a in axes.reshape(-1)}) if x.ndim else []
    kept = [a for a in range(x.ndim) if a not in reduced]
    rows = x.transpose(*reduced, *kept).reshape(-1, *(x.shape[a] for a in kept))
    most: Array = rows[0]
    for row in rows[1:]:
        most = np.where(most > row if node.op == "REDUCE_MAX" else most < row, most, row)
    return most.reshape(node.outputs[0].shape)


def _skipping_pads(node: Node, operands: list[Array | None]) -> Array:
    """A depthwise convolution one weight after another, each only where it meets the image."""
    x, weights, bias = (*operands, None)[:3]
    assert x is not None
    assert weights is not None
    reference = builtin_ops()[node.op].reference
    plain = attrs.evolve(node.attrs, activation=Activation.NONE)
    total: Array = np.zeros(node.outputs[0].shape, np.float32)
    for row, column in np.ndindex(*weights.shape[1:3]):
        one = np.zeros_like(weights, dtype=np.float32)
        one[:, row, column] = 1
        met = reference(plain, [np.ones_like(x), one, None])[0]
        seen = reference(plain, [np.where(np.isfinite(x), x, 0), one, None])[0]
        if not np.isfinite(x).all():
            return np.full_like(total, np.nan)  # nothing is claimed for infinite images
        total += np.where(met > 0, seen * weights[0, row, column], 0).astype(np.float32)
    return finish(total, bias, node.attrs.activation, x)


def _rolling(node: Node, operands: list[Array | None]) -> Array:
    x = operands[0]
    assert x is not None
    a = node.attrs
    depth = x.shape[-1]
    wide = [(0, 0)] * (x.ndim - 1) + [(a.radius, a.radius)]
    squares = np.pad(x * x * np.float32(a.alpha), wide)
    sums = np.zeros_like(x)
    for i in range(2 * a.radius + 1):
        sums[..., 0] += squares[..., i]
    for channel in range(1, depth):
        sums[..., channel] = (
            sums[..., channel - 1]
            - squares[..., channel - 1]
            + squares[..., channel + 2 * a.radius]
        )
    return x * (np.float32(a.bias) + sums) ** np.float32(-a.beta)


def _weighing(node: Node, operands: list[Array | None]) -> Array:
    x = operands[0]
    assert x is not None
    _, height, width, _ = node.outputs[0].shape
    top, bottom, v = neighbours(node.attrs, x.shape[1], height)
    left, right, u = neighbours(node.attrs, x.shape[2], width)
    v, u = v[:, None, None], u[:, None]
    rows = ((top, np.float32(1) - v), (bottom, v))
    columns = ((left, np.float32(1) - u), (right, u))
    parts = [x[:, y][:, :, x_] * a * b for y, a in rows for x_, b in columns]
    return np.asarray(sum(parts))
