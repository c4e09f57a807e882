"""FULLY_CONNECTED: a product of rows with a constant matrix, or with one the model computes."""

from __future__ import annotations

from collections.abc import Iterator

from tflgpu.ir.graph import Node
from tflgpu.kernels.activation import activate
from tflgpu.kernels.conv import constant_weights, finish_with, floats_only, slice_of
from tflgpu.kernels.gemm import Gather, Loads, Problem, gather_by_slice, pack_bias
from tflgpu.kernels.gemv import beside, takes_rows
from tflgpu.kernels.matrix_rows import normalizes_rows
from tflgpu.kernels.products import Family, ProductSize
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Lowering, guard
from tflgpu.lowering.rule import KernelRule, Site
from tflgpu.lowering.view import ReadView
from tflgpu.lowering.weights import Weights

#: Weights of each of the products that are stacked, at most: their copy takes host memory, and
#: larger products fill a device alone.
_MOST_STACKED = 1 << 18


def gather_rows(units: int) -> Gather:
    """Loads of four neighbours of a row, where a tensor of any shape is read as [rows, units]."""

    def at_row(k: Builder, src: ReadView, row: Expr, step: int) -> Loads:
        slices = -(-units // 4)

        def load(base: Expr, offset: Operand) -> tuple[Expr, Expr]:
            at, inside = slice_of(k, base, offset, slices, step)
            if src.channels == units:
                value = src.load(row, at)
            elif src.channels % 4 == 0 and units % 4 == 0:
                # Whole slices follow each other without gaps, in every shape.
                flat = k.let(row * slices + at, "flat")
                value = src.load(flat // src.slices, flat % src.slices)
            else:
                lanes = []
                for lane in range(4):
                    column = k.let(at * 4 + lane, "col")
                    found = src.load_flat(row * units + k.min(column, units - 1))
                    zero = k.const(0, found.type)
                    lanes.append(k.select(column < units, found, zero))
                value = k.vec(lanes)
            return value, inside

        return load

    return at_row


def _sizes(node: Node) -> tuple[int, int, int]:
    """Rows, units in, units out."""
    outs, units = node.input(1).shape
    return node.input(0).elements // units, units, outs


def _size(node: Node, site: Site) -> ProductSize:
    rows, units, _ = _sizes(node)
    return ProductSize(rows, -(-units // 4))


def _problems(low: Lowering) -> Iterator[Problem]:
    """The product with a constant matrix."""
    node = low.node
    rows, units, outs = _sizes(node)
    bias = node.optional_input(2)
    yield Problem(
        rows,
        outs,
        -(-units // 4),
        Weights(node.contents(1), taps=1),
        pack_bias(None if bias is None else bias.data, outs),
        gather_rows(units),
        finish_with(low.attrs.activation),
        in_pairs=units % 8 == 0,
    )


def build_runtime_matrix(low: Lowering) -> None:
    """The kernel with a matrix that the model computes: products along the units, as it lies."""
    node = low.node
    rows, units, outs = _sizes(node)
    k = low.kernel("fully_connected_runtime", (8, 8, 1))
    src, matrix = low.read(k, 0), low.read(k, 1)
    bias = low.read(k, 2) if node.optional_input(2) is not None else None
    out = low.write(k)
    slices = -(-outs // 4)
    column, row = k.let(k.global_id(0), "column"), k.let(k.global_id(1), "row")
    guard(k, column < slices, row < rows)
    gather = gather_by_slice(gather_rows(units), k, src, row)
    sums = [k.var(k.f32(0.0), "acc") for _ in range(4)]
    lines = [k.let(k.min(column * 4 + lane, outs - 1), "line") for lane in range(4)]
    with k.loop(0, -(-units // 4), name="q") as q:
        value = k.let(gather(q), "v")
        for acc, line in zip(sums, lines, strict=True):
            k.add_to(acc, k.dot(value, k.cast(matrix.load(line, q), Scalar.F32)))
    total: Expr = k.vec(sums)
    if bias is not None:
        total = total + k.cast(bias.load(0, column), Scalar.F32)
    out.store(row, column, activate(k, low.attrs.activation, k.let(total, "total")))
    low.dispatch(k, (slices, rows, 1))


def _stacks(node: Node, other: Node, site: Site, rows: bool) -> bool:
    """Whether the weights of two nodes lie alike, in whole slices of outputs, and are few."""
    stored = [StoredWeights.on(site.caps, Weights(n.contents(1), taps=1)) for n in (node, other)]
    forms = {(each.is_whole, each.block, each.in_nibbles) for each in stored}
    matrices = [each.input(1) for each in (node, other)]
    small = all(m.elements <= _MOST_STACKED and m.shape[0] % 4 == 0 for m in matrices)
    return small and len(forms) == 1 and node.attrs == other.attrs


_FAMILY = Family(
    "FULLY_CONNECTED",
    constant_weights,
    _size,
    _problems,
    takes_rows,
    beside,
    normalizes_rows,
    _stacks,
)
RULES = (
    *_FAMILY.rules(),
    KernelRule("FULLY_CONNECTED", "runtime_matrix", build_runtime_matrix, floats_only, rank=-10),
)
