"""Means keep their reduced dimensions, as 1, until a node needs them gone.

    x -> MEAN -> RSQRT -> RESHAPE that puts the 1s back -> y
    x -> MEAN {keep_dims} -> RSQRT -> y

Normalization layers come in both forms; this leaves one, by three rewrites, each
also of the ops to its right:

    MEAN(x)                            RESHAPE(MEAN {keep_dims}(x))
    RSQRT(RESHAPE(m))                  RESHAPE(RSQRT(m))           what is computed of means
    MUL(x, RESHAPE(m) to [c])          MUL(x, m of [1, 1, c])      DIV, ADD, SUB, SQUARED_DIFFERENCE

RESHAPEs that then meet cancel (`remove_noops`). A mean that no layer of normalization reads stays
as it is: elsewhere the RESHAPE might cost a copy. Its layers are known by the difference from what
they normalize, or by a RESHAPE behind elementwise nodes that puts the 1s back.
"""

from __future__ import annotations

from tflgpu.ir.graph import Graph, Node, Shape, Value
from tflgpu.ir.rewrite import Rewriter
from tflgpu.ops.affine import is_plain
from tflgpu.ops.axes import integers
from tflgpu.ops.reduce import Reduce, reduced_axes, reduced_shape
from tflgpu.ops.reshape import ReshapeAttrs
from tflgpu.passes.base import Pass, PassContext

#: Nodes in a row that compute with means.
_FAR = 8
_BROADCAST = ("ADD", "SUB", "MUL", "DIV", "SQUARED_DIFFERENCE")


def run(graph: Graph, context: PassContext) -> int:
    """Apply the three wherever they fit."""
    rewriter = Rewriter(graph)
    for node in rewriter.nodes("MEAN"):
        _keep_dims(rewriter, context, node)
    for node in rewriter.nodes():
        if _computes(node, context):
            _move_reshape(rewriter, context, node)
    for node in rewriter.nodes(*_BROADCAST):
        _drop_leading_ones(rewriter, node)
    return rewriter.edits


def _computes(node: Node, context: PassContext) -> bool:
    """Whether a node computes each element of its one result, a number, of one element each."""
    op = context.op(node)
    elementwise = op is not None and len(node.outputs) == 1 and op.is_elementwise(node)
    return elementwise and is_plain(node)


def _keep_dims(rewriter: Rewriter, context: PassContext, node: Node) -> None:
    axes, x = node.input(1).data, node.input(0)
    if axes is None or not is_plain(node) or not isinstance(node.attrs, Reduce):
        return
    if node.attrs.keep_dims:
        return
    found = reduced_axes("MEAN", integers(axes), len(x.shape))
    shape = reduced_shape(x.shape, found, keep_dims=True)
    deviates = any(use.op in ("SQUARED_DIFFERENCE", "SUB") for use in rewriter.uses(x))
    if not (
        deviates
        or _squared_difference(rewriter, x)
        or _put_back(rewriter, context, node.outputs[0], shape)
    ):
        return
    spec = shape, x.dtype, x.name + "/mean"
    kept = rewriter.result_of("MEAN", Reduce(keep_dims=True), node.inputs, spec, before=node)
    rewriter.replace([node], "RESHAPE", ReshapeAttrs(node.outputs[0].shape), [kept])
    rewriter.count()


def _put_back(
    rewriter: Rewriter, context: PassContext, value: Value, shape: Shape, far: int = _FAR
) -> bool:
    """Whether a RESHAPE makes ``shape`` of a mean, or of what elementwise nodes make of it."""
    for use in rewriter.uses(value):
        (result, *_) = use.outputs
        if use.op == "RESHAPE" and result.shape == shape:
            return True
        same = use.op == "RESHAPE" or (_computes(use, context) and result.shape == value.shape)
        if same and far > 0 and _put_back(rewriter, context, result, shape, far - 1):
            return True
    return False


def _squared_difference(rewriter: Rewriter, value: Value) -> bool:
    """Whether a node makes ``value`` that squares a difference, or the two together."""
    square = rewriter.producer(value, "SQUARE")
    if square is not None:
        return rewriter.producer(square.input(0), "SUB") is not None
    return rewriter.producer(value, "SQUARED_DIFFERENCE") is not None


def _move_reshape(rewriter: Rewriter, context: PassContext, node: Node) -> None:
    """From the operands of ``node`` to its result, where all are reshaped from one shape."""
    (result,) = node.outputs
    sources = [
        _unreshaped(rewriter, context, v, result.shape) for v in node.inputs if v is not None
    ]
    shapes = {s.shape for s in sources if s is not None and not s.is_const}
    if len(shapes) != 1 or any(s is None for s in sources):
        return
    (shape,) = shapes
    operands = [_reshaped_constant(rewriter, s, shape) for s in sources if s is not None]
    spec, version = (shape, result.dtype, result.name + "/kept"), node.version
    moved = rewriter.result_of(node.op, node.attrs, operands, spec, before=node, version=version)
    rewriter.replace([node], "RESHAPE", ReshapeAttrs(result.shape), [moved])
    rewriter.count()


def _unreshaped(
    rewriter: Rewriter, context: PassContext, value: Value, shape: Shape
) -> Value | None:
    """The mean, or what is computed of means, that ``value`` was reshaped from, of more dimensions;
    a constant of that shape, or of one element, itself; else None."""
    if value.is_const:
        return value if value.elements == 1 or value.shape == shape else None
    reshape = rewriter.producer(value, "RESHAPE")
    if reshape is None or value.shape != shape:
        return None
    source = reshape.input(0)
    fewer = len(source.shape) > len(shape)
    return source if fewer and _of_means(rewriter, context, source) else None


def _of_means(rewriter: Rewriter, context: PassContext, value: Value, far: int = _FAR) -> bool:
    """Whether elementwise nodes make ``value`` of a mean that keeps its dimensions."""
    maker = rewriter.producer(value)
    if maker is None or maker.op == "MEAN":
        return maker is not None and maker.attrs.keep_dims
    return (
        far > 0
        and _computes(maker, context)
        and any(
            v is not None and v.shape == value.shape and _of_means(rewriter, context, v, far - 1)
            for v in maker.inputs
        )
    )


def _reshaped_constant(rewriter: Rewriter, value: Value, shape: Shape) -> Value:
    if value.data is None or value.elements == 1:
        return value
    return rewriter.const(value.data.reshape(shape), value.name)


def _drop_leading_ones(rewriter: Rewriter, node: Node) -> None:
    """Read what was reshaped, where it broadcasts in the same way."""
    rank = len(node.outputs[0].shape)
    for i, value in enumerate(node.inputs):
        reshape = rewriter.producer(value, "RESHAPE")
        if value is None or reshape is None:
            continue
        source = reshape.input(0)
        fits = len(source.shape) <= rank and _padded(source.shape, rank) == _padded(
            value.shape, rank
        )
        # Fewer dimensions only where another operand has as many as the result.
        others = (v.shape for at, v in enumerate(node.inputs) if v is not None and at != i)
        fits = fits and max(map(len, (source.shape, *others))) == rank
        # What is normalized is one value to all its readers, a chain is not recognized otherwise.
        whole = value.elements == node.outputs[0].elements
        fits = fits and not (whole and rewriter.sole_use(value) is None)
        if fits and source.shape != value.shape:
            rewriter.set_input(node, i, source)
            rewriter.count()


def _padded(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


PASS = Pass("keep_dims", run)
