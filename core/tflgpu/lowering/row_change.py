"""Rows that kernels make of a tensor as they read it.

    RMS_NORMALIZATION(x) -> y, FULLY_CONNECTED(y) -> q, FULLY_CONNECTED(y) -> k      two kernels

A product with few rows reads whole rows of its input in every workgroup. What normalizes a row, or
rounds it, needs the whole row too, and little time beside the weights, so each workgroup does it
for itself: a dispatch less, and a wait for it. A product on matrix tiles adds up a row while it is
staged, and normalizes the products of the row (`tflgpu.kernels.matrix_rows`).
"""

from __future__ import annotations

from tflgpu.errors import KernelError
from tflgpu.ir.graph import Value
from tflgpu.language.builder import Builder
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.view import ReadView
from tflgpu.ops.quantized import Rounding
from tflgpu.values import evolve, frozen


@frozen
class RowChange:
    """What is made of a row; with all of its defaults nothing.

    Attributes:
        length: Elements of a row.
        epsilon: Is added to the mean square by whose root the row is divided; None where it is
            not.
        gamma: By which each element is multiplied then; None for 1.
        rounding: To which 8-bit steps over its range the row is rounded then; None where it is
            not.
        centred: Whether the row's mean is subtracted first, so that it is divided by the root of
            its variance.
    """

    length: int = 0
    epsilon: float | None = None
    gamma: Value | None = None
    rounding: Rounding | None = None
    centred: bool = False


@frozen
class RowSource:
    """Rows as a kernel makes them: of a tensor, by a change, whose ``gamma`` is this one."""

    view: ReadView
    change: RowChange
    gamma: ReadView | None


@frozen(eq=False)
class InlinedRows:
    """A tensor whose rows are made by the kernels that read it, so that it has no buffer."""

    source: Value
    change: RowChange = RowChange()

    def then(self, change: RowChange) -> InlinedRows:
        """What another change makes of these rows: they may be rounded."""
        both = evolve(self.change, length=change.length, rounding=change.rounding)
        return InlinedRows(self.source, change if change.rounding is None else both)

    def view(self, reader: Lowering, k: Builder, value: Value) -> ReadView:
        """Raises: KernelError: the reader's rule says that it makes rows, and did not."""
        raise KernelError(f"{reader.node.label} reads {value}, whose rows it has to make")

    def bind(self, low: Lowering, k: Builder) -> RowSource:
        """Its operands in a kernel."""
        view, gamma = low.read_value(k, self.source, "src0"), self.change.gamma
        numbers = None if gamma is None else low.read_value(k, gamma, "gamma")
        return RowSource(view, evolve(self.change, gamma=None), numbers)


def rows_of(low: Lowering) -> InlinedRows:
    """How the rows of operand 0 are made; they are its own where it has a buffer."""
    operand = low.node.input(0)
    found = low.inlined.get(operand.id)
    return found if isinstance(found, InlinedRows) else InlinedRows(operand)
