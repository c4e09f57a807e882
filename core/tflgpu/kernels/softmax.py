"""SOFTMAX, LOG_SOFTMAX and L2_NORMALIZATION: a team of invocations for every row of channels.

All in f32. The largest element is taken off before exponentials are taken, so that none of them
overflows and their sum is at least 1.
"""

from __future__ import annotations

from collections.abc import Callable

from tflgpu.kernels.activation import activate
from tflgpu.kernels.domain import Domain, ItemSteps, Share, horizontal, share_of, team_shape
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr, SharedArray
from tflgpu.language.types import F32, Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.lowering import Lowering
from tflgpu.lowering.rule import FLOATS, KernelRule, takes
from tflgpu.ops.softmax import L2_EPSILON


class SoftmaxRow:
    """The team at work on one row of channels."""

    def __init__(self, low: Lowering) -> None:
        shape = low.node.input(0).shape
        self._length = shape[-1]
        self.domain = Domain.of(shape, (len(shape) - 1,))
        self.shape = team_shape(low.caps, self.domain.items, self.domain.steps, lanes_first=True)
        self.k: Builder = low.kernel(low.node.op.lower(), self.shape.workgroup)
        view = low.read(self.k, 0)
        self.out = low.write(self.k)
        self.at: Share = share_of(self.k, self.shape)
        self.steps = ItemSteps(self.at, self.domain, view, Scalar.F32)
        self._room: SharedArray | None = self.at.shared(F32)

    @property
    def is_one_element(self) -> bool:
        """Whether a row is its own largest element. A graphics compiler proves that, and takes the
        difference of the two for 0 even where it is NaN; an element subtracted from itself by name
        keeps its NaN (`tflgpu.language.numbers`)."""
        return self._length == 1

    def maximum(self, of: Callable[[Expr], Expr]) -> Expr:
        """The largest ``of(element)`` of the row."""
        k, domain = self.k, self.domain
        slice_, some = self.steps.any()
        best = k.var(domain.fill_padding(k, of(some), slice_, None), "best")
        self.steps.each(
            lambda row, slice_, x: k.set(
                best, k.max(best, domain.fill_padding(k, of(x), slice_, None))
            )
        )
        return self._merge(best, k.max)

    def total(self, of: Callable[[Expr], Expr]) -> Expr:
        """The sum of ``of(element)`` over the row."""
        k, domain = self.k, self.domain
        sums = k.var(k.f32(0.0, 4), "sums")
        self.steps.each(
            lambda row, slice_, x: k.add_to(sums, domain.fill_padding(k, of(x), slice_, 0))
        )
        return self._merge(sums, lambda a, b: a + b)

    def _merge(self, lanes: Variable, merge: Callable[[Expr, Expr], Expr]) -> Expr:
        k = self.k
        value = k.var(horizontal(k, lanes, merge), "merged")
        self.at.combine([self._room], [value], lambda a, b: [merge(a[0], b[0])], everywhere=True)
        return k.let(k.splat(value, 4), "of_row")

    def store(self, of: Callable[[Expr], Expr]) -> None:
        """Write ``of(element)``."""
        k, at = self.k, self.at
        with k.if_(at.valid):
            self.steps.each(lambda row, slice_, x: self.out.store(row, slice_, of(x)))


def _softmax(low: Lowering) -> None:
    row = SoftmaxRow(low)
    k, beta = row.k, float(low.attrs.beta)

    def upward(x: Expr) -> Expr:
        return x if beta >= 0 else -x

    def term(x: Expr) -> Expr:
        # The largest is taken off before beta multiplies, which might leave f32.
        below = upward(x) - largest
        return k.call("exp", below if abs(beta) == 1.0 else below * abs(beta))

    if row.is_one_element:
        row.store(lambda x: k.call("exp", x - x))
    else:
        largest = row.maximum(upward)
        total = row.total(term)
        row.store(lambda x: term(x) / total)
    low.dispatch_groups(k, row.shape.groups)


def _log_softmax(low: Lowering) -> None:
    row = SoftmaxRow(low)
    k = row.k
    if row.is_one_element:
        row.store(lambda x: x - x)
    else:
        largest = row.maximum(lambda x: x)
        total = row.total(lambda x: k.call("exp", x - largest))
        log = k.let(k.call("log", total), "log")
        row.store(lambda x: x - largest - log)
    low.dispatch_groups(k, row.shape.groups)


def _l2(low: Lowering) -> None:
    row = SoftmaxRow(low)
    k = row.k
    total = row.total(lambda x: x * x)
    norm = k.let(k.max(k.call("sqrt", total), L2_EPSILON), "norm")
    row.store(lambda x: activate(k, low.attrs.activation, x / norm))
    low.dispatch_groups(k, row.shape.groups)


RULES = (
    KernelRule("SOFTMAX", "team", _softmax, takes(FLOATS), reads_once=True),
    KernelRule("LOG_SOFTMAX", "team", _log_softmax, takes(FLOATS), reads_once=True),
    KernelRule("L2_NORMALIZATION", "team", _l2, takes(FLOATS), reads_once=True),
)
