"""STABLEHLO_REDUCE_WINDOW and REDUCE_WINDOW (TFLite version 1): windows of a tensor merged to one
element each, by an operation that a subgraph or an option names.

TFLite's kernel: stablehlo_reduce_window.cc. A window begins with an initial value, which also
stands for all that lies around the tensor, and between its elements. Neither looks at a scale.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np

from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.errors.blame import listed
from tflgpu.ir.budget import MAX_BYTES, bytes_of
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Node, Shape, TensorSpec
from tflgpu.ops.axes import const_integers, elements, integers, present, take_operands
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Arrays,
    Fields,
    OpDef,
    Operand,
    Operands,
    Quantized,
    Sample,
)
from tflgpu.ops.elementwise import check_dtype, widen
from tflgpu.values import frozen

_STABLEHLO, _PLAIN = "STABLEHLO_REDUCE_WINDOW", "REDUCE_WINDOW"
_TYPES = frozenset(
    {DType.BOOL, DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.F32, DType.F64}
)

#: The reference goes over the elements of a window one by one.
_MOST_TAPS = 1 << 20

MERGES: Mapping[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "all": np.logical_and,
    "any": np.logical_or,
}
#: TFLite's `ReduceWindowFunction` codes.
_CODES = {1: "add", 2: "multiply", 3: "minimum", 4: "maximum", 5: "all", 6: "any"}
#: Operators that a subgraph may be, by what they merge by.
COMPUTATIONS: Mapping[str, str] = {
    "ADD": "add",
    "STABLEHLO_ADD": "add",
    "MUL": "multiply",
    "STABLEHLO_MULTIPLY": "multiply",
    "MAXIMUM": "maximum",
    "STABLEHLO_MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "STABLEHLO_MINIMUM": "minimum",
    "LOGICAL_AND": "all",
    "STABLEHLO_AND": "all",
    "LOGICAL_OR": "any",
    "STABLEHLO_OR": "any",
}


@frozen
class StablehloWindow:
    """Sizes and steps by dimension; ``padding`` is pairs, and negative where it cuts off. What the
    options leave out is empty."""

    merge: str
    size: tuple[int, ...]
    strides: tuple[int, ...]
    base: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[int, ...]


@frozen
class ReduceWindow:
    """What merges; the rest are constant operands."""

    merge: str


@frozen
class Windows:
    """The windows of a node, by dimension.

    Attributes:
        size: Elements of a window.
        strides: From one window to the next.
        base: From one element of the operand to the next, with initial values between.
        dilations: From one element of a window to the next.
        low: Initial values before the first element; negative: elements cut off.
        high: The same after the last.
    """

    size: tuple[int, ...]
    strides: tuple[int, ...]
    base: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    def laid_out(self, shape: Shape) -> Shape:
        """The shape of a tensor with the initial values around it, and between its elements."""
        each = zip(shape, self.base, self.low, self.high, strict=True)
        return tuple((d - 1) * b + 1 + max(p, 0) + max(q, 0) for d, b, p, q in each)

    def results(self, shape: Shape) -> Shape:
        """How many windows a tensor of this shape has, by dimension; below 1 where there are
        none."""
        found = []
        for i, dim in enumerate(shape):
            room = (dim - 1) * self.base[i] + 1 + self.low[i] + self.high[i]
            reach = (self.size[i] - 1) * self.dilations[i] + 1
            found.append((room - reach) // self.strides[i] + 1 if room >= reach else 0)
        return tuple(found)


def windows_of(attributes: StablehloWindow | ReduceWindow, vectors: Arrays, rank: int) -> Windows:
    """The windows of a node of either op; ``vectors`` are its operands after the initial value."""
    ones, zeros = (1,) * rank, (0,) * rank
    if isinstance(attributes, ReduceWindow):
        size, strides, dilations = (integers(present(v)) for v in vectors)
        return Windows(size, strides, ones, dilations, zeros, zeros)
    a = attributes
    padding = a.padding or zeros * 2
    return Windows(
        a.size, a.strides or ones, a.base or ones, a.dilations or ones, padding[::2], padding[1::2]
    )


def windows_of_node(node: Node) -> Windows:
    """The windows of a node of either op."""
    vectors = [None if v is None else v.data for v in node.inputs[2:]]
    return windows_of(node.attrs, vectors, len(node.input(0).shape))


def merge_of(op: str, fields: Fields, known: Mapping[str, str] = COMPUTATIONS) -> str:
    """What the subgraph of an operator merges two elements by.

    Raises:
        UnsupportedError: it is not one operator of those that LiteRT takes.
    """
    name = fields.get("computation")
    if name not in known:
        raise UnsupportedError(
            f"{op}: its subgraph is not one of {', '.join(sorted(filter(None, known)))} of its "
            "two inputs"
        )
    return known[name]


def _parse_stablehlo(fields: Fields) -> StablehloWindow:
    return StablehloWindow(
        merge_of(_STABLEHLO, fields),
        fields.integers("window_dimensions"),
        fields.integers("window_strides"),
        fields.integers("base_dilations"),
        fields.integers("window_dilations"),
        fields.integers("padding"),
    )


def _parse_plain(fields: Fields) -> ReduceWindow:
    code = fields.integer("reduce_function")
    if code not in _CODES:
        raise ModelError(f"{_PLAIN}: reduce_function {code} is none of {sorted(_CODES)}")
    return ReduceWindow(_CODES[code])


def _infer(op: str, x: Operand, start: Operand, merge: str, windows: Windows) -> list[TensorSpec]:
    check_dtype(op, x.dtype, _TYPES)
    if elements(start.shape) != 1 or start.dtype is not x.dtype:
        raise ModelError(
            f"{op}: the initial value (operand 1) is {start.spec}; one {x.dtype.value} needed"
        )
    if not 1 <= x.rank <= 6 or 0 in x.shape:
        raise UnsupportedError(f"{op} of {x.spec}; one to six dimensions, none of them empty")
    for what, given in (
        ("size", windows.size),
        ("strides", windows.strides),
        ("base dilations", windows.base),
        ("dilations", windows.dilations),
    ):
        if len(given) != x.rank or any(n < 1 for n in given):
            raise ModelError(f"{op}: {what} {listed(given)} of windows in {x.spec}")
    if len(windows.low) != x.rank or len(windows.high) != x.rank:
        raise ModelError(f"{op}: padding of {len(windows.low)} dimensions for {x.spec}")
    if bytes_of(windows.laid_out(x.shape), x.dtype) > MAX_BYTES:
        raise UnsupportedError(f"{op}: {x.spec} is too large with all that is put around it")
    if elements(windows.size) > _MOST_TAPS:
        raise UnsupportedError(f"{op}: windows of {elements(windows.size):,} elements each")
    shape = windows.results(x.shape)
    if 0 in shape:
        raise UnsupportedError(
            f"{op}: no window of {listed(windows.size)} fits in {list(x.shape)}, so the result "
            "is empty"
        )
    if merge in ("all", "any") and x.dtype is not DType.BOOL:
        raise UnsupportedError(f"{op} by {merge!r} of {x.dtype.value}; bool needed")
    return [TensorSpec(shape, x.dtype)]


def _infer_stablehlo(a: StablehloWindow, operands: Operands) -> list[TensorSpec]:
    x, start = take_operands(_STABLEHLO, operands, 2)
    if a.padding and len(a.padding) != 2 * x.rank:
        raise ModelError(f"{_STABLEHLO}: {len(a.padding)} paddings for {x.spec}")
    return _infer(_STABLEHLO, x, start, a.merge, windows_of(a, (), x.rank))


def _infer_plain(a: ReduceWindow, operands: Operands) -> list[TensorSpec]:
    x, start, *vectors = take_operands(_PLAIN, operands, 5)
    names = ("window shape", "window strides", "window dilations")
    for i, (name, vector) in enumerate(zip(names, vectors, strict=True), 2):
        if vector.dtype is not DType.I64:
            raise ModelError(f"{_PLAIN}: {name} (operand {i}) is {vector.dtype.value}; i64 needed")
        const_integers(_PLAIN, vector, f"{name} (operand {i})", x.rank)
    return _infer(_PLAIN, x, start, a.merge, windows_of(a, [v.data for v in vectors], x.rank))


def _reference(a: StablehloWindow | ReduceWindow, arrays: Arrays) -> list[Array]:
    x, start, *vectors = (present(array) for array in arrays)
    windows = windows_of(a, vectors, x.ndim)
    merge = MERGES[a.merge]
    value = widen(start).reshape(-1)[0]
    sizes = [(d - 1) * b + 1 for d, b in zip(x.shape, windows.base, strict=True)]
    wide = np.full(sizes, value, widen(x).dtype)
    wide[tuple(slice(None, None, b) for b in windows.base)] = x
    both = list(zip(windows.low, windows.high, strict=True))
    wide = np.pad(wide, [(max(p, 0), max(q, 0)) for p, q in both], constant_values=value)
    cut = zip(both, wide.shape, strict=True)
    wide = wide[tuple(slice(max(-p, 0), d - max(-q, 0)) for (p, q), d in cut)]
    shape = windows.results(x.shape)
    found = np.full(shape, value, wide.dtype)
    for tap in itertools.product(*map(range, windows.size)):  # row-major, as the kernel goes
        first = [t * d for t, d in zip(tap, windows.dilations, strict=True)]
        each = zip(first, shape, windows.strides, strict=True)
        part = wide[tuple(slice(f, f + (n - 1) * s + 1, s) for f, n, s in each)]
        found = np.asarray(merge(found, part), wide.dtype)
    return [found.astype(x.dtype, copy=False)]


def _stablehlo_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: Shape,
        name: str,
        size: Shape,
        dtype: DType = DType.F32,
        count: int = 1,
        start: float | None = 0,
        **more: Shape,
    ) -> Sample:
        fields = {"computation": name, "window_dimensions": size, **more}
        value = Arg((), dtype, -9, 9) if start is None else Arg.of(start, dtype)
        return Sample(id, fields, (Arg(shape, dtype, -2, 2), value), accumulates=count)

    return [
        sample("pool", (1, 5, 7, 6), "STABLEHLO_MAXIMUM", (1, 3, 2, 1), start=-9.5,
               window_strides=(1, 2, 2, 1), padding=(0, 0, 1, 1, 0, 1, 0, 0)),
        sample("sums", (2, 7, 5), "STABLEHLO_ADD", (1, 3, 2), count=8, start=None,
               padding=(0, 0, 2, -1, -1, 2)),
        sample("dilated", (5, 6), "MUL", (2, 2), start=1, count=4, base_dilations=(2, 1),
               window_dilations=(3, 2), window_strides=(1, 2)),
        sample("i32", (3, 8), "STABLEHLO_MINIMUM", (2, 1), DType.I32, start=9),
        sample("bool", (3, 7), "LOGICAL_OR", (1, 3), DType.BOOL, start=False),
    ]  # fmt: skip


def _plain_samples() -> list[Sample]:
    def sample(
        id: str,
        shape: Shape,
        code: int,
        size: Shape,
        strides: Shape,
        dilations: Shape,
        dtype: DType = DType.F32,
        start: float = 0,
        count: int = 1,
    ) -> Sample:
        vectors = (Arg.of(v, DType.I64) for v in (size, strides, dilations))
        args = (Arg(shape, dtype, -2, 2), Arg.of(start, dtype), *vectors)
        return Sample(id, {"reduce_function": code}, args, accumulates=count)

    return [
        sample("sums", (2, 5, 7), 1, (1, 2, 3), (1, 1, 2), (1, 2, 1), start=0.5, count=7),
        sample("largest", (1, 5, 6, 8), 4, (1, 2, 3, 1), (1, 2, 1, 1), (1, 1, 1, 1), start=-9),
        sample("i32", (7,), 2, (3,), (2,), (1,), DType.I32, start=1),
        sample("bool", (3, 5), 5, (2, 2), (1, 1), (1, 1), DType.BOOL, start=True),
    ]


OPS = (
    OpDef(
        _STABLEHLO, _parse_stablehlo, _infer_stablehlo, _reference, _stablehlo_samples,
        accuracy=Accuracy.ACCUMULATE, quantized=Quantized(stored=True)
    ),
    OpDef(
        _PLAIN, _parse_plain, _infer_plain, _reference, _plain_samples,
        accuracy=Accuracy.ACCUMULATE, quantized=Quantized(stored=True)
    ),
)  # fmt: skip
