"""`tflgpu.Model`: a model as a function, against the interpreter on the same arrays."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.spec import OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.small_models import small_model, small_spec, tensor_of

SHAPE = (1, 4)


def linear(*, open_dims: bool = False, signature: bool = False) -> bytes:
    """``sum`` = a + 2 b, ``sharp`` = softmax of that, over the last axis."""
    opened = (-1, 4) if open_dims else None
    signatures = [SignatureInfo("serve", 0, {"left": 0, "right": 1}, {"total": 4, "share": 5})]
    return small_model(
        {
            "a": tensor_of(SHAPE, shape_signature=opened),
            "b": tensor_of(SHAPE, shape_signature=opened),
            "two": tensor_of((), data=np.float32(2)),
            "doubled": SHAPE,
            "sum": SHAPE,
            "sharp": SHAPE,
        },
        "doubled = MUL(b, two)",
        "sum = ADD(a, doubled)",
        ("sharp = SOFTMAX(sum)", {"beta": 1.0}),
        outputs="sum sharp",
        signatures=signatures if signature else [],
    )


def with_another_subgraph() -> bytes:
    """``y`` = x + x. Another subgraph comes first among the signatures; its tensors have the same
    indices, the other way round."""
    other = SubgraphSpec(
        [TensorSpec("tripled", SHAPE), TensorSpec("three", (), data=np.float32(3)),
         TensorSpec("once", SHAPE)],
        [OperatorSpec("MUL", {}, [2, 1], [0])], [2], [0], name="other",
    )  # fmt: skip
    signatures = [
        SignatureInfo("other", 1, {"wrong": 0}, {"also_wrong": 1}),
        SignatureInfo("serve", 0, {"value": 0}, {"twice": 1}),
    ]
    return small_model(
        {"x": SHAPE, "y": SHAPE}, "y = ADD(x, x)", subgraphs=[other], signatures=signatures
    )


@pytest.fixture(params=["cpu", "device"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"backend": "cpu_ref", "device": int(request.param == "device")}


@pytest.fixture
def model(options: dict[str, Any]) -> Iterator[tflgpu.Model]:
    with tflgpu.Model(linear(), **options) as made:
        yield made


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def check(results: Any, a: Any, b: Any) -> None:
    total = np.asarray(a, np.float32) + 2 * np.asarray(b, np.float32)
    np.testing.assert_allclose(results[0], total, rtol=1e-6)
    share = np.exp(total - total.max(-1, keepdims=True))
    np.testing.assert_allclose(results[1], share / share.sum(-1, keepdims=True), rtol=1e-5)


def test_by_position_and_by_name(model: tflgpu.Model) -> None:
    a, b = numbers(1, 4), numbers(1, 4, seed=1)
    assert (model.input_names, model.output_names) == (("a", "b"), ("sum", "sharp"))
    for results in (model(a, b), model(a, b=b), model(b=b, a=a)):
        check(results, a, b)
        assert results["sum"] is results[0]
        assert results.asdict().keys() == {"sum", "sharp"}
    total, share = model(a, b)
    assert total.shape == share.shape == SHAPE
    with pytest.raises(KeyError, match="'summ'; there are 'sum', 'sharp'"):
        model(a, b)["summ"]


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))]
)
def test_results_are_copied_and_pickled_with_their_names(
    model: tflgpu.Model, copied: Callable[[tflgpu.Results], tflgpu.Results]
) -> None:
    results = model(numbers(*SHAPE), numbers(*SHAPE, seed=1))
    again = copied(results)
    assert type(again) is tflgpu.Results
    assert again.names == results.names
    for name in results.names:
        np.testing.assert_array_equal(again[name], results[name])


def test_the_names_of_a_signature(options: dict[str, Any]) -> None:
    a, b = numbers(1, 4), numbers(1, 4, seed=1)
    with tflgpu.Model(linear(signature=True), **options) as model:
        assert model.input_names == ("left", "right")
        assert model.output_names == ("total", "share")
        check(model(right=b, left=a), a, b)
        check(model(b=b, a=a), a, b)  # the file's own names


def test_names_are_of_the_main_subgraph(options: dict[str, Any]) -> None:
    """Where the first signature is of another one, whose tensors have other indices."""
    with tflgpu.Model(with_another_subgraph(), **options) as model:
        assert (model.input_names, model.output_names) == (("value",), ("twice",))
        np.testing.assert_array_equal(model(value=numbers(1, 4))["twice"], 2 * numbers(1, 4))


def test_results_are_the_caller_s(model: tflgpu.Model) -> None:
    a, b = numbers(1, 4), numbers(1, 4, seed=1)
    first = model(a, b)
    model(b, a)
    check(first, a, b)


def test_a_batch_is_run_item_by_item(model: tflgpu.Model) -> None:
    a, b = numbers(5, 4), numbers(5, 4, seed=1)
    check(model(a, b), a, b)
    check(model(a, b[:1]), a, b[:1])  # one for all
    assert [r.shape for r in model(a[:0], b[:0])] == [(0, 4), (0, 4)]
    check(model(a[:1], b[:1]), a[:1], b[:1])


def test_open_dimensions_are_the_arrays(options: dict[str, Any]) -> None:
    with tflgpu.Model(linear(open_dims=True), **options) as model:
        for count in (3, 1, 5):
            a, b = numbers(count, 4), numbers(count, 4, seed=1)
            check(model(a, b), a, b)


@pytest.mark.parametrize("batch", [1, 3])
def test_of_no_items_the_results_have_the_arrays_other_sizes(
    options: dict[str, Any], batch: int
) -> None:
    content = small_model(
        dict.fromkeys("xy", tensor_of((1, 2, 4), shape_signature=(1, -1, 4))), "y = NEG(x)"
    )
    with tflgpu.Model(content, batch=batch, **options) as model:
        for count, rows in ((0, 5), (4, 2), (0, 2), (0, 7), (2, 7)):
            x = numbers(count, rows, 4)
            np.testing.assert_array_equal(model(x)[0], -x)


def test_shapes_that_do_not_work_out_are_gone_with_the_call(options: dict[str, Any]) -> None:
    with tflgpu.Model(linear(open_dims=True), **options) as model:
        with pytest.raises(tflgpu.AllocationError):
            model(numbers(3, 4), numbers(5, 4))
        check(model(numbers(1, 4), numbers(1, 4)), numbers(1, 4), numbers(1, 4))
        check(model(numbers(2, 4), numbers(2, 4)), numbers(2, 4), numbers(2, 4))


def test_numbers_are_converted_where_they_fit(model: tflgpu.Model) -> None:
    check(model([[1, 2, 3, 4]], np.ones((1, 4), np.float64)), [[1, 2, 3, 4]], np.ones((1, 4)))
    check(
        model(np.array([[True, False, True, True]]), numbers(1, 4)), [[1, 0, 1, 1]], numbers(1, 4)
    )
    special = np.array([[np.nan, np.inf, -np.inf, 0]])
    assert np.isnan(model(special, numbers(1, 4))[0][0, 0])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ([np.zeros((1, 4))], "1 arrays for 2 inputs: 'a'"),
        ([np.zeros((1, 4))] * 3, "3 arrays for 2 inputs"),
        ([np.zeros((1, 5)), np.zeros((1, 4))], r"shape \[1, 5\] for input 'a' \(float32\[1, 4\]\)"),
        ([np.zeros(4), np.zeros((1, 4))], r"shape \[4\] for input 'a'"),
        ([np.zeros((2, 4)), np.zeros((3, 4))], r"batches of different sizes: \[2, 3\]"),
        ([np.full((1, 4), 1e300), np.zeros((1, 4))], "values to 1e.300 do not fit"),
        ([np.zeros((1, 4), complex), np.zeros((1, 4))], "complex128 is not converted"),
        ([np.array([["x"] * 4]), np.zeros((1, 4))], "is not converted"),
        ([np.ma.masked_equal([[0, 1, 2, 3]], 0), np.zeros((1, 4))], "elements are masked"),
        ([[[1, 2], [3]], np.zeros((1, 4))], "no array can be made of it"),
    ],
)  # fmt: skip
def test_what_does_not_fit(model: tflgpu.Model, arrays: list[Any], said: str) -> None:
    with pytest.raises(tflgpu.InputError, match=said):
        model(*arrays)
    check(model(numbers(1, 4), numbers(1, 4)), numbers(1, 4), numbers(1, 4))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_bytes_and_samples_are_not_taken_for_numbers(
    model: tflgpu.Model, options: dict[str, Any], dtype: type
) -> None:
    """How large 255 is for a model only its author knows. Bytes are none of a quantized input's
    steps by chance, and as whole numbers they are what they are."""
    given = np.array([[1, 2, 3, 4]], dtype)
    with pytest.raises(
        tflgpu.InputError,
        match=rf"'a' \(float32\[1, 4\]\): an array of {dtype.__name__} is not converted.*"
        rf"x\.astype\(np\.float32\).*\(x / {np.iinfo(dtype).max}\)\.astype\(np\.float32\)",
    ):
        model(given, numbers(1, 4))
    check(model(given.astype(np.float32), numbers(1, 4)), given, numbers(1, 4))
    with (
        tflgpu.Pool(linear(), **options) as pool,
        pytest.raises(tflgpu.InputError, match="is not converted"),
    ):
        pool(given, numbers(1, 4))
    for wanted in (DType.I8, DType.I32):
        moved = small_model(
            {
                "x": tensor_of((1, 4), wanted),
                "y": tensor_of((2, 2), wanted),
                "shape": tensor_of((2,), DType.I32, data=[2, 2]),
            },
            "y = RESHAPE(x, shape)",
        )
        with tflgpu.Model(moved, **options) as other:
            if wanted is DType.I32 or dtype is np.int8:
                assert other(given)[0].tolist() == [[1, 2], [3, 4]]
                continue
            with pytest.raises(tflgpu.InputError, match=f"of {dtype.__name__} is not converted"):
                other(given)


def test_names_that_do_not_fit(model: tflgpu.Model) -> None:
    with pytest.raises(tflgpu.InputError, match="no input is called 'c'; there are 'a', 'b'"):
        model(numbers(1, 4), c=numbers(1, 4))
    with pytest.raises(tflgpu.InputError, match="'a' is given twice"):
        model(numbers(1, 4), a=numbers(1, 4))


def test_whole_numbers_that_do_not_fit(options: dict[str, Any]) -> None:
    content = small_model(
        {"x": tensor_of((1, 3), DType.I32), "y": tensor_of((1, 3), DType.I32)}, "y = ABS(x)"
    )
    with tflgpu.Model(content, **options) as model:
        assert model(np.array([[-1, 2, -3]], np.int64))[0].tolist() == [[1, 2, 3]]
        with pytest.raises(tflgpu.InputError, match="from 0 to 4294967296 do not fit"):
            model(np.array([[0, 1, 1 << 32]]))
        with pytest.raises(tflgpu.InputError, match="float64 is not converted"):
            model([[0.5, 1, 2]])


def test_floats_that_are_too_large_are_named_beside_nan(options: dict[str, Any]) -> None:
    content = small_model(
        {
            "x": tensor_of((1, 3), DType.F16),
            "y": tensor_of((3, 1), DType.F16),
            "order": tensor_of((2,), DType.I32, data=[1, 0]),
        },
        "y = TRANSPOSE(x, order)",
    )
    with (
        tflgpu.Model(content, **options) as model,
        pytest.raises(tflgpu.InputError, match=r"values to 1e\+20 do not fit"),
    ):
        model(np.array([[np.nan, np.inf, 1e20]]))


def test_what_cannot_be_a_batch(options: dict[str, Any]) -> None:
    mixed = small_spec(
        {"x": (1, 3), "axis": tensor_of((1,), DType.I32, data=np.int32([0])), "y": (3,)},
        "y = SUM(x, axis)",
    )
    with (
        tflgpu.Model(write_model(mixed), **options) as model,
        pytest.raises(tflgpu.InputError, match=r"'y' .* has no leading dimension of 1"),
    ):
        model(numbers(2, 3))


def test_threads_share_one(model: tflgpu.Model) -> None:
    wrong = []

    def work(seed: int) -> None:
        for n in range(20):
            a, b = numbers(1, 4, seed=seed), numbers(1, 4, seed=n)
            try:
                check(model(a, b), a, b)
            except Exception as error:  # noqa: BLE001
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(100 + n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_closing(options: dict[str, Any]) -> None:
    model = tflgpu.Model(linear(), **options)
    assert model.report.total_nodes == 3
    delegate = weakref.ref(model._own)
    model.close()
    model.close()
    with pytest.raises(tflgpu.StateError, match="closed"):
        model(numbers(1, 4), numbers(1, 4))
    dropped = tflgpu.Model(linear(), **options)
    interpreter = dropped._interpreter
    del dropped, model
    gc.collect()
    assert delegate() is None
    with pytest.raises(tflgpu.StateError, match="closed"):
        interpreter.invoke()


def test_a_caller_s_delegate_stays_open(options: dict[str, Any]) -> None:
    with tflgpu.GpuDelegate(**options) as delegate:
        for _ in range(2):
            with tflgpu.Model(linear(), delegate=delegate) as model:
                check(model(numbers(1, 4), numbers(1, 4)), numbers(1, 4), numbers(1, 4))
        with pytest.raises(tflgpu.OptionError, match="precision: options are for a delegate of"):
            tflgpu.Model(linear(), delegate=delegate, precision="f16")


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: tflgpu.Model("no such file.tflite", backend="cpu_ref"), tflgpu.ModelError),
        (lambda: tflgpu.Model(b"no model", backend="cpu_ref"), tflgpu.ModelError),
        (lambda: tflgpu.Model(5, backend="cpu_ref"), tflgpu.ArgumentError),  # type: ignore[arg-type]
        (lambda: tflgpu.Model(linear(), backend="nothing"), tflgpu.TflgpuError),
        (lambda: tflgpu.Model(linear(), colour=3), tflgpu.OptionError),
    ],
)
def test_what_is_no_model(make: Callable[[], Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        make()


def test_what_a_notebook_shows() -> None:
    with tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate:
        assert repr(delegate) == "<GpuDelegate: cpu_ref device 1, NumPy kernel interpreter>"
        with tflgpu.Model(linear(signature=True), delegate=delegate) as model:
            shown = "<Model: 'left' (float32[1, 4]), 'right' (float32[1, 4]) -> "
            assert repr(model) == f"{shown}'total' (float32[1, 4]), 'share' (float32[1, 4])>"
    assert repr(tflgpu.GpuDelegate.__new__(tflgpu.GpuDelegate)) == "<GpuDelegate: no device>"
