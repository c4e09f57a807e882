"""Small files that ask for huge tensors: an error of ours, in no time and in no memory.

Each file runs in a process of its own whose peak memory is looked at. What is not refused must be
cheap.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu import Interpreter
from tflgpu.errors import InputError
from tflgpu.ir.budget import MAX_BYTES
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.sparsity import Level, Sparsity
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated, results
from tests.shapes.sizes_child import (
    Measured,
    beginnings,
    die,
    measured,
    prepare,
    run,
    server_state,
    waste,
)

I32 = DType.I32
HUGE = 2**31 - 1
#: More than reading, preparing and running a small model takes, drivers included.
EXTRA_BYTES = 300 << 20
SECONDS = 60


def const(name: str, data: Any, dtype: DType = I32) -> TensorSpec:
    array = np.asarray(data, dtype.numpy)
    return TensorSpec(name, array.shape, dtype, array)


def free(name: str, rank: int, dtype: DType = DType.F32) -> TensorSpec:
    return TensorSpec(name, (1,) * rank, dtype, shape_signature=(-1,) * rank)


def one(
    op: str,
    operands: Sequence[TensorSpec],
    rank: int,
    fields: dict[str, Any] | None = None,
    dtype: DType = DType.F32,
    version: int = 1,
    order: Sequence[int] | None = None,
) -> bytes:
    """One operator of the operands, and an ADD of its result to itself."""
    tensors = [*operands, free("y", rank, dtype), free("z", rank, dtype)]
    count = len(operands)
    inputs = [i for i, t in enumerate(operands) if t.data is None]
    return write_model(
        ModelSpec(
            tensors,
            [
                OperatorSpec(op, fields or {}, order or range(count), (count,), version),
                OperatorSpec("ADD", {}, (count, count), (count + 1,)),
            ],
            inputs,
            (count + 1,),
        )
    )


X = TensorSpec("x", (1, 2, 2, 3))
C = const("c", np.ones((1, 2, 2, 3)), DType.F32)
WINDOW = {"stride_h": 1, "stride_w": 1, "padding": 0}


def sparse() -> bytes:
    """One stored number in a matrix of 2^31-1 columns and 1000 rows."""
    bounds = np.array([0] + [1] * 1000, np.int32)
    pattern = Sparsity((0, 1), (), (Level(1000), Level(None, bounds, np.array([5], np.int32))))
    tensors = [
        TensorSpec("s", (1000, HUGE), data=np.ones(1, np.float32), sparsity=pattern),
        free("d", 2),
    ]
    return write_model(ModelSpec(tensors, [OperatorSpec("DENSIFY", {}, (0,), (1,))], (), (1,)))


def twice(op: str, count: int) -> bytes:
    """A chain in which each result is 64 times as large as the one before."""
    tensors = [TensorSpec("x", (1, 1)), const("by", [8, 8])]
    tensors += [free(f"t{i}", 2) for i in range(count)]
    chain = [0, *range(2, 2 + count)]
    ops = [OperatorSpec(op, {}, (a, 1), (b,)) for a, b in pairwise(chain)]
    return write_model(ModelSpec(tensors, ops, (0,), (chain[-1],)))


REFUSED: dict[str, Callable[[], bytes]] = {
    "TILE": lambda: one("TILE", [X, const("n", [1, 1, 1, HUGE])], 4),
    "TILE of a constant": lambda: one("TILE", [C, const("n", [HUGE, HUGE, HUGE, HUGE])], 4),
    "TILE to 2^64": lambda: one("TILE", [X, const("n", [2**30, 2**16, 2**16, 1])], 4),
    "TILE again and again": lambda: twice("TILE", 9),
    "BROADCAST_TO": lambda: one("BROADCAST_TO", [X, const("n", [HUGE, 1, 2, 2, 3])], 5, version=2),
    "BROADCAST_TO of a constant": lambda: one(
        "BROADCAST_TO", [C, const("n", [HUGE, 9, 2, 2, 3])], 5, version=2
    ),
    "PAD": lambda: one("PAD", [X, const("n", [[0, 0], [0, 0], [0, HUGE], [HUGE, 0]])], 4),
    "PAD of a constant": lambda: one("PAD", [C, const("n", [[HUGE, HUGE]] * 4)], 4),
    "RESIZE_BILINEAR": lambda: one("RESIZE_BILINEAR", [X, const("n", [HUGE, HUGE])], 4),
    "RESIZE_NEAREST_NEIGHBOR": lambda: one(
        "RESIZE_NEAREST_NEIGHBOR", [X, const("n", [2**16, 2**16])], 4
    ),
    "FILL": lambda: one("FILL", [const("n", [HUGE, HUGE]), const("v", 1.0, DType.F32)], 2),
    "FILL of 2^64": lambda: one(
        "FILL", [const("n", [2**30, 2**30, 16]), const("v", 1.0, DType.F32)], 3
    ),
    "FILL of 100 dimensions": lambda: one(
        "FILL", [const("n", [1] * 100), const("v", 1.0, DType.F32)], 2
    ),
    "RESHAPE to 100 dimensions": lambda: one("RESHAPE", [X, const("n", [12] + [1] * 99)], 4),
    "RANGE": lambda: one("RANGE", [const("a", 0), const("b", HUGE), const("c", 1)], 1, dtype=I32),
    "RANGE of floats": lambda: one(
        "RANGE", [const(n, v, DType.F32) for n, v in (("a", 0), ("b", 1e30), ("c", 1e-3))], 1
    ),
    "RANGE to infinity": lambda: one(
        "RANGE", [const(n, v, DType.F32) for n, v in (("a", 0), ("b", np.inf), ("c", 1))], 1
    ),
    "RANGE to NaN": lambda: one(
        "RANGE", [const(n, v, DType.F32) for n, v in (("a", 0), ("b", np.nan), ("c", 1))], 1
    ),
    "ONE_HOT": lambda: one(
        "ONE_HOT",
        [
            TensorSpec("i", (1000,), I32), const("d", HUGE), const("on", 1.0, DType.F32),
            const("off", 0.0, DType.F32),
        ],
        2,
        {"axis": -1},
    ),
    "SPACE_TO_BATCH_ND": lambda: one(
        "SPACE_TO_BATCH_ND",
        [X, const("b", [1, 1]), const("p", [[0, HUGE - 3], [0, HUGE - 3]])],
        4,
    ),
    "SPACE_TO_BATCH_ND of 2^62": lambda: one(
        "SPACE_TO_BATCH_ND",
        [X, const("b", [HUGE, HUGE]), const("p", [[0, HUGE - 2], [0, HUGE - 2]])],
        4,
    ),
    "TRANSPOSE_CONV": lambda: one(
        "TRANSPOSE_CONV",
        [const("n", [1, HUGE, HUGE, 3]), const("w", np.ones((3, 1, 1, 3)), DType.F32), X],
        4,
        WINDOW,
    ),
    "SPLIT": lambda: one("SPLIT", [const("a", 0), TensorSpec("x", (0, 2))], 2,
                         {"num_splits": HUGE}),
    "dilated": lambda: one(
        "CONV_2D",
        [X, const("w", np.ones((3, 3, 3, 3)), DType.F32), const("b", [0, 0, 0], DType.F32)],
        4,
        {**WINDOW, "dilation_h_factor": HUGE, "dilation_w_factor": HUGE},
    ),
    "BATCH_MATMUL": lambda: one(
        "BATCH_MATMUL", [TensorSpec("a", (30000, 1)), TensorSpec("b", (1, 30000))], 2
    ),
    "ADD": lambda: one("ADD", [TensorSpec("a", (30000, 1)), TensorSpec("b", (1, 30000))], 2),
    "an input": lambda: one("ADD", [TensorSpec("a", (HUGE, 1)), TensorSpec("b", (1, 1))], 2),
    "an input of bytes": lambda: one(
        "ADD", [TensorSpec("a", (HUGE,), DType.U8), TensorSpec("b", (1,), DType.U8)], 1,
        dtype=DType.U8,
    ),
    "a variable": lambda: write_model(
        ModelSpec(
            [X, TensorSpec("v", (HUGE, 64), is_variable=True), free("y", 4)],
            [OperatorSpec("RELU", {}, (0,), (2,))],
            (0,),
            (2, 1),
        )
    ),
    "sparse": sparse,
}  # fmt: skip


def pool(op: str) -> Callable[[], bytes]:
    side = {"filter_height": 2**20, "filter_width": 2**20}
    return lambda: one(op, [X], 4, {**WINDOW, **side})


CHEAP: dict[str, Callable[[], bytes]] = {
    **{op: pool(op) for op in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")},
    "dilated": lambda: one(
        "CONV_2D",
        [X, const("w", np.ones((3, 3, 3, 3)), DType.F32), const("b", [0, 0, 0], DType.F32)],
        4,
        {**WINDOW, "dilation_h_factor": 20000, "dilation_w_factor": 30000},
    ),
    "dilated by depth": lambda: one(
        "DEPTHWISE_CONV_2D",
        [X, const("w", np.ones((1, 2, 3, 3)), DType.F32), const("b", [0, 0, 0], DType.F32)],
        4,
        {**WINDOW, "depth_multiplier": 1, "dilation_h_factor": 20001, "dilation_w_factor": 30000},
    ),
    "strides": lambda: one(
        "TRANSPOSE_CONV",
        # An image of one pixel, to which LiteRT too says that such an output belongs.
        [const("n", [1, 3, 3, 3]), const("w", np.ones((3, 2, 2, 3)), DType.F32),
         TensorSpec("x", (1, 1, 1, 3))],
        4,
        {"stride_h": 30000, "stride_w": 30000, "padding": 1},
    ),
    "radius": lambda: one(
        "LOCAL_RESPONSE_NORMALIZATION", [X], 4, {"radius": HUGE, "bias": 1.0, "alpha": 1.0,
                                                 "beta": 0.5},
    ),
    "a long RANGE": lambda: one(
        "RANGE", [const(n, v, DType.F32) for n, v in (("a", 0), ("b", 3e6), ("c", 1))], 1
    ),
}  # fmt: skip


def argmax_pool(side: int, image: TensorSpec = X) -> bytes:
    options = struct.pack("<6i", 1, 1, 1, side, side, 0) + bytes(8)
    return write_model(
        ModelSpec(
            [image, free("y", 4), free("p", 4)],
            [OperatorSpec("MaxPoolingWithArgmax2D", {}, (0,), (1, 2), custom_options=options)],
            (0,),
            (1, 2),
        )
    )


REFUSED["MaxPoolingWithArgmax2D"] = lambda: argmax_pool(2**15)
CHEAP["MaxPoolingWithArgmax2D"] = lambda: argmax_pool(2**12)


def check(found: Measured) -> Any:
    """What a child said, which has to be cheap."""
    assert found.extra < EXTRA_BYTES, f"{found.extra:,} bytes: {found.said}"
    assert found.seconds < SECONDS, f"{found.seconds} s: {found.said}"
    return found.said


def apart(content: bytes, backend: str | None = None, resized: Any = None) -> Any:
    """What `run` gives or says, having seen in a process of its own that it is cheap."""
    return check(measured(beginnings, content, backend, resized, patience=4 * SECONDS))


def test_what_takes_much_memory_or_time_or_dies_is_noticed() -> None:
    assert check(measured(waste, 1 << 20, 0.0, patience=SECONDS)) == f"{1 << 20} bytes"
    with pytest.raises(AssertionError, match=r"4\d\d,\d+,\d+ bytes: 419430400 bytes"):
        check(measured(waste, 400 << 20, 0.0, patience=SECONDS))
    long = measured(waste, 1, 0.5, patience=SECONDS)
    assert 0.5 <= long.seconds < 2
    with pytest.raises(AssertionError, match=r"(99|10\d)\.\d+ s: "):
        check(attrs.evolve(long, seconds=long.seconds + 99))
    with pytest.raises(TimeoutError):
        measured(waste, 1, 60.0, patience=0.1)
    with pytest.raises(ChildProcessError, match="-9"):
        measured(die, patience=SECONDS)


def test_the_server_of_the_children_has_no_threads_and_no_drivers() -> None:
    said = check(measured(server_state, patience=SECONDS))
    assert said == {"threads": 1, "drivers": [], "numpy": True}


@pytest.mark.parametrize("name", REFUSED)
def test_huge_results_are_refused_before_they_are_made(name: str) -> None:
    said = apart(REFUSED[name]())
    assert isinstance(said, str), said
    assert not said.startswith("raw"), said
    assert "Error" in said.split(":", 1)[0]


@pytest.mark.parametrize("name", ["TILE", "FILL", "ADD"])
def test_the_error_says_which_tensor_how_many_bytes_and_the_limit(name: str) -> None:
    said = apart(REFUSED[name]())
    assert f"{MAX_BYTES:,}" in said
    assert "bytes" in said
    assert "'y'" in said
    assert name in said


@pytest.mark.parametrize("name", CHEAP)
def test_what_is_large_in_the_options_only_is_cheap(name: str) -> None:
    said = apart(CHEAP[name]())
    assert not isinstance(said, str), said


@pytest.mark.parametrize("backend", ["cpu_ref", "opencl"])
@pytest.mark.parametrize("name", [n for n in CHEAP if n not in ("a long RANGE", "radius")])
def test_devices_compute_the_same_where_options_are_large(name: str, backend: str) -> None:
    for got, want in zip(run(CHEAP[name](), backend), run(CHEAP[name](), None), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("name", ["AVERAGE_POOL_2D", "MAX_POOL_2D", "dilated", "dilated by depth"])
def test_litert_computes_the_same_where_options_are_large(name: str, litert: Any) -> None:
    # What LiteRT's own kernels do within seconds.
    side = {"filter_height": 53, "filter_width": 101}
    content = one(name, [X], 4, {**WINDOW, **side}) if "POOL" in name else CHEAP[name]()
    kernels = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    theirs = allocated(
        litert.Interpreter(model_content=content, experimental_op_resolver_type=kernels)
    )
    details = theirs.get_input_details()
    want = results(theirs, {details[0]["index"]: np.ones(details[0]["shape"], np.float32)})[0]
    (got,) = run(content, None)
    np.testing.assert_allclose(got, want, rtol=1e-5)


def scaled(count: int = 1) -> bytes:
    """x * c + c, with a free number of channels."""
    by = const("c", np.full(count, 2.0), DType.F32)
    tensors = [free("x", 2), by, free("m", 2), free("y", 2)]
    ops = [OperatorSpec("MUL", {}, (0, 1), (2,)), OperatorSpec("ADD", {}, (2, 1), (3,))]
    return write_model(ModelSpec(tensors, ops, (0,), (3,)))


@pytest.mark.parametrize(
    "size",
    [
        [1, HUGE], [HUGE, HUGE], [1, 2**40], [0, 2**40], [2**16] * 4, [1] * 33,
        [-1, 3], [1, -(2**31)], [1, 2**29 + 1],
    ],
    ids=str,
)  # fmt: skip
def test_a_resize_beyond_the_limit_is_refused_at_once(size: list[int]) -> None:
    said = apart(scaled(), None, size)
    assert isinstance(said, str)
    assert said.startswith("ResizeError"), said


@pytest.mark.parametrize(
    "size",
    [
        [1.5, 2],
        [[1, 2], [3]],
        [[1, 2]],
        "12",
        [None, 1],
        [2**70, 1],
        [2**63, 2],
        {"a": 1},
        [True, False],
        7,
    ],
    ids=str,
)
def test_a_resize_to_what_is_no_list_of_whole_numbers(size: Any) -> None:
    with Interpreter(model_content=scaled()) as interpreter:
        with pytest.raises(InputError):
            interpreter.resize_tensor_input(0, size)
        interpreter.allocate_tensors()


def test_a_resize_to_nothing_is_what_litert_makes_of_it() -> None:
    (y,) = run(scaled(), None, [0, 3])
    assert y.shape == (0, 3)


@pytest.mark.needs("opencl")
def test_no_pass_makes_arrays_of_as_many_channels_as_an_input_is_given() -> None:
    """Up to the limit; running it takes what its tensors take, which the caller has asked for."""
    said = check(measured(prepare, scaled(), [1, 2**28], patience=120))
    assert said == f"[1, {2**28}]"
