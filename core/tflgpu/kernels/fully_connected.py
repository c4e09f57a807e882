"""FULLY_CONNECTED: a product of rows with a constant matrix, or with one the model computes."""

from __future__ import annotations

from collections.abc import Iterator

from tflgpu.ir.graph import Node
from tflgpu.kernels.conv import (
    build_at_run_time,
    constant_weights,
    finish_with,
    floats_only,
    slice_of,
)
from tflgpu.kernels.gemm import Gather, Loads, Problem, pack_bias
from tflgpu.kernels.gemv import beside, takes_rows
from tflgpu.kernels.matrix_rows import normalizes_rows
from tflgpu.kernels.products import Family, ProductSize
from tflgpu.kernels.stored_weights import StoredWeights
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, Operand
from tflgpu.lowering.lowering import Lowering
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
    """The kernel with a matrix that the model computes, which is a filter of one tap."""
    _, units, _ = _sizes(low.node)
    build_at_run_time(low, "fully_connected_runtime", gather_rows(units))


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
