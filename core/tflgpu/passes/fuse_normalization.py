"""The many small nodes of a normalization layer become MEAN_STDDEV_NORMALIZATION, scale, shift.

Converters write a layer in one of three ways. In all m = MEAN(x), v = MEAN(SQUARED_DIFFERENCE(x,
m)), r = RSQRT(v + epsilon), with reduced dimensions kept as 1 (`keep_dims` sees to that), and s = r
* gamma:

    y = ADD(MUL(x, s), SUB(beta, MUL(m, s)))         batch, instance and layer normalization
    y = MUL(SUB(x, m), s)                            layer normalization
    y = DIV(SUB(x, m), SQRT(v + epsilon))            normalization by hand

Where the difference is needed anyway, v may be MEAN(SQUARE(SUB(x, m))). Each becomes y = ADD(MUL(n,
gamma), beta) with n = MEAN_STDDEV_NORMALIZATION(x). Gamma and beta may be constants, may be
computed, and may be absent.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tflgpu.ir.graph import Node, Value
from tflgpu.ir.rewrite import Rewriter, merged_origins
from tflgpu.ops.affine import is_plain, scalar_of
from tflgpu.ops.axes import integers
from tflgpu.ops.base import Activation, NoAttrs
from tflgpu.ops.binary import BinaryAttrs
from tflgpu.ops.normalize import NAME, MeanStddev
from tflgpu.ops.reduce import Reduce, reduced_axes
from tflgpu.passes.base import Pass, PassContext, both_orders, per_node
from tflgpu.values import frozen


@frozen(eq=False)
class Deviation:
    """``root`` is 1 / the standard deviation of ``x`` over ``axes``; ``mean`` is its mean."""

    x: Value
    mean: Value
    axes: tuple[int, ...]
    epsilon: float
    nodes: tuple[Node, ...]


@frozen(eq=False)
class Layer:
    """A normalization that a chain of nodes computes: x normalized, times ``gamma``, plus
    ``beta``."""

    deviation: Deviation
    gamma: Value | None
    beta: Value | None
    nodes: tuple[Node, ...]


@frozen(eq=False)
class Reader:
    """The graph and constants that chains are read with."""

    rewriter: Rewriter
    context: PassContext

    def maker(self, value: Value, op: str) -> Node | None:
        """The node of an op, without an activation, that makes a value of floats."""
        node = self.rewriter.producer(value, op)
        plain = node is not None and is_plain(node) and self.context.is_linear(node)
        return node if plain else None


def _rewrite(rewriter: Rewriter, context: PassContext, node: Node) -> bool:
    """Fuse the chain that ends with a node."""
    layer = next(_layers(Reader(rewriter, context), node), None) if is_plain(node) else None
    activation = context.activation_of(node)
    final = context.activation_node(activation)
    if layer is None or (final is None and activation is not Activation.NONE):
        return False
    _write(rewriter, node, layer, activation, final)
    return True


# Reading a chain backwards from its last node. Each step yields every way to read what is there.


def _layers(reader: Reader, last: Node) -> Iterator[Layer]:
    for layer in _FORMS[last.op](reader, last):
        # Gamma and beta may be broadcast to x, not x to them.
        if layer.deviation.x.shape == last.outputs[0].shape:
            yield layer


def _scaled_and_shifted(reader: Reader, last: Node) -> Iterator[Layer]:
    for scaled, shift in both_orders(last):
        product, moved = reader.maker(scaled, "MUL"), reader.maker(shift, "SUB")
        centre = None if moved is None else reader.maker(moved.input(1), "MUL")
        if product is None or moved is None or centre is None:
            continue
        for x, scale in both_orders(product):
            for found, gamma, nodes in scales(reader, scale):
                expected = [(found.mean, scale), (scale, found.mean)]
                same = any(centre.inputs[0] is a and centre.inputs[1] is b for a, b in expected)
                if found.x is x and same and not _is_infinite(gamma):
                    chain = (*found.nodes, *nodes, centre, moved, product, last)
                    yield Layer(found, gamma, moved.input(0), chain)


def _is_infinite(gamma: Value | None) -> bool:
    """Whether a scale is a constant with an infinity: x * s - mean * s is NaN then, and its product
    with what is normalized is not."""
    return gamma is not None and gamma.data is not None and not np.isfinite(gamma.data).all()


def _centred(reader: Reader, last: Node) -> Iterator[Layer]:
    for centred, scale in both_orders(last):
        difference = reader.maker(centred, "SUB")
        if difference is None:
            continue
        for found, gamma, nodes in scales(reader, scale):
            if difference.input(0) is found.x and difference.input(1) is found.mean:
                chain = (*found.nodes, *nodes, difference, last)
                yield Layer(found, gamma, None, chain)


def _divided(reader: Reader, last: Node) -> Iterator[Layer]:
    difference = reader.maker(last.input(0), "SUB")
    if difference is None:
        return
    for found in _deviations(reader, last.input(1), "SQRT"):
        if difference.input(0) is found.x and difference.input(1) is found.mean:
            yield Layer(found, None, None, (*found.nodes, difference, last))


#: How the chain is read whose last node is of an op.
_FORMS = {"ADD": _scaled_and_shifted, "MUL": _centred, "DIV": _divided}


def scales(
    reader: Reader, value: Value
) -> Iterator[tuple[Deviation, Value | None, tuple[Node, ...]]]:
    """A deviation and gamma whose product ``value`` is."""
    for found in _deviations(reader, value):
        yield found, None, ()
    product = reader.maker(value, "MUL")
    if product is not None:
        for root, gamma in both_orders(product):
            for found in _deviations(reader, root):
                yield found, gamma, (product,)


def _deviations(reader: Reader, value: Value, op: str = "RSQRT") -> Iterator[Deviation]:
    """The tensor of which ``value`` is 1 / the standard deviation; with SQRT, the standard
    deviation."""
    for epsilon, average, nodes in averages(reader, value, op):
        for x, mean, squares in _squares(reader, average.input(0)):
            centre = reader.maker(mean, "MEAN")
            if centre is None or centre.input(0) is not x:
                continue
            axes = axes_of(centre)
            if axes is not None and axes == axes_of(average):
                yield Deviation(x, mean, axes, epsilon, (centre, *squares, average, *nodes))


def averages(
    reader: Reader, value: Value, op: str
) -> Iterator[tuple[float, Node, tuple[Node, Node]]]:
    """The epsilon and the MEAN of which ``value`` is the root, or 1 / the root, and the nodes
    behind that."""
    root = reader.maker(value, op)
    total = None if root is None else reader.maker(root.input(0), "ADD")
    if root is None or total is None:
        return
    for mean, constant in both_orders(total):
        epsilon, average = scalar_of(constant), reader.maker(mean, "MEAN")
        if epsilon is not None and epsilon > 0 and average is not None:
            yield epsilon, average, (total, root)


def _squares(reader: Reader, value: Value) -> Iterator[tuple[Value, Value, tuple[Node, ...]]]:
    """The two operands of which ``value`` is the squared difference, in either order, and the nodes
    that make it."""
    at_once = reader.maker(value, "SQUARED_DIFFERENCE")
    square = reader.maker(value, "SQUARE")
    difference = None if square is None else reader.maker(square.input(0), "SUB")
    if at_once is not None:
        nodes: tuple[Node, ...] = (at_once,)
    elif square is not None and difference is not None:
        nodes = (difference, square)
    else:
        return
    for x, mean in both_orders(nodes[0]):
        yield x, mean, nodes


def axes_of(node: Node) -> tuple[int, ...] | None:
    """The axes of a MEAN that keeps them, without those of size 1 (unless all are)."""
    data, shape = node.input(1).data, node.input(0).shape
    if data is None or not isinstance(node.attrs, Reduce) or not node.attrs.keep_dims:
        return None
    axes = reduced_axes("MEAN", integers(data), len(shape))
    return tuple(a for a in axes if shape[a] != 1) or axes or None


# Writing the layer


def _write(
    rewriter: Rewriter, last: Node, layer: Layer, activation: Activation, final: str | None
) -> None:
    """``final`` is the op that computes the activation; None where there is none."""
    found, (result,) = layer.deviation, last.outputs
    beta = None if scalar_of(layer.beta) == 0 else layer.beta
    steps: list[tuple[str, Value]] = []
    if layer.gamma is not None:
        steps.append(("MUL", layer.gamma))
    if beta is not None:
        steps.append(("ADD", beta))
    normalize = MeanStddev(found.axes, found.epsilon)
    origins = merged_origins(*layer.nodes)
    if not steps and final is None:
        rewriter.replace([last], NAME, normalize, [found.x]).origins = origins
        return
    spec = result.shape, result.dtype, result.name + "/normalized"
    value = rewriter.result_of(NAME, normalize, [found.x], spec, before=last, origins=origins)
    if not steps and final is not None:
        rewriter.replace([last], final, NoAttrs(), [value])
        return
    for op, operand in steps[:-1]:
        spec = result.shape, result.dtype, result.name + "/scaled"
        value = rewriter.result_of(op, BinaryAttrs(), [value, operand], spec, before=last)
    op, operand = steps[-1]
    rewriter.replace([last], op, BinaryAttrs(activation), [value, operand])


PASS = Pass("fuse_normalization", per_node(_rewrite, *_FORMS))
