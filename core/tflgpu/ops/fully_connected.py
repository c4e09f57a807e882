"""FULLY_CONNECTED, versions 1-14: float input of any rank, weights in the default format.

Operands: input, weights [units, depth], and a bias that may be absent. The input is read as
rows of ``depth``; the output is [rows, units], or with ``keep_num_dims`` the input's shape with
its last dimension replaced. Of weights without columns TFLite makes zeros, with no bias and no
activation, a row for each along the input's last dimension.
"""

from __future__ import annotations

import attrs
import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.activation import computable_activation
from tflgpu.ops.axes import elements, present
from tflgpu.ops.base import (
    Accuracy,
    Activation,
    Arg,
    Arithmetic,
    Arrays,
    Contents,
    Fields,
    FileForm,
    OnDevice,
    OpDef,
    Operands,
    Quantized,
    Sample,
)
from tflgpu.ops.batch_matmul import BatchMatMul
from tflgpu.ops.digit_sums import of_filter, of_rows
from tflgpu.ops.facets import Batched, Filter, Items, Spread, no_zeros
from tflgpu.ops.items import each_row
from tflgpu.ops.positions import Along, Positions, regrouped
from tflgpu.ops.products import check_bias, finish, floats, needed, take
from tflgpu.ops.quantize_on_the_fly import rounding_of
from tflgpu.ops.quantized import Hybrid, InDigits, OnTheFly, Rounding, is_in_blocks


@attrs.frozen
class FullyConnected:
    """Options of a fully connected layer; ``rounding`` is that of float rows where the weights
    are 8-bit numbers."""

    activation: Activation = Activation.NONE
    keep_num_dims: bool = False
    rounding: Rounding = Rounding.SYMMETRIC


def _parse(fields: Fields) -> FullyConnected:
    if fields.integer("weights_format") != 0:
        raise UnsupportedError(
            "FULLY_CONNECTED: weights in the shuffled 4x16 int8 format are not supported; "
            "convert the model without weight shuffling"
        )
    keeps = fields.flag("keep_num_dims")
    return FullyConnected(computable_activation(fields), keeps, rounding_of(fields))


def _output_shape(attributes: FullyConnected, image: Shape, weights: Shape) -> Shape:
    units, depth = weights
    if not depth and image:
        return (*image[:-1], units) if attributes.keep_num_dims else (elements(image[:-1]), units)
    if attributes.keep_num_dims:
        if not image or image[-1] != depth:
            raise ModelError(
                f"FULLY_CONNECTED: keep_num_dims needs {depth} as the last dimension of the "
                f"input {list(image)}"
            )
        return (*image[:-1], units)
    if not depth or elements(image) % depth:
        raise ModelError(
            f"FULLY_CONNECTED: an input of shape {list(image)} is not made of rows of {depth}, "
            f"the depth of the weights {list(weights)}"
        )
    return (elements(image) // depth, units)


def _infer(attributes: FullyConnected, operands: Operands) -> list[TensorSpec]:
    op = "FULLY_CONNECTED"
    given = take(op, operands, ("input", "weights", "bias"), optional=1)
    # An input of nothing is made of no rows; weights of nothing give rows of nothing, or of zeros.
    source = needed(op, given[0], "input", batch=0 if given[0] is None else given[0].rank)
    weights = needed(op, given[1], "weights", 2, batch=2, beside=source)
    check_bias(op, given[2], weights.shape[0])
    return [TensorSpec(_output_shape(attributes, source.shape, weights.shape), source.dtype)]


def _reference(attributes: FullyConnected, arrays: Arrays) -> list[Array]:
    op = "FULLY_CONNECTED"
    source, weights = floats(op, arrays[0]), floats(op, arrays[1])
    bias = arrays[2] if len(arrays) > 2 else None
    shape = _output_shape(attributes, source.shape, weights.shape)
    if not weights.shape[1]:
        return [np.zeros(shape, present(arrays[0]).dtype)]
    sums = source.reshape(-1, weights.shape[1]) @ weights.T
    return [finish(np.asarray(sums).reshape(shape), bias, attributes.activation, arrays[0])]


def _case(
    id: str,
    source: Shape,
    units: int,
    depth: int,
    *,
    keep: bool = False,
    bias: bool = True,
    const: bool = True,
    activation: Activation = Activation.NONE,
) -> Sample:
    fields = {"fused_activation_function": activation.value, "keep_num_dims": keep}
    args = (
        Arg(source),
        Arg((units, depth), const=const),
        Arg((units,), const=const) if bias else None,
    )
    return Sample(id, fields, args, version=5 if keep else 1, accumulates=depth)


def _samples() -> list[Sample]:
    return [
        _case("vector", (1, 13), 7, 13),
        _case("aligned", (1, 64), 32, 64, activation=Activation.RELU),
        _case("batch", (5, 17), 11, 17, activation=Activation.RELU6),
        _case("many_rows", (67, 19), 23, 19),
        _case("deep", (1, 1031), 10, 1031),
        _case("wide", (2, 5), 517, 5),
        _case("one_unit", (3, 29), 1, 29),
        _case("tanh", (2, 11), 5, 11, activation=Activation.TANH),
        _case("one_depth", (3, 1), 5, 1),
        _case("no_bias", (2, 9), 6, 9, bias=False),
        _case("flattened", (2, 3, 5, 7), 4, 105),
        _case("rows_of_image", (2, 3, 5, 7), 6, 7),
        _case("merged_rows", (4, 3, 2), 5, 12),
        _case("from_rank1", (11,), 3, 11),
        _case("keep3", (2, 3, 7), 5, 7, keep=True),
        _case("keep4", (1, 3, 5, 10), 13, 10, keep=True, activation=Activation.RELU_N1_TO_1),
        _case("keep1", (9,), 4, 9, keep=True),
        _case("runtime_weights", (3, 14), 6, 14, const=False),
        _case("runtime_odd", (1, 7), 5, 7, const=False, bias=False),
    ]


def _has_no_columns(node: Node) -> bool:
    return not node.input(1).shape[1]


def _limits(node: Node) -> str | None:
    return (
        "weights without columns give zeros, which need no kernel"
        if _has_no_columns(node)
        else None
    )


def _spread(weights: Array, channels: int) -> Spread | None:
    if weights.shape[1] % channels:
        return None
    # A row of the weights may take in several pixels.
    return lambda numbers: np.tile(numbers, weights.shape[1] // channels)


def _part_bytes(node: Node) -> bool:
    """Whether there are weights of 2 or 4 bits whose rows do not fill whole bytes, which XNNPACK
    leaves to LiteRT's own kernel."""
    weights = node.input(1)
    return weights.packed is not None and weights.shape[1] * weights.packed.packed % 8 != 0


def _hybrid(node: Node) -> Hybrid:
    """A row of ``depth`` has a range of its own."""
    shape, weights = node.input(0).shape, node.input(1)
    depth, rounding = weights.shape[1], node.attrs.rounding
    whole = (weights.dtype is DType.I8 and weights.is_const) or is_in_blocks(weights)
    if whole and not _part_bytes(node):
        rounding = Rounding.EVEN  # XNNPACK takes it, and looks at no option
    if shape and shape[-1] == depth:
        return Hybrid((OnTheFly((len(shape) - 1,), rounding),))
    return Hybrid((OnTheFly((1,), rounding, (elements(shape) // depth, depth)),))


_ROLES = Filter(out=0, spread=_spread, zeros=no_zeros)
_of_filter = of_filter(_ROLES, narrow=True, products=True, own=_part_bytes)


def _in_digits(node: Node) -> InDigits | None:
    """XNNPACK takes no weights that are computed."""
    if node.input(1).contents is not None:
        return _of_filter(node)
    if node.optional_input(2) is not None:
        return None
    plain = attrs.evolve(node.attrs, activation=Activation.NONE)
    return of_rows(node, node.attrs.activation, plain)


def _batch(node: Node, items: Items) -> Batched | str:
    """Of weights that each item has its own of, products of matrices."""
    if 1 not in items.operands:
        return each_row(0)(node, items)
    x, weights = node.input(0), node.input(1)
    if node.optional_input(2) is not None or node.attrs.activation is not Activation.NONE:
        return "its weights differ from item to item, and it has a bias or an activation"
    if x.dtype is not weights.dtype or not weights.shape[1]:
        return f"its weights, {weights.spec}, differ from item to item, and its input is {x.spec}"
    rows: tuple[int, ...] = (elements(x.shape) // weights.shape[1], weights.shape[1])
    shapes = {
        0: (items.count, *rows) if 0 in items.operands else rows,
        1: (items.count, *weights.shape),
    }
    return Batched(BatchMatMul(adj_y=True), op="BATCH_MATMUL", operands=(0, 1), shapes=shapes)


def _positions(node: Node, cut: Node) -> Positions | str:
    x, weights, result = node.input(0), node.input(1), node.outputs[0]
    less, less_result = cut.input(0).shape, cut.outputs[0].shape
    last = Along(len(result.shape) - 1)
    if x.shape[-1:] != weights.shape[1:]:
        return "a row of its weights takes in several of its input"
    rows = regrouped(x.shape[:-1], less[:-1], result.shape[:-1], less_result[:-1])
    plain = node.optional_input(2) is None and node.attrs.activation is Activation.NONE
    return Positions([[*rows, Along(fill=0)], [last, Along(fill=0)], [last]], is_product=plain)


OPS = (
    OpDef(
        "FULLY_CONNECTED",
        _parse,
        _infer,
        _reference,
        _samples,
        accuracy=Accuracy.ACCUMULATE,
        file=FileForm(max_version=14),
        batch=_batch,
        positions=_positions,
        arithmetic=Arithmetic(activation_field="activation", filter=_ROLES),
        quantized=Quantized(hybrid=_hybrid, digits=_in_digits),
        contents=Contents(zeros_where=_has_no_columns),
        device=OnDevice(limits=_limits),
    ),
)
