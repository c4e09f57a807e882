"""Normalization as litert-torch writes it: how many kernels it is, as LiteRT computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.spec import TensorSpec

from tests.compiler.test_found_attention import Building
from tests.passes.torch_layers import check, drawn, mean, ops, ran, without
from tests.running import allocate_and_run, outputs

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")
pytestmark = pytest.mark.usefixtures("passes_alone")


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
        # Groups of 2, 3 and 10 channels: two or four of them fill vectors.
        {"groups": 4}, {"shape": (2, 3, 5, 12), "groups": 4},
        {"shape": (1, 5, 7, 20), "groups": 2},
    ],
)  # fmt: skip
def test_group_norm(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check(group_norm(**how), 1, "fuse_group_norm", monkeypatch, 1e-5)


@pytest.mark.parametrize("how", [{"last": False}, {"shape": (1, 4, 6, 6)}])
def test_group_norm_in_its_own_order(how: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 3 channels, two of them, or of what has channels first."""
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
