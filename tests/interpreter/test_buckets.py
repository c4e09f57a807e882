"""``shape_buckets``: plans that compute several sizes, held against LiteRT and plans for one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import DeviceError, DeviceLostError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.runtime import opening

from tests.interpreter.bucket_models import LONGEST, WORDS, encoder, sequence
from tests.running import results
from tests.small_models import small_model, tensor_of
from tests.watched_device import WatchedDevice

KERNELS = {"backend": "cpu_ref", "device": 1}
WIDTH = 6
rng = np.random.default_rng(5)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that were compiled, in order."""
    graphs: list[Any] = []
    real = opening.compile_or_load

    def counted(graph: Any, *rest: Any) -> Any:
        graphs.append(graph)
        return real(graph, *rest)

    monkeypatch.setattr(opening, "compile_or_load", counted)
    return graphs


@pytest.fixture
def delegate() -> Iterator[tflgpu.GpuDelegate]:
    with tflgpu.GpuDelegate(**KERNELS, shape_buckets=(8, 32), enable_serialization=False) as made:
        yield made


def opened(content: bytes, delegate: tflgpu.GpuDelegate | None) -> tflgpu.Interpreter:
    delegates = [] if delegate is None else [delegate]
    return tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)


def at(interpreter: Any, arrays: Sequence[Array]) -> list[Any]:
    """What the model makes of inputs of any shape."""
    for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.resize_tensor_input(detail["index"], array.shape)
    interpreter.allocate_tensors()
    return results(interpreter, arrays)


def text(length: int) -> list[Array]:
    ids = rng.integers(0, WORDS, (1, length), np.int32)
    return [ids, (np.arange(length) < length - length // 3).astype(np.int32)[None]]


def same(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=3e-6)


def said(interpreter: tflgpu.Interpreter) -> str:
    return interpreter.report.choice[-1]


@pytest.mark.parametrize("where", ["kernels", "vulkan", "opencl"])
def test_twenty_sizes_compile_three_plans(where: str, compiled: list[Any]) -> None:
    """Sizes of both ends and between, up and down, twice; and one beyond all buckets."""
    if where != "kernels":
        pytest.importorskip(f"tflgpu_{where}")
    options: Mapping[str, Any] = KERNELS if where == "kernels" else {"backend": where}
    buckets = [4, 16, 64]
    sizes = [2, 3, 4, 5, 9, 64, 16, 17, 63, 7, 8, 12, 15, 20, 24, 31, 32, 33, 40, 50]
    with tflgpu.GpuDelegate(**options, shape_buckets=buckets, enable_serialization=False) as on:
        mine, theirs = opened(encoder(), on), opened(encoder(), None)
        for size in sizes + sizes[::-3]:
            inputs = text(size)
            same(at(mine, inputs), at(theirs, inputs))
            bucket = next(b for b in buckets if b >= size)
            assert said(mine) == f"size {size} runs by the plan for {bucket} (shape_buckets)"
        assert len(set(sizes)) == 20
        assert len(compiled) == 3
        assert {g.inputs[0].shape for g in compiled} == {(1, b) for b in buckets}
        inputs = text(65)
        same(at(mine, inputs), at(theirs, inputs))
        assert said(mine).endswith("this size has a plan of its own: no bucket has the size 65")
        assert mine.report.fully_delegated
        mine.close()
        theirs.close()


def chain(*steps: Any, **tensors: Any) -> bytes:
    """A model of x [1, any, 6]."""
    found = {"x": sequence(DType.F32, WIDTH), **tensors}
    return small_model(found, *steps)


def ints(*data: Any) -> Array:
    return np.array(data, np.int32)


def weights(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


ROW, SEQ = (1, WIDTH), (1, 1, WIDTH)
NONE = {"fused_activation_function": 0}
#: What has to be told which positions count, and what does not.
COMPUTED: dict[str, bytes] = {
    # Rows of zeros are divided by 0 behind the size.
    "nan_behind": chain(
        ("s = SUM(x, c)", {"keep_dims": True}), ("q = DIV(x, s)", NONE), "y = SUM(q, t)",
        c=ints(2), t=ints(1), s=(1, 1, 1), q=SEQ, y=ROW,
    ),
    "average_of_all": chain("e = EXP(x)", "y = MEAN(e, a)", e=SEQ, a=ints(1, 2), y=(1,)),
    "average_of_products": chain(
        "e = EXP(x)", ("s = BATCH_MATMUL(e, e)", {"adj_y": True}), "y = MEAN(s, a)",
        e=SEQ, s=(1, 1, 1), a=ints(1, 2), y=(1,),
    ),
    "least": chain("e = EXP(x)", "y = REDUCE_MIN(e, t)", e=SEQ, t=ints(1), y=ROW),
    "largest": chain(
        "e = EXP(x)", "n = NEG(e)", "y = REDUCE_MAX(n, t)", e=SEQ, n=SEQ, t=ints(-2), y=ROW,
    ),
    "where": chain(
        "e = EXP(x)", "n = NEG(e)", ("y = ARG_MAX(n, t)", {"output_type": 2}),
        e=SEQ, n=SEQ, t=ints(1), y=tensor_of(ROW, DType.I32),
    ),
    "over_time": chain(
        "e = EXP(x)", "u = TRANSPOSE(e, o)", ("y = SOFTMAX(u)", {"beta": 0.5}),
        e=SEQ, u=(1, WIDTH, 1), o=ints(0, 2, 1), y=(1, WIDTH, 1),
    ),
    "sums_so_far": chain(
        "e = EXP(x)", "y = CUMSUM(e, t)", ("z = CUMSUM(e, t)", {"reverse": True}),
        e=SEQ, t=ints(1)[0], y=SEQ, z=SEQ,
    ),
    "products": chain(
        "e = EXP(x)", ("g = BATCH_MATMUL(e, e)", {"adj_x": True}),
        ("s = BATCH_MATMUL(e, e)", {"adj_y": True}), ("y = BATCH_MATMUL(s, e)", {}),
        e=SEQ, g=(1, WIDTH, WIDTH), s=(1, 1, 1), y=SEQ,
    ),
    # Weights that are computed: x^T x, and both sides of a softmax.
    "rows": chain(
        "r = RESHAPE(x, f)", "u = TRANSPOSE(r, o)", "e = EXP(u)",
        ("y = FULLY_CONNECTED(e, e, -)", NONE),
        f=ints(-1, WIDTH), r=(1, WIDTH), o=ints(1, 0), u=(WIDTH, 1), e=(WIDTH, 1),
        y=(WIDTH, WIDTH),
    ),
    # The size as a number, and positions from the end.
    "size": chain(
        "n = SHAPE(x)", ("l = STRIDED_SLICE(n, b, d, i)", {"shrink_axis_mask": 1}),
        ("k = CAST(l)", {"in_data_type": 2, "out_data_type": 0}), ("q = DIV(x, k)", NONE),
        "h = RANGE(l, zero, minus)", ("p = CAST(h)", {"in_data_type": 2, "out_data_type": 0}),
        "v = RESHAPE(p, w)", ("y = MUL(q, v)", NONE),
        n=tensor_of((3,), DType.I32), b=ints(1), d=ints(2), i=ints(1), l=tensor_of((), DType.I32),
        k=(), q=SEQ, zero=ints(0)[0], minus=ints(-1)[0], h=tensor_of((1,), DType.I32), p=(1,),
        w=ints(1, -1, 1), v=(1, 1, 1), y=SEQ,
    ),
    # Behind the size the first makes numbers, where the second reads zeros in a plan for one size.
    "windows": chain(
        "q = EXPAND_DIMS(x, z)",
        ("c = CONV_2D(q, w, b)", {"stride_h": 1, "stride_w": 1, "padding": 0, **NONE}),
        ("y = DEPTHWISE_CONV_2D(c, d, -)", {"stride_h": 1, "stride_w": 1, "padding": 0,
                                            "dilation_w_factor": 2, "depth_multiplier": 1, **NONE}),
        z=ints(1)[0], q=(1, 1, 1, WIDTH), w=weights(5, 1, 4, WIDTH), b=weights(5),
        c=(1, 1, 1, 5), d=weights(1, 1, 3, 5), y=(1, 1, 1, 5),
    ),
    # A token before all others, positions that are taken away, zeros at both ends, windows that
    # stay inside: sizes that differ from the input's by a number.
    "first_token": chain(
        "e = EXP(x)", ("f = CONCATENATION(k, e)", {"axis": 1, **NONE}),
        ("s = BATCH_MATMUL(f, f)", {"adj_y": True}), ("a = SOFTMAX(s)", {"beta": 1.0}),
        ("g = BATCH_MATMUL(a, f)", {}), "m = MEAN(g, t)", "r = SLICE(g, o, l)",
        "p = PAD(r, b)", "q = EXPAND_DIMS(p, t)",
        ("c = CONV_2D(q, w, -)", {"stride_h": 1, "stride_w": 1, "padding": 1, **NONE}),
        "y = REDUCE_MAX(c, h)", "z = MEAN(c, h)",
        e=SEQ, k=weights(1, 1, WIDTH), f=(1, 2, WIDTH), s=(1, 2, 2), a=(1, 2, 2), g=(1, 2, WIDTH),
        t=ints(1), m=ROW, o=ints(0, 2, 0), l=ints(-1, -1, -1), r=(1, 0, WIDTH),
        b=ints([0, 0], [1, 2], [0, 0]), p=(1, 3, WIDTH), q=(1, 1, 3, WIDTH),
        w=weights(4, 1, 3, WIDTH), c=(1, 1, 1, 4), h=ints(1, 2), y=(1, 4), z=(1, 4),
    ),
    "pieces": chain(
        ("a, b = SPLIT(c, x)", {"num_splits": 2}),
        ("j = CONCATENATION(b, a, b)", {"axis": 2, **NONE}),
        ("k = PACK(a, b)", {"axis": 1, "values_count": 2}), "m = SQUEEZE(k)",
        "e = EXPAND_DIMS(j, z)", "i = TILE(e, r)", "y = SLICE(i, g, s)",
        c=ints(2)[()], a=(1, 1, 3), b=(1, 1, 3), j=(1, 1, 9), k=(1, 2, 1, 3), m=(2, 1, 3),
        z=ints(0)[0], e=(1, 1, 1, 9), r=ints(1, 1, 1, 2), i=(1, 1, 1, 18), g=ints(0, 0, 0, 2),
        s=ints(-1, -1, -1, 9), y=(1, 1, 1, 9),
    ),
}  # fmt: skip
REFUSED: dict[str, tuple[bytes, str]] = {
    "backwards": (
        chain("y = REVERSE_V2(x, t)", t=ints(1), y=SEQ), "#0 REVERSE_V2: REVERSE_V2 does not say",
    ),
    "last": (
        chain(("y = STRIDED_SLICE(x, b, e, s)", {"begin_mask": 5, "end_mask": 5,
                                                 "shrink_axis_mask": 2}),
              b=ints(0, -1, 0), e=ints(0, 0, 0), s=ints(1, 1, 1), y=ROW),
        "#0 STRIDED_SLICE: along axis 1 it takes other elements at another size",
    ),
    "both_ends": (
        chain(("y = CONCATENATION(x, x)", {"axis": 1, **NONE}), y=SEQ),
        "#0 CONCATENATION: tensor 1 ('y') has the shape [1, 16, 6] at 8",
    ),
    "last_token": (
        chain(("y = CONCATENATION(x, k)", {"axis": 1, **NONE}), k=weights(1, 1, WIDTH), y=SEQ),
        "#0 CONCATENATION: it puts positions along axis 1 of tensor 0 ('x') together",
    ),
    "flat": (
        chain("y = RESHAPE(x, f)", f=ints(1, -1), y=(1, WIDTH)), "has the shape [1, 48] at 8",
    ),
    "window": (
        chain("q = EXPAND_DIMS(x, z)",
              ("y = CONV_2D(q, w, -)", {"stride_h": 1, "stride_w": 2, "padding": 0, **NONE}),
              z=ints(1)[0], q=(1, 1, 1, WIDTH), w=weights(2, 1, 3, WIDTH), y=(1, 1, 1, 2)),
        "#1 CONV_2D: it puts positions along axis 2 of tensor 2 ('q') together",
    ),
    "pooled": (
        chain("q = EXPAND_DIMS(x, z)",
              ("y = MAX_POOL_2D(q)", {"stride_h": 1, "stride_w": 1, "filter_height": 1,
                                      "filter_width": 3, "padding": 0, **NONE}),
              z=ints(1)[0], q=(1, 1, 1, WIDTH), y=(1, 1, 1, WIDTH)),
        "#1 MAX_POOL_2D: it puts positions along axis 2 of tensor 2 ('q') together",
    ),
}  # fmt: skip


def numbers(size: int) -> list[Array]:
    return [rng.uniform(0.5, 1.5, (1, size, WIDTH)).astype(np.float32)]


@pytest.mark.parametrize("name", COMPUTED)
def test_an_operator_computes_the_size_that_it_is_given(
    name: str, delegate: tflgpu.GpuDelegate, compiled: list[Any]
) -> None:
    mine, theirs = opened(COMPUTED[name], delegate), opened(COMPUTED[name], None)
    for size in (7, 8, 2, 5, 3):
        inputs = numbers(size)
        same(at(mine, inputs), at(theirs, inputs))
        assert "runs by the plan for 8" in said(mine)
    assert len(compiled) == 1
    mine.close()


@pytest.mark.parametrize("name", REFUSED)
def test_others_have_a_plan_for_each_size(name: str, delegate: tflgpu.GpuDelegate) -> None:
    content, reason = REFUSED[name]
    mine, theirs = opened(content, delegate), opened(content, None)
    for size in (7, 8, 5):
        inputs = numbers(size)
        same(at(mine, inputs), at(theirs, inputs))
        assert said(mine).startswith("shape_buckets: this size has a plan of its own: ")
        assert reason in said(mine)
    mine.close()


def test_items_are_computed_by_a_bucket_too(
    delegate: tflgpu.GpuDelegate, compiled: list[Any]
) -> None:
    """Images: an open number of them, through windows and averages."""
    window = {"stride_h": 2, "stride_w": 2, "padding": 0, **NONE}
    content = small_model(
        {
            "x": tensor_of((1, 6, 5, 3), shape_signature=(-1, 6, 5, 3)), "w": weights(4, 3, 3, 3),
            "p": tensor_of((4, 2), DType.I32, ints([0, 0], [1, 0], [0, 2], [0, 0])),
            "padded": (1, 7, 7, 3), "c": (1, 4, 4, 4), "pool": (1, 2, 2, 4), "axes": ints(1, 2),
            "m": (1, 4), "flat": (1, 16), "wide": ints(-1, 16), "f": weights(5, 16), "y": (1, 5),
        },
        "padded = PAD(x, p)", ("c = CONV_2D(padded, w, -)", window),
        ("pool = AVERAGE_POOL_2D(c)", {**window, "filter_height": 2, "filter_width": 2}),
        "m = MEAN(pool, axes)", "flat = RESHAPE(pool, wide)",
        ("y = FULLY_CONNECTED(flat, f, -)", NONE), outputs="m y",
    )  # fmt: skip
    mine, theirs = opened(content, delegate), opened(content, None)
    for count in (5, 8, 2):
        images = [rng.standard_normal((count, 6, 5, 3)).astype(np.float32)]
        same(at(mine, images), at(theirs, images))
        assert "runs by the plan for 8" in said(mine)
    assert len(compiled) == 1
    mine.close()


def test_plans_stay_on_the_device_unless_memory_is_limited() -> None:
    """Bytes of a small bucket, of a large one after it, and of the small one again."""

    def taken(limit: str | None) -> list[int]:
        with tflgpu.GpuDelegate(**KERNELS, shape_buckets=(8, 32), memory_limit=limit) as on:
            mine, found = opened(encoder(), on), []
            for size in (5, 20, 5):
                at(mine, text(size))
                found.append(on.memory.total)
            mine.close()
            assert on.memory.total == 0
            return found

    small, both, again = taken(None)
    alone, large, last = taken("64MiB")
    assert small < both == again
    assert alone == last == small
    assert small < large < both


def test_what_was_there_before_is_not_read(delegate: tflgpu.GpuDelegate) -> None:
    """A long text, then a short one that is set again and again, and a long one that is zero."""
    mine, theirs = opened(encoder(), delegate), opened(encoder(), None)
    long, short = text(31), text(9)
    first = at(theirs, short)
    same(at(mine, long), at(theirs, long))
    for _ in range(2):
        same(at(mine, short), first)
        same(results(mine, short), first)
    zero = [np.zeros((1, 32), np.int32), np.ones((1, 32), np.int32)]
    same(at(mine, zero), at(theirs, zero))
    mine.close()


def test_scalars_are_those_of_the_run(delegate: tflgpu.GpuDelegate) -> None:
    content = small_model(
        {"x": (1, 9, WIDTH), "factor": (), "y": (1, 9, WIDTH), "axes": ints(0, 1, 2), "sum": ()},
        "y = MUL(x, factor)", "sum = SUM(y, axes)", outputs="y sum",
    )  # fmt: skip
    mine, theirs = opened(content, delegate), opened(content, None)
    for size, factor in ((7, 2), (7, 3), (5, 4)):
        inputs = [*numbers(size), np.float32(factor)]
        same(at(mine, inputs), at(theirs, inputs))
        assert "runs by the plan for 8" in said(mine)
    mine.close()


def test_views_are_of_the_size(delegate: tflgpu.GpuDelegate) -> None:
    mine, theirs = opened(encoder(), delegate), opened(encoder(), None)
    for size in (9, 5):
        inputs = text(size)
        wanted = at(theirs, inputs)
        at(mine, text(size))
        for detail, array in zip(mine.get_input_details(), inputs, strict=True):
            assert [*detail["shape"]] == [1, size]
            mine.tensor(detail["index"])()[...] = array
        mine.invoke()
        for detail, array in zip(mine.get_output_details(), wanted, strict=True):
            assert mine.tensor(detail["index"])().shape == array.shape
            np.testing.assert_allclose(mine.tensor(detail["index"])(), array, atol=3e-6)
    mine.close()


def test_a_run_copies_nothing_but_its_inputs(delegate: tflgpu.GpuDelegate) -> None:
    """Masks are another type on the device, and are put there once for a size, by two parts."""
    with tflgpu.GpuDelegate(**KERNELS, shape_buckets=32, exclude=["GELU"]) as apart:
        whole, parts, theirs = (opened(encoder(), on) for on in (delegate, apart, None))
        for size in (20, 31, 2, 32, 20):
            inputs = text(size)
            wanted = at(theirs, inputs)
            for mine in (whole, parts):
                same(at(mine, inputs), wanted)
                mine.invoke()
                same(results(mine, inputs), wanted)
                made: Any = mine._main.session
                lists = (made._given, *made._moves, made._after)
                copied = [to for moves in lists for to, _ in moves]
                # What a part makes for another.
                assert all(array.dtype == np.float32 for array in copied)
                assert bool(copied) is (mine is parts)
        assert parts.report.partitions == 2
        parts.close()
        whole.close()


def test_runs_in_flight_have_the_size_of_their_beginning(delegate: tflgpu.GpuDelegate) -> None:
    mine, theirs = opened(encoder(), delegate), opened(encoder(), None)
    flights, wanted = [], []
    for size in (9, 12, 9, 30, 3):
        inputs = [text(size) for _ in range(3)]
        wanted += [at(theirs, each) for each in inputs]
        at(mine, inputs[0])
        indices = [d["index"] for d in mine.get_input_details()]
        flights += [mine.invoke_async(dict(zip(indices, i, strict=True))) for i in inputs]
    for flight, arrays in zip(flights, wanted, strict=True):
        same(flight.results(), arrays)
    mine.close()


def test_the_cpu_computes_a_size_as_it_is() -> None:
    """Where nothing goes to the device."""
    with tflgpu.GpuDelegate(**KERNELS, shape_buckets=8, include=["RFFT2D"]) as on:
        mine, inputs = opened(COMPUTED["least"], on), numbers(5)
        same(at(mine, inputs), at(opened(COMPUTED["least"], None), inputs))
        assert "nothing of it goes to the device" in said(mine)
        assert not mine.report.partitions
        mine.close()


def test_what_sees_each_run_has_exact_plans() -> None:
    content = COMPUTED["least"]
    with tflgpu.GpuDelegate(**KERNELS, shape_buckets=8, accuracy_guard=True) as on:
        mine = opened(content, on)
        inputs = numbers(5)
        same(at(mine, inputs), at(opened(content, None), inputs))
        assert "accuracy_guard" in said(mine)
        mine.close()


def test_a_bound_tensor_is_refused_with_the_option_that_is_in_the_way() -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1, shape_buckets=8) as on:
        mine = opened(COMPUTED["least"], on)
        at(mine, numbers(5))
        index = mine.get_input_details()[0]["index"]
        with (
            pytest.raises(tflgpu.TflgpuError, match="leave shape_buckets out"),
            mine.allocate_buffer(index) as buffer,
        ):
            mine.bind_input(index, buffer)
        mine.close()


def test_a_table_that_ends_before_the_bucket(delegate: tflgpu.GpuDelegate) -> None:
    """The largest bucket is longer than the model's positions."""
    with tflgpu.GpuDelegate(**KERNELS, shape_buckets=LONGEST + 1) as on:
        mine, theirs = opened(encoder(), on), opened(encoder(), None)
        inputs = text(5)
        same(at(mine, inputs), at(theirs, inputs))
        assert "plan of its own" in said(mine)
        mine.close()


def test_sizes_are_whole_numbers_from_2() -> None:
    options = tflgpu.DelegateOptions(shape_buckets=[64, 8])
    assert options.shape_buckets == (8, 64)
    assert tflgpu.DelegateOptions(shape_buckets="auto").shape_buckets[:3] == (32, 128, 512)
    for wrong in ([1], [8, 8], ["a"], "8,x", 2.5):
        with pytest.raises(tflgpu.OptionError, match="shape_buckets is a list of different sizes"):
            tflgpu.DelegateOptions(shape_buckets=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("on_error", ["retry", "cpu", "raise"])
@pytest.mark.parametrize("kind", [DeviceError, DeviceLostError])
def test_a_run_that_fails_is_followed_as_with_other_plans(
    kind: type[DeviceError], on_error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of sizes, with plans that are kept; none of a device that broke is used."""
    faults = WatchedDevice(monkeypatch)
    with tflgpu.GpuDelegate(**KERNELS, shape_buckets=(8, 32), on_error=on_error) as on:
        mine, theirs = opened(encoder(), on), opened(encoder(), None)
        for size in (5, 20):
            at(mine, text(size))
        inputs = text(6)
        at(mine, text(6))
        faults.fails = [kind("gone")]
        if on_error == "raise":
            with pytest.raises(kind, match="gone"):
                results(mine, inputs)
        same(results(mine, inputs), at(theirs, inputs))
        for size in (20, 3, 31):
            inputs = text(size)
            same(at(mine, inputs), at(theirs, inputs))
            assert (on_error == "cpu") != ("runs by the plan for" in "".join(mine.report.choice))
        mine.close()


def test_a_model_is_called_with_any_size(compiled: list[Any]) -> None:
    """As a function of arrays, which resizes by itself from the shapes of the file."""
    options: Any = {**KERNELS, "shape_buckets": (8, 32), "enable_serialization": False}
    theirs = opened(encoder(), None)
    with tflgpu.Model(encoder(), **options) as model:
        for size in (5, 20, 6, 30):
            inputs = text(size)
            same(model(*inputs), at(theirs, inputs))
    assert [g.inputs[0].shape[1] for g in compiled] == [1, 8, 32]
