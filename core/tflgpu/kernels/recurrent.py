"""Shared by recurrent kernels: sums over the inputs of all steps at once, and a team that goes
through time; real numbers in f32, stored ones in i32.

Only what depends on the step before has to wait for it. So the inputs of all steps are multiplied
first, by as many invocations as there are sums; then one workgroup a row of the batch goes through
time, with the hidden state in shared memory, and nothing comes back to the host in between.

Vectors lie in slices of four, and those of several gates behind each other, each padded with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Node
from tflgpu.kernels.domain import horizontal
from tflgpu.kernels.fixed_point import shift_right, upper_half
from tflgpu.kernels.quantize_on_the_fly import RoundingOver
from tflgpu.kernels.quantized_sums import byte_storage
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.tree import Expr, KernelBuffer, SharedArray
from tflgpu.language.types import Scalar
from tflgpu.language.variables import Variable
from tflgpu.lowering.grid import each_vector
from tflgpu.lowering.lowering import Lowering, Temp
from tflgpu.lowering.rule import Site
from tflgpu.lowering.view import ReadView
from tflgpu.lowering.weights import whole_slices
from tflgpu.ops.fixed_point import I16, Multiplier
from tflgpu.ops.quantized import Rounding
from tflgpu.values import frozen

_VECTOR = 16  # bytes of a slice in shared memory
#: What a slice of stored sums has: what is added first, then a multiplier's value, left and right.
ROWS = 4


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
    return whole_slices(np.stack(vectors), dtype).reshape(-1)


def multiply(
    k: Builder,
    total: Variable,
    load: Callable[[Expr], Expr],
    slices: int,
    weights: KernelBuffer,
    column: Expr,
    columns: int,
    start: int = 0,
) -> None:
    """Add to ``total`` the products of a vector, which ``load`` gives by slices, and slice
    ``column`` of ``columns`` of packed matrices, which begin at element ``start``; in the type of
    ``total``."""
    scalar = total.type.scalar
    with k.loop(0, slices, name="q") as q:
        value = k.let(k.cast(load(q), scalar), "x")
        base = k.let(q * (4 * columns) + column + start, "w0")
        for lane in range(4):
            weight = k.load(weights, base + lane * columns, scalar)
            if scalar is Scalar.F32:
                k.fma_to(total, value.lane(lane), weight)
            else:
                k.add_to(total, k.splat(value.lane(lane), 4) * weight)


@frozen
class InputProduct:
    """Operand ``index`` of the node, [..., inputs], times a matrix [units, inputs] for each
    gate."""

    index: int
    matrices: Sequence[Array]


@frozen(eq=False)
class Factors:
    """How sums of stored numbers become those of the next step: a number to add, for each gate
    [units], and a multiplier for each."""

    offsets: Sequence[Array]
    multipliers: Sequence[Multiplier]

    @property
    def packed(self) -> Array:
        """[column, one of `ROWS`, lane]."""
        rows = [list(self.offsets)]
        rows += [
            [np.full(len(self.offsets[0]), getattr(m, part)) for m in self.multipliers]
            for part in ("value", "left", "right")
        ]
        packed = np.stack([pack_vectors(row, np.int32) for row in rows])
        return np.asarray(packed.reshape(ROWS, -1, 4).transpose(1, 0, 2))

    def finished(self, k: Builder, total: Expr, numbers: KernelBuffer, column: Expr) -> Expr:
        """Sums times the multiplier of their slice; ``numbers`` begin with what is `packed`."""
        value, left, right = (
            k.let(k.load(numbers, column * ROWS + row), "factor") for row in (1, 2, 3)
        )
        grows = any(m.left for m in self.multipliers)
        return shift_right(k, upper_half(k, total << left if grows else total, value), right)

    def overflow(self, matrices: Sequence[Array]) -> bool:
        """Whether a sum of 8-bit numbers times these matrices, shifted to the left as its
        multiplier wants, may need more than 32 bits."""
        return any(
            int((np.abs(m.astype(np.int64)).sum(axis=1) * 128 + np.abs(o)).max()) << by.left
            >= 1 << 31
            for m, o, by in zip(matrices, self.offsets, self.multipliers, strict=True)
        )


def input_sums(
    low: Lowering,
    products: Sequence[InputProduct],
    biases: Sequence[Array] | None = None,
    factors: Factors | None = None,
    result: int | None = None,
) -> Temp:
    """One dispatch: [rows, gates * padded units], the sums of products and biases, f32; of stored
    numbers finished by ``factors`` and clamped to 16 bits, i32. The rows are those of the operands,
    in their order. They are result number ``result`` of the node too, where that is given."""
    first = products[0]
    columns = len(first.matrices) * slices_of(len(first.matrices[0]))
    rows = math.prod(low.node.input(first.index).shape[:-1])
    name, scalar, storage = "input_sums", Scalar.F32, None
    if factors is not None:
        name, scalar, storage = "integer_input_sums", Scalar.I32, byte_storage(low)
    sums = low.temp((rows, columns * 4), scalar)
    k = low.kernel(name)
    parts = [
        (
            low.read(k, p.index),
            low.weights(k, pack_matrices(p.matrices, scalar.numpy), scalar=storage),
        )
        for p in products
    ]
    outs = [low.write_temp(k, sums, "sums"), *([] if result is None else [low.write(k, result)])]
    with each_vector(low, k, outs[0]) as (row, column):
        start, numbers = k.f32(0.0, 4), None
        if factors is not None:
            numbers = low.weights(k, factors.packed, "factors", scalar=scalar)
            start = k.load(numbers, column * ROWS)
        elif biases is not None:
            start = k.load(low.weights(k, pack_vectors(biases), "bias", scalar=scalar), column)
        total = k.var(start, "acc")
        for view, weights in parts:
            load = partial(view.load, row)
            multiply(k, total, load, view.slices, weights, column, columns)
        value: Expr = total
        if factors is not None and numbers is not None:
            value = k.clamp(factors.finished(k, total, numbers, column), *I16)
        for out in outs:
            out.store(row, column, value)
    return sums


class Sections:
    """Arrays of whole slices behind each other in one buffer: some devices bind no more than
    eight."""

    def __init__(self) -> None:
        self._parts: list[Array] = []
        self.starts: dict[str, int] = {}

    def add(self, name: str, data: Array) -> None:
        """One more; `starts` says at which slice it begins."""
        self.starts[name] = sum(part.size for part in self._parts) // 4
        self._parts.append(data.reshape(-1))

    def buffer(
        self, low: Lowering, k: Builder, name: str, scalar: Scalar | None = None
    ) -> KernelBuffer:
        """The buffer of a kernel."""
        return low.weights(k, np.concatenate(self._parts), name, scalar=scalar)


@frozen
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


@frozen(eq=False)
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


def without_padding(k: Builder, value: Expr, slice_: Expr, size: int) -> Expr:
    """Four lanes with zeros past ``size``: there an infinity times a weight of 0 leaves a NaN."""
    valid = size % 4
    if not valid:
        return value
    value = k.let(value, "value")
    kept = k.vec([value.lane(i) if i < valid else k.f32(0.0) for i in range(4)])
    return k.select(slice_.eq(slices_of(size) - 1), kept, value)


def seen(
    k: Builder, room: SharedArray, slices: int, rounding: Rounding | None
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


def logistic(k: Builder, x: Expr) -> Expr:
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


def not_constant(node: Node, indices: Sequence[int], names: Mapping[int, str]) -> str | None:
    """Why weights cannot be packed: one of those operands is no constant."""
    for index in indices:
        value = node.optional_input(index)
        if value is not None and value.contents is None:
            what = names.get(index, "weights")
            return f"{node.op}: the {what} (operand {index}) is not a constant"
    return None


def side_by_side(k: Builder, first: ReadView, second: ReadView, row: Expr, slice_: Expr) -> Expr:
    """A slice of rows that lie behind each other along the channels."""
    lanes = []
    for lane in range(4):
        channel = k.let(slice_ * 4 + lane, "channel")
        one = first.load_lane(row, k.min(channel, first.channels - 1))
        place = k.clamp(channel - first.channels, 0, second.channels - 1)
        lanes.append(k.select(channel < first.channels, one, second.load_lane(row, place)))
    return k.vec(lanes)
