"""Ops of a third party that say of themselves what CONV_2D, TRANSPOSE, RESHAPE and SLICE do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
from tflgpu.errors import ModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, TensorSpec
from tflgpu.kernels.activation import activate
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.rule import KernelRule
from tflgpu.ops.activation import apply_activation
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Fields,
    Movement,
    OpDef,
    Operand,
    Sample,
    no_attrs,
)
from tflgpu.ops.facets import Filter, Reordered, no_zeros
from tflgpu.ops.moves import Moves, reordered

from tests.plugins.third_party_toys import plugin_of

# A layer: x [.., c], a bias that may be absent, a filter [c, out]


@attrs.frozen
class Mix:
    """What is done to the sums."""

    after: Activation = Activation.NONE


def _parse_mix(fields: Fields) -> Mix:
    return Mix(Activation(fields.custom_options[0] if fields.custom_options else 0))


def _infer_mix(attributes: Mix, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    x, _, weights = operands
    if x is None or weights is None or x.shape[-1] != weights.shape[0]:
        raise ModelError("ToyMix: the filter does not fit")
    return [TensorSpec((*x.shape[:-1], weights.shape[1]), x.dtype)]


def _mix(attributes: Mix, arrays: Sequence[Array | None]) -> list[Array]:
    x, bias, weights = arrays
    assert x is not None
    assert weights is not None
    sums = x.astype(np.float32) @ weights.astype(np.float32)
    if bias is not None:
        sums = sums + bias.astype(np.float32)
    return [apply_activation(attributes.after, sums).astype(x.dtype)]


def _mix_samples() -> list[Sample]:
    weights, bias = Arg((7, 5), const=True), Arg((5,), const=True)
    return [
        Sample("bias", {}, (Arg((1, 3, 2, 7)), bias, weights), accumulates=7),
        Sample("no_bias", {}, (Arg((3, 7)), None, weights), accumulates=7),
        Sample("relu", {}, (Arg((3, 7)), bias, weights), accumulates=7, custom_options=b"\1"),
    ]


def _build_mix(low: Lowering) -> None:
    filters, bias_value = low.node.const(2), low.node.optional_input(1)
    inner, out = filters.shape
    slices = -(-out // 4)
    packed = np.zeros((inner, slices * 4), np.float32)
    packed[:, :out] = filters
    offsets = np.zeros(slices * 4, np.float32)
    if bias_value is not None and bias_value.data is not None:
        offsets[:out] = bias_value.data
    k = low.kernel("toy_mix", (8, 8, 1))
    src, weights = low.read(k, 0), low.weights(k, packed)
    bias, dst = low.weights(k, offsets, "bias", scalar=Scalar.F32), low.write(k)
    column, row = k.let(k.global_id(0), "column"), k.let(k.global_id(1), "row")
    guard(k, column < slices, row < dst.layout.outer)
    total = k.var(k.f32(0.0, 4), "total")
    with k.loop(0, inner, name="c") as c:
        w = k.let(k.load(weights, c * slices + column, Scalar.F32), "w")
        k.fma_to(total, k.splat(k.cast(src.load_lane(row, c), Scalar.F32), 4), w)
    found = k.let(total + k.load(bias, column), "sum")
    dst.store(row, column, activate(k, low.attrs.after, found))
    low.dispatch(k, (slices, dst.layout.outer, 1))


MIX = OpDef(
    "ToyMix", _parse_mix, _infer_mix, _mix, _mix_samples, accuracy=Accuracy.ACCUMULATE,
    is_custom=True,
    arithmetic=Arithmetic(activation_field="after", filter=Filter(
        source=0, weights=2, bias=1, out=1, spread=lambda w, channels: lambda c: c[:, None],
        zeros=no_zeros,
    ))
)  # fmt: skip

# Ops that move


def _order(perm: tuple[int, ...], name: str) -> OpDef:
    def infer(attributes: Any, operands: Sequence[Operand | None]) -> list[TensorSpec]:
        (x,) = operands
        assert x is not None
        return [TensorSpec(tuple(x.shape[a] for a in perm), x.dtype)]

    def reference(attributes: Any, arrays: Sequence[Array | None]) -> list[Array]:
        (x,) = arrays
        assert x is not None
        return [x.transpose(perm).copy()]

    def moves(node: Node) -> Moves:
        return reordered(0, node.input(0).shape, perm)

    return OpDef(
        name, no_attrs, infer, reference, lambda: [Sample("odd", {}, (Arg((2, 3, 5, 7)),))],
        accuracy=Accuracy.EXACT, is_custom=True, movement=Movement(moves=moves)
    )  # fmt: skip


def _infer_rows(attributes: Any, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    (x,) = operands
    assert x is not None
    return [TensorSpec((int(np.prod(x.shape[:-1])), x.shape[-1]), x.dtype)]


def _rows(attributes: Any, arrays: Sequence[Array | None]) -> list[Array]:
    (x,) = arrays
    assert x is not None
    return [x.reshape(-1, x.shape[-1]).copy()]


def _infer_drop(attributes: Any, operands: Sequence[Operand | None]) -> list[TensorSpec]:
    x, count = operands
    assert x is not None
    assert count is not None
    sizes = count.const("ToyDrop", "how many to drop (operand 1)")
    return [TensorSpec(tuple(d - int(n) for d, n in zip(x.shape, sizes, strict=True)), x.dtype)]


def _drop(attributes: Any, arrays: Sequence[Array | None]) -> list[Array]:
    x, count = arrays
    assert x is not None
    assert count is not None
    return [x[tuple(slice(int(n), None) for n in count)].copy()]


def _reorder_drop(node: Node, order: tuple[int, ...]) -> Reordered:
    return Reordered(node.attrs, {1: node.const(1)[list(order)]})


FIRST, LAST = _order((0, 3, 1, 2), "ToyChannelsFirst"), _order((0, 2, 3, 1), "ToyChannelsLast")
ROWS = OpDef(
    "ToyRows", no_attrs, _infer_rows, _rows, lambda: [Sample("odd", {}, (Arg((2, 3, 5)),))],
    accuracy=Accuracy.EXACT, is_custom=True, movement=Movement(is_view=True)
)  # fmt: skip
DROP = OpDef(
    "ToyDrop", no_attrs, _infer_drop, _drop,
    lambda: [Sample("odd", {}, (Arg((3, 5, 7)), Arg.of([1, 0, 2], DType.I32)))],
    accuracy=Accuracy.EXACT, is_custom=True,
    movement=Movement(keeps_values=True, reorder=_reorder_drop)
)  # fmt: skip

OPS = (MIX, FIRST, LAST, ROWS, DROP)


def outside(*ops: OpDef, **hooks: Callable[..., Any]) -> Any:
    """A plugin of these ops (all, where none is named), with the kernel of the one that needs
    one."""
    return plugin_of(
        register_ops=lambda: list(ops or OPS),
        register_kernels=lambda backend: [KernelRule("ToyMix", "toy_mix", _build_mix)],
        **hooks,
    )
