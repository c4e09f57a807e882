"""Layers as litert-torch writes them: how many kernels they are, with a pass and without it, and
that all give what LiteRT gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.devices import targets
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import TensorSpec as OperandSpec
from tflgpu.ir.quant import Quantization
from tflgpu.ops.attention import Attention, PackedRows
from tflgpu.ops.base import Operand
from tflgpu.ops.moves import Moves, composed
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes import find_attention
from tflgpu.runtime.opening import compiled_on
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import TensorSpec

from tests.compiler.test_found_attention import Building
from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
pytestmark = pytest.mark.usefixtures("passes_alone")


def drawn(content: bytes) -> list[Array]:
    graph, rng = read_model(content).subgraphs[0], np.random.default_rng(5)
    shapes = [graph.tensors[i].shape for i in graph.inputs]
    return [rng.uniform(-2, 2, shape).astype(np.float32) for shape in shapes]


def ops(content: bytes) -> list[str]:
    """The operators that are left."""
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, enable_serialization=False) as delegate:
        graph = build_graph(read_model(content), 0, delegate.provider.ops)
        return [node.op for node in compiled_on(graph, delegate.provider).graph]


def ran(content: bytes, given: Sequence[Array], **options: Any) -> tuple[list[Array], int]:
    """Results of the NumPy interpreter of kernels, and how many kernels there were."""
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, enable_serialization=False) as delegate,
        tflgpu.Interpreter(
            model_content=content, experimental_delegates=[delegate], **options
        ) as interpreter,
    ):
        allocate_and_run(interpreter, given)
        assert interpreter.report.fully_delegated
        return outputs(interpreter), interpreter.report.dispatches


def without(patch: pytest.MonkeyPatch, name: str) -> None:
    """Compile without a pass."""
    if name == "find_attention":
        patch.setattr(find_attention, "run", lambda *_: frozenset())
        return
    every = targets.default_passes
    patch.setattr(
        targets, "default_passes", lambda more=(): [p for p in every(more) if p.name != name]
    )


def check(
    content: bytes, kernels: int, off: str, patch: pytest.MonkeyPatch, rtol: float = 3e-6
) -> None:
    """As many kernels, more without the pass ``off``, and results like LiteRT's with it and
    without."""
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    found, count = ran(content, given)
    assert count == kernels
    with patch.context() as here:
        without(here, off)
        plain, count = ran(content, given)
    assert count > kernels
    for expected, *ours in zip(outputs(theirs), found, plain, strict=True):
        for one in ours:
            scale = float(np.abs(expected).max())
            np.testing.assert_allclose(one, expected, rtol=0, atol=rtol * scale)


def dense(b: Building, x: int, units: int) -> int:
    rng = np.random.default_rng(4)
    weights = b.const(rng.normal(size=(units, b.shape(x)[-1])))
    made = (int(np.prod(b.shape(x)[:-1])), units)
    return b.op("FULLY_CONNECTED", [x, weights, b.const(rng.normal(size=units))], made)


def mean(b: Building, x: int, *axes: int) -> int:
    """One that leaves out its axes."""
    shape = [size for axis, size in enumerate(b.shape(x)) if axis not in axes]
    return b.op("MEAN", [x, b.const(axes, DType.I32)], shape)


# Normalization


def rms(
    shape: tuple[int, ...] = (2, 5, 8), *, axis: int | Sequence[int] = 2, again: int | None = None
) -> bytes:
    """T5's: the mean leaves out its axis, which comes back behind the epsilon."""
    b = Building()
    x, axes = b.given(*shape), (axis,) if isinstance(axis, int) else axis
    total = b.with_("ADD", mean(b, b.with_("MUL", x, x), *axes), b.const(1e-5))
    back = axes if again is None else (again,)
    kept = [1 if at in back else size for at, size in enumerate(shape)]
    root = b.reshaped(total, *kept)
    y = b.with_("MUL", x, b.op("RSQRT", [root], kept))
    return b.model(b.with_("MUL", y, b.const(np.linspace(0.5, 2, shape[-1]))))


def layer(shape: tuple[int, ...] = (1, 5, 8)) -> bytes:
    """Moments over the first axis, of size 1, and the last one."""
    b = Building()
    x, kept = b.given(*shape), (*shape[:-1], 1)
    average = mean(b, x, 0, 2)
    squares = b.with_("SQUARED_DIFFERENCE", x, b.reshaped(average, *kept))
    total = b.with_("ADD", mean(b, squares, 0, 2), b.const(1e-5))
    root = b.op("RSQRT", [total], b.shape(total))
    shift = b.with_("SUB", b.const(0.0), b.with_("MUL", average, root))
    y = b.with_("MUL", x, b.reshaped(root, *kept))
    return b.model(b.with_("ADD", y, b.reshaped(shift, *kept)))


def static(axes: Sequence[int] = (0, 2), items: int = 1) -> bytes:
    """A layer normalization of static int8 tensors."""
    steps = Quantization((0.02,), (3,))
    b = Building(steps)
    shape, kept = (items, 5, 8), (items, 5, 1)
    x = b.given(*shape)

    def number(value: float) -> int:
        stored = np.full((), round(value / 0.02) + 3, np.int8)
        return b.add(TensorSpec(f"n{len(b.tensors)}", (), DType.I8, stored, quantization=steps))

    average = mean(b, x, *axes)
    squares = b.with_("SQUARED_DIFFERENCE", x, b.reshaped(average, *kept))
    total = b.with_("ADD", mean(b, squares, *axes), number(0.4))
    root = b.op("RSQRT", [total], b.shape(total))
    shift = b.with_("SUB", number(0.5), b.with_("MUL", average, root))
    y = b.with_("MUL", x, b.reshaped(root, *kept))
    return b.model(b.with_("ADD", y, b.reshaped(shift, *kept)))


@pytest.mark.parametrize(("axes", "items"), [((0, 2), 1), ((2,), 3)])
def test_static_layer_norm(
    axes: Sequence[int], items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step is rounded as its tensor stores it, and yet one kernel does all between those that
    read and write whole numbers."""
    content = static(axes, items)
    given = [np.random.default_rng(3).integers(-100, 100, (items, 5, 8)).astype(np.int8)]
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    (found,), count = ran(content, given)
    np.testing.assert_array_equal(found, outputs(theirs)[0])
    without(monkeypatch, "keep_dims")
    (plain,), apart = ran(content, given)
    np.testing.assert_array_equal(plain, outputs(theirs)[0])
    assert (count, apart) == (2, 10)


def test_static_layer_norm_of_several_items() -> None:
    content = static()
    given = np.random.default_rng(3).integers(-100, 100, (3, 5, 8)).astype(np.int8)
    (found,), kernels = ran(content, [given], batch=3)
    assert kernels == 2
    for item, ours in zip(given, found, strict=True):
        theirs = litert.Interpreter(model_content=content)
        allocate_and_run(theirs, [item[None]])
        np.testing.assert_array_equal(ours, outputs(theirs)[0][0])


def test_rms_norm_whose_mean_leaves_out_its_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    check(rms(), 1, "keep_dims", monkeypatch)
    assert ops(rms((1, 5, 8), axis=(0, 2))) == ["RMS_NORMALIZATION", "MUL"]


def test_a_mean_of_another_axis_than_comes_back_stays() -> None:
    content = rms((2, 5, 5), axis=1, again=2)
    _, kernels = ran(content, drawn(content))
    assert kernels > 2


def test_layer_norm_over_an_axis_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    check(layer(), 1, "keep_dims", monkeypatch)


def test_layer_norm_of_several_items() -> None:
    content = layer()
    given = np.random.default_rng(1).normal(size=(3, 5, 8)).astype(np.float32)
    (found,), kernels = ran(content, [given], batch=3)
    assert kernels == 1
    for item, ours in zip(given, found, strict=True):
        theirs = litert.Interpreter(model_content=content)
        allocate_and_run(theirs, [item[None]])
        np.testing.assert_allclose(ours, outputs(theirs)[0][0], rtol=0, atol=1e-5)


def group_norm(
    form: str = "minus", *, shape: tuple[int, ...] = (1, 4, 6, 8), groups: int = 2,
    axes: Sequence[int] = (2, 3), number: float = -1.0, gamma: Sequence[int] | None = None,
    last: bool = True,
) -> bytes:  # fmt: skip
    """Of an image whose channels are put first, and last again; ``form``: what the mean times the
    scale is taken from beta by, or "apart", for scale and shift behind the groups."""
    b, rng = Building(), np.random.default_rng(6)
    n, h, w, c = shape
    x = b.given(*(shape if last else (n, c, h, w)))
    first = b.transposed(x, 0, 3, 1, 2) if last else x
    x = b.reshaped(first, n, groups, c // groups, *((h, w) if form == "apart" else (h * w,)))
    axes = (2, 3, 4) if form == "apart" else axes
    kept = [1 if at in axes else size for at, size in enumerate(b.shape(x))]

    def average(value: int) -> int:
        return b.op("MEAN", [value, b.const(axes, DType.I32)], kept, keep_dims=True)

    mean = average(x)
    gap = b.with_("SUB", x, mean)
    total = b.with_("ADD", average(b.with_("MUL", gap, gap)), b.const(1e-5))
    root = b.op("RSQRT", [total], kept)
    each = gamma or (1, groups, c // groups, 1)
    scale, shift = (b.const(rng.uniform(0.5, 2, each)) for _ in range(2))
    if form == "apart":
        y = b.reshaped(b.with_("MUL", gap, root), n, c, h, w)
        scale, shift = (b.const(rng.uniform(0.5, 2, (1, c, 1, 1))) for _ in range(2))
    else:
        scale = b.with_("MUL", root, scale)
        if form == "minus":
            less = b.with_("MUL", b.with_("MUL", mean, b.const(number)), scale)
            shift = b.with_("ADD", less, shift)
        else:
            shift = b.with_("SUB", shift, b.with_("MUL", mean, scale))
        y, scale, shift = first, b.reshaped(scale, n, c, 1, 1), b.reshaped(shift, n, c, 1, 1)
    y = b.with_("ADD", b.with_("MUL", y, scale), shift, fused_activation_function=1)
    return b.model(b.transposed(y, 0, 2, 3, 1) if last else y)


@pytest.mark.parametrize(
    "how",
    [
        {}, {"form": "sub"}, {"form": "apart"}, {"shape": (3, 2, 5, 8)}, {"groups": 1},
        {"shape": (1, 3, 5, 16), "groups": 4}, {"gamma": (4, 1)},
    ],
)  # fmt: skip
def test_group_norm(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check(group_norm(**how), 1, "fuse_group_norm", monkeypatch, 1e-5)


@pytest.mark.parametrize("how", [{"groups": 4}, {"last": False}, {"shape": (1, 4, 6, 6)}])
def test_group_norm_in_its_own_order(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 2 or 3 channels, or of what has channels first."""
    content = group_norm(**how)
    assert "MEAN" not in ops(content)
    with monkeypatch.context() as here:
        without(here, "fuse_group_norm")
        assert "MEAN" in ops(content)
    check(content, ran(content, drawn(content))[1], "fuse_group_norm", monkeypatch, 1e-5)


@pytest.mark.parametrize(
    "how", [{"number": -2.0}, {"axes": (3,), "gamma": (1, 2, 4, 1)}, {"shape": (2, 4, 6, 8),
    "gamma": (2, 2, 4, 1)}],
)  # fmt: skip
def test_what_is_no_group_norm_stays(how: Any) -> None:
    content = group_norm(**how)
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    (found,), _ = ran(content, given)
    np.testing.assert_allclose(found, outputs(theirs)[0], rtol=0, atol=1e-4)
    assert ("MEAN" in ops(content)) == ("axes" not in how)


# Attention

N, T, S, H, D = 2, 5, 7, 8, 4


def attention(
    *, items: int = 1, mask: Sequence[int] | None = None, tokens_first: bool = False,
    factor: Any = 0.6, rows: Sequence[int] = (T,), behind: Sequence[int] = (),
) -> bytes:  # fmt: skip
    """As torch has it: the root of the scale on either side, and one axis for items and heads
    around each product. A mask is added behind a RESHAPE to ``behind``, if that is a shape."""
    b = Building()

    def operand(tokens: int, width: int) -> int:
        if not tokens_first:
            return b.given(items, N, tokens, width)
        return b.transposed(b.given(items, tokens, N, width), 0, 2, 1, 3)

    q, k, v = operand(T, H), operand(S, H), operand(S, D)
    q = b.with_("MUL", q, b.const(factor))
    k = b.transposed(b.with_("MUL", k, b.const(factor)), 0, 1, 3, 2)
    q, k = b.reshaped(q, items * N, *rows, H), b.reshaped(k, items * N, *rows[:-1], H, S)
    scores = b.product(q, k)
    if behind:
        scores = b.reshaped(scores, *behind)
    if mask is not None:
        scores = b.with_("ADD", scores, b.given(*mask))
    shares = b.softmax(b.reshaped(scores, items, N, T, S))
    y = b.product(b.reshaped(shares, items * N, T, S), b.reshaped(v, items * N, S, D))
    y = b.transposed(b.reshaped(y, items, N, T, D), 0, 2, 1, 3)
    return b.model(b.reshaped(y, items, T, N * D))


@pytest.mark.parametrize(
    ("how", "kernels"),
    [
        ({}, 1), ({"items": 3}, 1), ({"tokens_first": True, "items": 2}, 1), ({"factor": [2.0]}, 1),
        ({"mask": (1, N, T, S)}, 1),  # T5's, which gives the scores an axis more
        ({"mask": (3, 1, T, S), "items": 3, "behind": (3, N, T, S)}, 1),
        ({"mask": (1, S), "items": 3}, 1),
        ({"mask": (T, S), "behind": (1, 1, N, T, S)}, 1),
        ({"mask": (2, 1, N, T, S), "items": 2, "behind": (2, 1, N, T, S)}, 1),
        ({"mask": (2, 1, 1, S), "items": 2, "behind": (2, N, T, S)}, 1),
    ],
)  # fmt: skip
def test_attention(how: Any, kernels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = attention(**how)
    assert "ATTENTION" in ops(content)
    check(content, kernels, "find_attention", monkeypatch)


@pytest.mark.parametrize(
    "factor", [[[[1.0]], [[2.0]]], np.linspace(0.5, 1, H), np.inf], ids=["heads", "numbers", "inf"]
)
def test_factors_that_are_no_scale_stay(factor: Any) -> None:
    found = ops(attention(factor=factor))
    assert (found.count("ATTENTION"), found.count("MUL")) == (1, 2)
    assert "MUL" not in ops(attention())


def test_a_mask_that_repeats_within_an_axis_stays() -> None:
    """Two items and two heads are one axis of four; a mask for each head has no form for it."""
    b = Building()
    q, k, v = b.given(4, T, H), b.given(4, S, H), b.given(4, S, D)
    scores = b.reshaped(b.product(q, k, adj_y=True), 2, 2, T, S)
    scores = b.reshaped(b.with_("ADD", scores, b.given(1, 2, T, S)), 4, T, S)
    content = b.model(b.product(b.softmax(scores), v))
    assert "ATTENTION" in ops(content)  # of two axes that the mask has
    b = Building()
    q, k, v = b.given(1, 4, T, H), b.given(1, 4, S, H), b.given(1, 4, S, D)
    scores = b.reshaped(b.product(q, k, adj_y=True), 2, 2, T, S)
    scores = b.reshaped(b.with_("ADD", scores, b.given(1, 2, T, S)), 1, 4, T, S)
    assert "ATTENTION" not in ops(b.model(b.product(b.softmax(scores), v)))


def multi_query(
    *, bias: bool = False, constant: bool = False, mask: Sequence[int] | None = None,
    activation: int = 0,
) -> bytes:  # fmt: skip
    """Heads that share keys and values: the matrices of all queries by those of one head."""
    b = Building()
    rng = np.random.default_rng(2)
    q = b.with_("MUL", b.given(1, T, N, H), b.const(0.5))
    k = b.const(rng.normal(size=(S, H))) if constant else b.reshaped(b.given(1, S, H), S, H)
    v = b.transposed(b.reshaped(b.given(1, S, D), S, D), 1, 0)
    more = [b.const(np.linspace(0, 1, S))] if bias else []
    q = b.reshaped(q, T * N, H)
    scores = b.op(
        "FULLY_CONNECTED", [q, k, *more], (T * N, S), fused_activation_function=activation
    )
    scores = b.reshaped(scores, 1, T, N, S)
    if mask is not None:
        scores = b.with_("ADD", scores, b.given(*mask))
    shares = b.reshaped(b.softmax(scores), T * N, S)
    return b.model(b.op("FULLY_CONNECTED", [shares, v], (T * N, D)))


@pytest.mark.parametrize("mask", [None, (1, T, 1, S), (S,)])
def test_multi_query_attention(mask: Sequence[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    content = multi_query(mask=mask)
    assert ("ATTENTION" in ops(content)) == (mask is None or len(mask) == 1)
    if "ATTENTION" in ops(content):
        check(content, 1, "find_attention", monkeypatch)


@pytest.mark.parametrize("how", [{"bias": True}, {"constant": True}, {"activation": 1}])
def test_products_with_weights_or_more_stay(how: Any) -> None:
    assert "ATTENTION" not in ops(multi_query(**how))


def packed(
    items: int = 1, cut: str = "heads", heads: int = N, depth: int = H, also: bool = False
) -> bytes:
    """Queries, keys and values of one layer; ``cut``: the axis that tells them, before heads, or
    within each head's numbers."""
    b, apart = Building(), []
    x = dense(b, b.given(items, T, 8), 3 * heads * depth)
    shape = (items, T, 3, heads, depth) if cut == "heads" else (items, T, heads, 3, depth)
    x = b.transposed(
        b.reshaped(x, *shape), *((2, 0, 3, 1, 4) if cut == "heads" else (3, 0, 2, 1, 4))
    )
    for at in range(3):
        start, size = b.const((at, 0, 0, 0, 0), DType.I32), (1, items, heads, T, depth)
        one = b.op("SLICE", [x, start, b.const(size, DType.I32)], size)
        apart.append(b.reshaped(one, items, heads, T, depth))
    q, k, v = apart
    scores = b.with_("MUL", b.product(q, k, adj_y=True), b.const(0.25))
    y = b.transposed(b.product(b.softmax(scores), v), 0, 2, 1, 3)
    return b.model(y, *([b.op("NEG", [k], b.shape(k))] if also else []))


@pytest.mark.parametrize(
    "how", [{}, {"items": 3}, {"cut": "numbers"}, {"heads": 1}, {"items": 2, "heads": 3}]
)
def test_packed_queries_keys_and_values_are_read_in_place(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = packed(**how)
    assert not {"SLICE", "TRANSPOSE"} & set(ops(content)[:-1])
    check(content, 2, "read_rows", monkeypatch, 1e-5)


def test_packed_attention_of_several_items() -> None:
    content = packed()
    given = np.random.default_rng(1).normal(size=(3, T, 8)).astype(np.float32)
    (found,), kernels = ran(content, [given], batch=3)
    assert kernels == 2
    for item, ours in zip(given, found, strict=True):
        theirs = litert.Interpreter(model_content=content)
        allocate_and_run(theirs, [item[None]])
        np.testing.assert_allclose(ours, outputs(theirs)[0][0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "more", "said"),
    [
        (PackedRows((1, 2, 5, 8), 21, (0, 5, 1)), {}, "has no rows"),
        (PackedRows((1, 2, 5, 8), -1, (0, 5, 1)), {}, "has no rows"),
        (PackedRows((1, 2, 5, 8), 9, (0, -5, 1)), {}, "has no rows"),
        (PackedRows((1, 2, 5, 4), 0, (0, 5, 1)), {}, "has no rows"),
        (PackedRows((1, 2, 5, 8), 20, (0, 5, 1)), {"tokens_last": True}, "last axis"),
    ],
)
def test_rows_that_a_tensor_does_not_have(rows: PackedRows, more: Any, said: str) -> None:
    attributes = Attention(1.0, heads_first=True, rows=(None, None, rows), **more)
    operands = [Operand(OperandSpec((1, 2, 5, 8), DType.F32)) for _ in range(2)]
    values = Operand(OperandSpec((3, 10, 8), DType.F32))
    with pytest.raises(tflgpu.TflgpuError, match=said):
        builtin_ops()["ATTENTION"].infer(attributes, [*operands, values])


def rows_apart(order: Sequence[int], start: Sequence[int], width: int) -> bytes:
    """Queries that are no whole rows of what they are taken from, or not in order."""
    b = Building()
    x = b.transposed(b.op("ABS", [b.given(1, N, T, 2 * H)], (1, N, T, 2 * H)), *order)
    size = (1, N, T, width)
    q = b.op("SLICE", [x, b.const(start, DType.I32), b.const(size, DType.I32)], size)
    k, v = b.given(1, N, S, width), b.given(1, N, S, D)
    return b.model(b.product(b.softmax(b.product(q, k, adj_y=True)), v))


@pytest.mark.parametrize(
    "content",
    [packed(also=True), packed(depth=6), rows_apart((0, 1, 2, 3), (0, 0, 0, 4), H)],
    ids=["read by others", "odd rows", "parts of rows"],
)
def test_rows_that_are_not_in_place(content: bytes) -> None:
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    found, kernels = ran(content, given)
    assert "ATTENTION" in ops(content)
    assert kernels > 2
    for ours, expected in zip(found, outputs(theirs), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)


# Dense layers of sequences


def residual(lead: Sequence[int] = (1,), also: str = "") -> bytes:
    """An ADD of [1, n, c] and [n, c]."""
    b = Building()
    x = b.given(*lead, 5, 8)
    made = dense(b, b.reshaped(x, 5, 8), 8)
    total = b.with_("ADD", x, made)
    return b.model(total, *([b.with_("MUL", made, made)] if also else []))


def swish(also: str = "", *, half: bool = False) -> bytes:
    b = Building()
    made = b.reshaped(dense(b, b.given(2, 3, 8), 12), 2, 3, 12)
    share = b.op("LOGISTIC", [made], (2, 3, 12))
    share = b.with_("MUL", share, b.const([[0.5]])) if half else share
    y = b.with_("MUL", made, share)
    more = {"gate": share, "dense": made, "": None}[also]
    return b.model(y, *([] if more is None else [b.op("ABS", [more], (2, 3, 12))]))


@pytest.mark.parametrize("lead", [(1,), (1, 1)])
def test_a_residual_with_an_axis_more(lead: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    check(residual(lead), 1, "sink_reshapes", monkeypatch)


@pytest.mark.parametrize("half", [False, True])
def test_a_value_times_its_gate_behind_a_reshape(
    half: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(swish(half=half), 1, "sink_reshapes", monkeypatch)


@pytest.mark.parametrize(
    "content", [residual(also="dense"), swish("gate"), swish("dense")],
    ids=["residual", "gate", "dense"],
)  # fmt: skip
def test_what_others_read_too_is_stored(content: bytes) -> None:
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    found, kernels = ran(content, given)
    assert kernels > 1
    for ours, expected in zip(found, outputs(theirs), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


# Moves


def gathered(moves: Moves, data: Array) -> Array:
    """The elements that moves take of a flat operand, in order."""
    places = np.full((), moves.offset)
    for size, stride in zip(moves.sizes, moves.strides, strict=True):
        places = places[..., None] + np.arange(size) * stride
    taken: Array = data[places.reshape(-1)]
    return taken


STEPS = [
    Moves(0, (3, 4, 2), (8, 2, 1)), Moves(0, (4, 2, 3), (2, 1, 8)), Moves(0, (12, 2), (2, 1)),
    Moves(0, (2, 12), (1, 2)), Moves(0, (4, 3, 2), (6, 2, 1)), Moves(0, (2, 2, 6), (12, 1, 2)),
    Moves(0, (6, 4), (1, 6)), Moves(0, (24,), (1,)), Moves(0, (8, 3), (3, 1)),
]  # fmt: skip
CUTS = [Moves(0, (2, 4), (8, 1), 4), Moves(0, (3,), (8,), 5), Moves(0, (2, 3), (12, 2), 6)]


@pytest.mark.parametrize("then", [*STEPS, *CUTS])
@pytest.mark.parametrize("first", [*STEPS, Moves(0, (12, 2), (4, 1), 3), Moves(0, (24,), (0,))])
def test_moves_in_a_row_are_one(first: Moves, then: Moves) -> None:
    data, found = np.arange(60), composed(first, then)
    expected = gathered(then, gathered(first, data))
    if found is not None:
        np.testing.assert_array_equal(gathered(found, data), expected)


def test_moves_that_undo_each_other_are_none() -> None:
    found = composed(Moves(0, (6, 4), (1, 6)), Moves(0, (2, 2, 6), (2, 1, 4)))
    assert found is not None
    assert found.is_identity((24,))


@pytest.mark.parametrize(
    "then", [Moves(0, (4,), (-2,), 6), Moves(0, (3, 2), (4, 3)), Moves(0, (0,), (1,))]
)
def test_what_is_not_regular_is_not_composed(then: Moves) -> None:
    assert composed(Moves(0, (2, 2, 3), (3, 6, 1)), then) is None


def tokens(h: int = 4, w: int = 4, c: int = 8, order: Sequence[int] = (0, 2, 1)) -> bytes:
    """Of an image, as a patch embedding makes them: channels first, rows and columns as one axis,
    channels last."""
    b = Building()
    x = b.op("ABS", [b.given(1, h, w, c)], (1, h, w, c))
    x = b.reshaped(b.transposed(x, 0, 3, 1, 2), 1, c, h * w)
    x = b.transposed(x, *order)
    return b.model(b.op("NEG", [x], b.shape(x)))


def patches(c: int = 8, *, back: bool = False) -> bytes:
    """MobileViT's: the four places of a 2 x 2 patch become rows of their own, or pixels again."""
    b = Building()
    if back:
        x = b.op("ABS", [b.given(4, 4, c)], (4, 4, c))
        x = b.transposed(b.reshaped(x, 1, 4, 4, c), 0, 3, 2, 1)
        x = b.transposed(b.reshaped(x, c * 2, 2, 2, 2), 0, 2, 1, 3)
        x = b.transposed(b.reshaped(x, 1, c, 4, 4), 0, 2, 3, 1)
    else:
        x = b.op("ABS", [b.given(1, 4, 4, c)], (1, 4, 4, c))
        x = b.reshaped(b.transposed(x, 0, 3, 1, 2), c * 2, 2, 2, 2)
        x = b.reshaped(b.transposed(x, 0, 2, 1, 3), 1, c, 4, 4)
        x = b.reshaped(b.transposed(x, 0, 3, 2, 1), 4, 4, c)
    return b.model(b.op("NEG", [x], b.shape(x)))


def test_tokens_of_an_image_are_reshaped(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ops(tokens()) == ["ABS", "RESHAPE", "NEG"]
    check(tokens(), 2, "merge_moves", monkeypatch)


@pytest.mark.parametrize("back", [False, True])
def test_patches_are_one_move(back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ops(patches(back=back)).count("TRANSPOSE") == 1
    check(patches(back=back), 2, "merge_moves", monkeypatch)


@pytest.mark.parametrize(
    "content", [tokens(3, 5, 7, (1, 0, 2)), patches(3), tokens(order=(2, 1, 0))]
)
def test_other_moves_are_as_before(content: bytes) -> None:
    given = drawn(content)
    theirs = litert.Interpreter(model_content=content)
    allocate_and_run(theirs, given)
    (found,), _ = ran(content, given)
    np.testing.assert_array_equal(found, outputs(theirs)[0])


def test_a_move_that_others_read_stays_for_them() -> None:
    b = Building()
    x = b.op("ABS", [b.given(1, 4, 4, 8)], (1, 4, 4, 8))
    first = b.reshaped(b.transposed(x, 0, 3, 1, 2), 1, 8, 16)
    last = b.transposed(first, 0, 2, 1)
    found = ops(b.model(b.op("NEG", [last], (1, 16, 8)), b.op("NEG", [first], (1, 8, 16))))
    assert found.count("TRANSPOSE") == 1
