"""What LiteRT takes and gets wrong. Held against the references op by op (`tests/litert`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from tflgpu.errors import TflgpuError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Value
from tflgpu.ops.base import Activation, NoAttrs, OpDef
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.ops.unknown import UnknownOp
from tflgpu.tflite.bodies import subgraphs_of

# Of the fused activations its kernels apply those that are a clamp.
_CLAMPS = frozenset({Activation.NONE, Activation.RELU, Activation.RELU_N1_TO_1, Activation.RELU6})
# XNNPACK's positions of maxima count within a window; in MediaPipe's files, and here, they count
# within the image. Where both are XNNPACK's nobody sees that.
_POSITIONS = frozenset({"MaxPoolingWithArgmax2D", "MaxUnpooling2D"})
# Far below where a channel's number and a radius overflow an int.
_RADIUS = 1 << 24

# Their kernels divide by scales, and check nothing.
_DIVIDES_BY_SCALES = frozenset(
    {
        "ADD",
        "SUB",
        "SQUARED_DIFFERENCE",
        "EQUAL",
        "NOT_EQUAL",
        "LESS",
        "LESS_EQUAL",
        "GREATER",
        "GREATER_EQUAL",
    }
)
_SUMS_OF_STEPS = frozenset({"ADD", "SQUARED_DIFFERENCE"})
_BYTES = frozenset({DType.I8, DType.U8})
_SMALL = _BYTES | {DType.I16}
_DIAGONALS = frozenset({"MATRIX_DIAG", "MATRIX_SET_DIAG"})
_DIAGONAL_TYPES = frozenset(
    {DType.F32, DType.I64, DType.I32, DType.U32, DType.I16, DType.I8, DType.U8}
)
_BIASED = frozenset({"CONV_2D", "FULLY_CONNECTED"})
_LSTMS = frozenset({"LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"})
_I32 = 2  # the schema's number of the type


def quirk_of_loops(node: Node) -> str | None:
    """As `quirk`, of a node that runs subgraphs. LiteRT cannot be stopped in a loop, which may have
    no end; and it hands a body's results to the next round one after another, in the memory of its
    inputs, so that it writes over what is a result at another place."""
    if node.source is None:
        return None
    found, ahead = set[int](), [(node.op, node.source.fields)]
    while ahead:
        name, fields = ahead.pop()
        if name == "WHILE":
            return "nothing could end a loop that LiteRT runs"
        for number in {n for several in subgraphs_of(fields).values() for n in several} - found:
            found.add(number)
            ahead += [(o.name, o.fields) for o in node.source.bodies[number].operators]
    return None


def quirk(node: Node, ops: Mapping[str, OpDef], edge: Collection[int] | None = None) -> str | None:
    """Why LiteRT must not be given a node that it would take; None where nothing is known.

    Args:
        node: A node. One that tflgpu does not define is not judged here.
        ops: Op definitions by name.
        edge: Ids of the values that others see, of a part that is loaded; None for all.
    """
    op = ops.get(node.op)
    if op is None:
        return None
    if any(v is not None and not v.elements for v in (*as_written(node).inputs, *node.outputs)):
        # Some of its kernels divide by a size, and end the process: SOFTMAX, REVERSE_V2.
        return f"LiteRT's kernels are not made for tensors without elements, as {node.op} has one"
    field = op.arithmetic.activation_field
    activation = getattr(node.attrs, field, None) if field else None
    if activation is not None and activation not in _CLAMPS:
        return f"LiteRT leaves out the activation {activation.name} of {node.op}"
    if node.op == "CONCATENATION" and activation not in (None, Activation.NONE):
        return "LiteRT leaves out the activation of CONCATENATION"
    unbiased = node.op == "DEPTHWISE_CONV_2D" and node.optional_input(2) is None
    if unbiased and node.input(0).dtype is not DType.F32:  # f32 ones are given one of zeros
        return "LiteRT crashes on DEPTHWISE_CONV_2D without a bias"
    if (meaningless := _needs_scales(node, op)) is not None:
        return f"LiteRT takes a missing scale for 0 and divides by it: {meaningless}"
    if node.op in _DIVIDES_BY_SCALES and (found := _unscaled(node)) is not None:
        return f"LiteRT ends the process: {node.op} needs a scale of {found.name}"
    if node.op in _SUMS_OF_STEPS and _outgrows(node):
        return (
            f"LiteRT ends the process where the result of {node.op} has far finer steps than its "
            "operands"
        )
    if (
        node.op in _BIASED
        and _is_short(node.optional_input(2))
        and (node.input(0).dtype is DType.I16 and not _says_short(node))
    ):
        return (
            f"LiteRT reads the i32 bias of {node.op} as i64, beyond its end, since the option "
            "quantized_bias_type does not say INT32"
        )
    if _is_hybrid(node):
        if node.op == "DEPTHWISE_CONV_2D" and not _per_axis(node.input(1)):
            return (
                "LiteRT reads a scale a channel of DEPTHWISE_CONV_2D's filter, which has one scale"
            )
        if node.op == "CONV_2D" and node.input(1).packed is DType.I2:
            return "LiteRT reads CONV_2D's filter of 2 bits as bytes, beyond its end"
        if node.op == "BIDIRECTIONAL_SEQUENCE_RNN" and (
            node.attrs.merged or any(v is not None for v in node.inputs[10:])
        ):
            return (
                "LiteRT crashes on merged outputs, or computes something else with weights of a "
                "second input, where the weights of BIDIRECTIONAL_SEQUENCE_RNN are 8-bit numbers"
            )
    if (
        node.op == "BATCH_MATMUL"
        and node.input(0).dtype in _SMALL
        and (quant := node.input(1).quant) is not None
        and quant.per_axis
    ):
        return "LiteRT takes a scale of 0 for a second matrix of BATCH_MATMUL that has several"
    if node.op == "LSTM" and _reads_what_is_absent(node):
        return (
            f"LiteRT ends the process where {node.op} of i8 with 12 intermediates has no layer "
            "norms, no projection or no bias of it"
        )
    if node.op in _LSTMS and _sees_past_its_cells(node):
        return (
            f"LiteRT writes beyond memory where {node.op} of i8 has peepholes and more outputs "
            "than cells"
        )
    if node.op == "LOCAL_RESPONSE_NORMALIZATION" and node.attrs.radius > _RADIUS:
        return f"LiteRT crashes on a radius of {node.attrs.radius}"
    if node.op == "STRIDED_SLICE" and any(
        stride < 0 and node.attrs.shrink_axis_mask >> i & 1
        for i, stride in enumerate(node.const(3))
    ):
        return (
            "LiteRT writes no result of STRIDED_SLICE where a shrunk dimension has a negative "
            "stride"
        )
    if node.op == "FLOOR_MOD" and not node.input(0).dtype.is_float:
        return "LiteRT crashes on FLOOR_MOD of the smallest whole number and -1"
    if node.op == "BROADCAST_ARGS":
        return "LiteRT ends the process where the shapes of BROADCAST_ARGS do not broadcast"
    if node.op == "SPARSE_TO_DENSE" and not node.input(0).is_const:
        return "LiteRT writes anywhere in memory where an index of SPARSE_TO_DENSE is outside"
    if node.op == "STABLEHLO_GATHER" and node.attrs.vector == len(node.input(1).shape):
        return "LiteRT crashes where each index of STABLEHLO_GATHER is a row of its own"
    if node.op == "STABLEHLO_SCATTER" and not _from_zero(node.input(1).data):
        return "LiteRT writes anywhere in memory where an index of STABLEHLO_SCATTER is negative"
    if node.op in _DIAGONALS and node.input(0).dtype not in _DIAGONAL_TYPES:
        return f"LiteRT moves {node.input(0).dtype.value} elements of {node.op} as f32 ones"
    if node.op == "TRANSPOSE" and node.input(1).dtype.itemsize != 4:
        return "LiteRT reads the permutation of TRANSPOSE as i32 numbers, whatever its type"
    if node.op == "SPLIT" and node.input(0).dtype.itemsize < 4:
        return "LiteRT reads the axis of SPLIT as an i32 number, beyond its end"
    if node.op in _POSITIONS:
        positions = node.outputs[1:] or [v for v in node.inputs[1:] if v is not None]
        if edge is None or any(value.id in edge for value in positions):
            return f"LiteRT's positions of maxima are others, which {node.op} would show"
    return None


def as_written(node: Node) -> Node:
    """A node as LiteRT is given it.

    The new shape of a scalar is a constant without elements, which no file can hold: the options of
    RESHAPE say the same. BROADCAST_TO goes from element to element, TILE copies blocks (0.7 us for
    6,144 elements, where the other takes 54).
    """
    shape = node.optional_input(1)
    if node.op == "RESHAPE" and shape is not None and shape.is_const and not shape.elements:
        return Node(node.op, ReshapeAttrs(), node.inputs[:1], node.outputs, origins=node.origins)
    if node.op != "BROADCAST_TO" or not node.shapes_known:
        return node
    x, out = node.input(0), node.outputs[0]
    if x.dtype is not DType.F32 or len(x.shape) != len(out.shape) or 0 in x.shape:
        return node
    multiples = np.array([to // size for size, to in zip(x.shape, out.shape, strict=True)], "i4")
    # An id that no value has: those are not negative.
    times = Value(~out.id, f"multiples of {out.name}", multiples.shape, DType.I32, multiples)
    return Node("TILE", NoAttrs(), [x, times], [out], 3, node.origins)


def _from_zero(indices: Array | None) -> bool:
    """Whether it is known of indices that none is negative."""
    return indices is not None and not (indices < 0).any()


def _is_hybrid(node: Node) -> bool:
    """Whether float data meets weights of 8-bit numbers."""
    x = node.optional_input(0)
    if x is None or x.dtype is not DType.F32:
        return False
    return any(v is not None and v.dtype is DType.I8 and v.quant is not None for v in node.inputs)


def _reads_what_is_absent(node: Node) -> bool:
    """Whether an integer LSTM with gates of 8 bits lacks what LiteRT's kernel reads in any case."""
    told = () if node.source is None else node.source.intermediates
    if node.input(0).dtype is not DType.I8 or len(told) != 12:
        return False
    return any(node.optional_input(i) is None for i in (16, 17, 21, 22, 23))


def _sees_past_its_cells(node: Node) -> bool:
    """Whether an integer LSTM has peepholes, over which LiteRT's kernel goes by the outputs, and a
    projection to more outputs than cells."""
    peephole, projection = node.optional_input(11), node.optional_input(16)
    if node.input(0).dtype is not DType.I8 or peephole is None or projection is None:
        return False
    return projection.shape[0] > projection.shape[-1]


def _per_axis(weights: Value) -> bool:
    """Whether there is a scale for each of a filter's channels."""
    return weights.quant is not None and len(weights.quant.scale) == weights.shape[-1]


def _unscaled(node: Node) -> Value | None:
    """A tensor of stored numbers without a scale."""
    # Of 16-bit numbers the other kernels add and compare what is stored, where there is no scale.
    kinds = _BYTES | {DType.I16} if node.op == "SUB" else _BYTES
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype in kinds and value.quant is None:
            return value
    return None


def _outgrows(node: Node) -> bool:
    """Whether LiteRT's factor from a sum, or from a difference's square, to the steps of the result
    is 1 or more, which its kernel holds to be impossible: a range that calibration found empty."""
    scales = [v.quant.scale[0] for v in (*node.inputs, *node.outputs) if v is not None and v.quant]
    if len(scales) != 3 or not all(scales):
        return False
    steps = 2 * max(scales[:2])
    if node.op == "SQUARED_DIFFERENCE":
        return steps * steps >= 2**14 * scales[2]
    return steps >= 2 ** (15 if node.input(0).dtype is DType.I16 else 20) * scales[2]


def _needs_scales(node: Node, op: OpDef) -> str | None:
    """Why the definition refuses to compute on 8- and 16-bit numbers that have no scale; None where
    it does not. A few zeros tell: it refuses by types."""
    if isinstance(node.attrs, UnknownOp) or op.quantized.on_stored(node.attrs):
        return None
    values = [v for v in node.inputs if v is not None]
    if all(v.dtype not in _SMALL or v.quant is not None for v in values):
        return None
    arrays = [
        None if v is None else np.zeros(v.shape, v.dtype.numpy) if v.data is None else v.data
        for v in node.inputs
    ]
    try:
        op.reference(node.attrs, arrays)
    except UnsupportedError as error:
        return str(error)
    except TflgpuError:
        return None  # of the zeros that stand for what comes: an index, a size
    return None


def _is_short(bias: Value | None) -> bool:
    return bias is not None and bias.dtype is DType.I32


def _says_short(node: Node) -> bool:
    """Whether a file's options say that the bias has 32 bits."""
    source = node.source
    return source is not None and source.fields.get("quantized_bias_type") == _I32
