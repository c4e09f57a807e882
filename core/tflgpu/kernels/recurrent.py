"""What recurrent kernels share: sums over the inputs of all steps at once, and a loop over time.

Only what depends on the step before has to wait for it. So the inputs of all steps are multiplied
first, by as many invocations as there are sums; then one workgroup a row of the batch goes through
time, with the hidden state in shared memory, and nothing comes back to the host in between.

Vectors lie in slices of four, and those of several gates behind each other, each padded with zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import attrs
import numpy as np
from numpy.typing import DTypeLike

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.domain import horizontal
from tflgpu.kernels.quantize_on_the_fly import RoundingOver
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Buffer, Expr, Shared
from tflgpu.language.types import F32x4, Scalar
from tflgpu.lowering.caps import DeviceCaps
from tflgpu.lowering.lowering import Lowering, Temp, guard
from tflgpu.lowering.rule import Site
from tflgpu.lowering.view import ReadView, WriteView
from tflgpu.ops.facets import Rounding

_WORKGROUP = 64
_VECTOR = 16  # bytes of a slice in shared memory


def slices_of(size: int) -> int:
    """Slices that hold a vector."""
    return -(-size // 4)


def pack_matrices(matrices: Sequence[Array], dtype: DTypeLike = np.float32) -> Array:
    """[inputs, gates * slices * 4] of matrices [units, inputs], for `multiply`; zeros beside."""
    units, inputs = matrices[0].shape
    found = np.zeros((slices_of(inputs) * 4, len(matrices), slices_of(units) * 4), dtype)
    for gate, matrix in enumerate(matrices):
        found[:inputs, gate, :units] = matrix.T
    return found.reshape(found.shape[0], -1)


def pack_vectors(vectors: Sequence[Array], dtype: DTypeLike = np.float32) -> Array:
    """[gates * slices * 4] of vectors [units]."""
    (units,) = vectors[0].shape
    found = np.zeros((len(vectors), slices_of(units) * 4), dtype)
    found[:, :units] = vectors
    return found.reshape(-1)


def multiply(
    k: Builder,
    total: Expr,
    load: Callable[[Expr], Expr],
    slices: int,
    weights: Buffer,
    column: Expr,
    columns: int,
    start: int = 0,
) -> None:
    """Add to ``total`` (a variable) the products of a vector, which ``load`` gives by slices, and
    slice ``column`` of ``columns`` of packed matrices, which begin at element ``start``."""
    with k.loop(0, slices, name="q") as q:
        value = k.let(k.cast(load(q), Scalar.F32), "x")
        base = k.let(q * (4 * columns) + column + start, "w0")
        for lane in range(4):
            weight = k.load(weights, base + lane * columns, Scalar.F32)
            k.fma_to(total, value.lane(lane), weight)  # type: ignore[arg-type]


@attrs.frozen
class Product:
    """Operand ``index`` of the node, [..., inputs], times a matrix [units, inputs] for each gate."""

    index: int
    matrices: Sequence[Array]


def input_sums(low: Lowering, products: Sequence[Product], biases: Sequence[Array] | None) -> Temp:
    """One dispatch: [rows, gates * padded units], the sums of products and biases, f32. The rows are
    those of the operands, in their order."""
    first = products[0]
    units = len(first.matrices[0])
    columns = len(first.matrices) * slices_of(units)
    rows = int(np.prod(low.node.input(first.index).shape[:-1]))
    sums = low.temp((rows, columns * 4), Scalar.F32)
    k = low.kernel("input_sums", (_WORKGROUP, 1, 1))
    parts = [(low.read(k, p.index), low.weights(k, pack_matrices(p.matrices))) for p in products]
    out = low.write_temp(k, sums, "sums")
    column, row = k.let(k.global_id(0), "column"), k.let(k.global_id(1), "row")
    guard(k, column < columns)
    start = k.f32(0.0, 4)
    if biases is not None:
        start = k.load(low.weights(k, pack_vectors(biases), "bias", scalar=Scalar.F32), column)
    total = k.var(start, "acc")
    for view, weights in parts:
        multiply(k, total, lambda q, v=view: v.load(row, q), view.slices, weights, column, columns)  # type: ignore[misc]
    out.store(row, column, total)
    low.dispatch(k, (columns, rows, 1))
    return sums


@attrs.frozen
class Steps:
    """How a batch of sequences lies: which row of [rows, ...] is step ``time`` of a sequence."""

    batch: int
    times: int
    time_major: bool
    backward: bool = False

    def row(self, k: Builder, sequence: Expr, time: Expr) -> Expr:
        """Where a step is."""
        at = (self.times - 1) - time if self.backward else time
        row = at * self.batch + sequence if self.time_major else sequence * self.times + at
        return k.let(row, "row")


def members(caps: DeviceCaps, work: int) -> int:
    """Invocations that go through a sequence together, for so much work that they can share."""
    count = 1
    while count < work and count * 2 <= caps.most_members:
        count *= 2
    return count


@attrs.frozen(eq=False)
class Team:
    """A workgroup that goes through one sequence."""

    k: Builder
    size: int
    sequence: Expr
    lane: Expr

    @classmethod
    def of(cls, k: Builder) -> Team:
        """The workgroup of a kernel, of one dimension."""
        return cls(
            k, k.workgroup[0], k.let(k.group_id(0), "sequence"), k.let(k.local_id(0), "lane")
        )

    @contextmanager
    def share(self, count: int, name: str) -> Generator[Expr, None, None]:
        """``with team.share(n, "c") as c:`` each number below ``n`` is one invocation's. Barriers
        stand outside."""
        if count <= self.size:
            with self.k.if_(self.lane < count):
                yield self.lane
        else:
            with self.k.loop(self.lane, count, self.size, name=name) as at:
                yield at

    def room(self, name: str, slices: int) -> Shared:
        """A vector that the workgroup shares."""
        return self.k.shared(name, F32x4, slices)

    def fetch(self, room: Shared, state: ReadView, size: int) -> None:
        """Fill a room from a state, [batch, size]."""
        with self.share(slices_of(size), "c") as c:
            value = self.k.cast(state.load(self.sequence, c), Scalar.F32)
            self.k.store_shared(room, c, value)

    def keep(self, room: Shared, state: WriteView, size: int) -> None:
        """What a room has becomes the new state."""
        with self.share(slices_of(size), "c") as c:
            state.store(self.sequence, c, self.k.load_shared(room, c))


def without_padding(k: Builder, value: Expr, slice_: Expr, size: int) -> Expr:
    """Four lanes with zeros past ``size``: there an infinity times a weight of 0 leaves a NaN."""
    valid = size % 4
    if not valid:
        return value
    value = k.let(value, "value")
    kept = k.vec([value.lane(i) if i < valid else k.f32(0.0) for i in range(4)])
    return k.select(slice_.eq(slices_of(size) - 1), kept, value)


def seen(
    k: Builder, room: Shared, slices: int, rounding: Rounding | None
) -> Callable[[Expr], Expr]:
    """How weights see a vector in shared memory, by slices: as it is, or rounded to steps over its
    range, which every invocation finds for itself."""
    if rounding is None:
        return lambda q: k.load_shared(room, q)
    first = k.let(k.load_shared(room, 0), "first")
    low, high = k.var(first, "low"), k.var(first, "high")
    with k.loop(1, slices, name="q") as q:
        value = k.let(k.load_shared(room, q), "value")
        k.set(low, k.min(low, value))
        k.set(high, k.max(high, value))
    # Lanes beyond the vector are 0, which widens no range that matters: all ranges take in 0.
    ends = [k.let(horizontal(k, end, of), "end") for end, of in ((low, k.min), (high, k.max))]
    over = RoundingOver(k, rounding, *ends)
    return lambda q: over.of(k.load_shared(room, q))


def sigmoid(k: Builder, x: Expr) -> Expr:
    """1 / (1 + exp(-x)), four lanes."""
    return k.f32(1.0, 4) / (k.call("exp", -x) + 1.0)


def not_shared(op: str, slices: int, site: Site) -> str | None:
    """Why a device's shared memory does not hold so many slices, None where it does."""
    need = slices * _VECTOR
    if need <= site.caps.shared_bytes:
        return None
    return (
        f"{op}: a step keeps {need} bytes in shared memory; the device has {site.caps.shared_bytes}"
    )


def not_constant(node: Node, indices: Sequence[int], names: Sequence[str]) -> str | None:
    """Why weights cannot be packed: one of those operands is no constant."""
    for index in indices:
        value = node.optional_input(index)
        if value is not None and value.data is None:
            return f"{node.op}: the {names[index]} (operand {index}) is not a constant"
    return None
