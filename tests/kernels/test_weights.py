"""Weights on their way to a buffer: from what a file stores, in one pass, as from their f32."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu.compiler.constants import key_of
from tflgpu.ir.dtypes import Array, Quantization
from tflgpu.ir.stored_reals import BlockScales, ConstantData, StoredReals, stored_reals
from tflgpu.kernels.gemm import pack_weights
from tflgpu.lowering.weights import F16_MAX, Weights, spoiled_by_f16

RNG = np.random.default_rng(5)

F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


def packed_slowly(ohwi: Array) -> Array:
    """OHWI -> [tap, input slice, lane of it, output slice, lane of it], number by number."""
    out, height, width, inner = ohwi.shape
    found = np.zeros((height * width, -(-inner // 4) * 4, -(-out // 4) * 4), np.float32)
    for (o, y, x, i), number in np.ndenumerate(ohwi):
        found[y * width + x, i, o] = number
    return found


def a_scale_a_row(rows: int) -> Quantization:
    return Quantization(tuple(RNG.uniform(1e-3, 0.1, rows)), tuple(range(rows)))


def kinds(shape: tuple[int, ...]) -> dict[str, ConstantData]:
    whole = RNG.integers(-128, 128, shape).astype(np.int8)
    floats = RNG.normal(size=shape).astype(np.float16)
    return {
        "f32": RNG.normal(size=shape).astype(np.float32),
        "f16": StoredReals(floats),
        "one scale": StoredReals(whole, Quantization((0.03,), (-7,))),
        "a scale a row": StoredReals(whole, a_scale_a_row(shape[0])),
        "a scale a column": StoredReals(
            whole, Quantization(tuple(RNG.uniform(0.01, 0.1, shape[-1])), (0,) * shape[-1], axis=3)
        ),
    }


def expanded(contents: ConstantData) -> Array:
    return contents.whole() if isinstance(contents, StoredReals) else contents


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [F16, F32])
@pytest.mark.parametrize("shape", [(8, 1, 1, 12), (70, 2, 3, 5), (129, 1, 1, 4), (3, 1, 1, 1)])
def test_packed_as_number_by_number(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    for name, contents in kinds(shape).items():
        weights = pack_weights(contents)
        want = packed_slowly(expanded(contents)).astype(dtype)
        got = weights.as_type(dtype)
        assert got.dtype == dtype and got.size == weights.size, name
        np.testing.assert_array_equal(got, want.reshape(-1), err_msg=name)
        last = packed_slowly(expanded(contents)).reshape(-1, want[0, 0].size)[-1]
        assert weights.ends_within_f16 == (np.abs(last) <= F16_MAX).all(), name
        plain = Weights(contents).as_type(dtype)
        np.testing.assert_array_equal(plain, expanded(contents).astype(dtype).reshape(-1), name)


@pytest.mark.quick
def test_several_threads_write_the_same() -> None:
    numbers = RNG.normal(size=(520, 2100)).astype(np.float16)
    got = Weights(StoredReals(numbers), taps=1).as_type(F16)
    np.testing.assert_array_equal(got.reshape(2100, 520), numbers.T)


@pytest.mark.quick
@pytest.mark.parametrize(
    "planted", [None, np.inf, -np.inf, np.nan, 65504, 2.0**-15, 2.0**-24], ids=str
)
@pytest.mark.parametrize("others", [0.0, 2.0**-16, 1.0])
def test_what_f16_holds_is_seen_in_the_stored_bits(planted: float | None, others: float) -> None:
    numbers = np.full((3, 8), others, np.float16)
    if planted is not None:
        numbers[1, 5] = -planted
    _compare(StoredReals(numbers))


@pytest.mark.quick
@pytest.mark.parametrize("scale", [0.0, 1e-9, 0.1, F16_MAX / 127, F16_MAX / 126, 1e37])
def test_what_f16_holds_is_seen_in_whole_numbers(scale: float) -> None:
    whole = RNG.integers(-127, 127, (4, 8)).astype(np.int8)
    whole[2, 3] = -127
    _compare(StoredReals(whole, Quantization((scale,), (0,))))
    _compare(StoredReals(whole, Quantization((0.1, 0.2, scale, 0.1), (0, 3, 0, -9))))


def _compare(reals: StoredReals) -> None:
    with np.errstate(over="ignore"):
        stored, plain = Weights(reals), Weights(reals.whole())
    assert stored.is_finite == plain.is_finite
    assert stored.suits_f16 == plain.suits_f16
    assert stored.within_f16 == plain.within_f16
    assert stored.fits_f16 == (plain.fits_f16 or bool(np.isnan(reals.whole()).any()))
    for at in (0, 5):
        numbers = reals.numbers.copy()
        numbers[:, [at, -1]] = numbers[:, [-1, at]]
        turned = StoredReals(numbers, reals.quantization)
        with np.errstate(over="ignore"):
            both = turned, turned.whole()
        ends = [Weights(each, taps=1).ends_within_f16 for each in both]
        assert ends[0] == ends[1]


def test_the_largest_is_none_where_only_all_would_tell() -> None:
    whole = np.ones((4, 8), np.int8)
    assert StoredReals(whole, Quantization((0.5,) * 8, (0,) * 8, axis=1)).largest() is None
    assert StoredReals(np.array([1, np.nan], np.float16)).largest() is None
    assert StoredReals(np.array([-3, 2], np.float16)).largest() == 3


def test_small_ones_are_expanded_at_once() -> None:
    small, large = np.ones(100, np.float16), np.ones(1 << 16, np.float16)
    assert isinstance(stored_reals(small), np.ndarray)
    reals = stored_reals(large)
    assert isinstance(reals, StoredReals) and reals.shape == (1 << 16,) and reals.dtype == F32
    assert not spoiled_by_f16(reals.whole()).any()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("dtype", "outputs", "row"), [(np.float16, 8, 24), (np.float32, 8, 24), (np.uint32, 8, 24)]
)
def test_what_is_stored_as_the_buffer_has_it_is_not_copied(
    dtype: type, outputs: int, row: int
) -> None:
    numbers = RNG.integers(-9, 9, (outputs, row)).astype(np.int8 if dtype is np.uint32 else dtype)
    contents = StoredReals(numbers) if dtype is np.float16 else numbers
    weights = Weights(contents, taps=1, dtype=np.dtype(dtype), row=row)
    got = weights.array()
    assert np.shares_memory(got, numbers)
    assert not got.flags.writeable and numbers.flags.writeable
    np.testing.assert_array_equal(got, numbers.reshape(-1).view(dtype))
    assert got.size == weights.size


@pytest.mark.quick
@pytest.mark.parametrize(
    ("shape", "row", "dtype"),
    [
        ((8, 22), 24, F16),  # inputs to be padded
        ((6, 24), 24, F16),  # outputs
        ((8, 24), 32, F16),  # a longer row
        ((8, 24), 24, F32),  # another type
        ((8, 24), None, F16),  # by input
    ],
)
def test_what_is_stored_otherwise_is_made_anew(
    shape: tuple[int, int], row: int | None, dtype: np.dtype[np.generic]
) -> None:
    numbers = RNG.normal(size=shape).astype(np.float16)
    outputs, inputs = shape
    want = np.zeros((-(-outputs // 4) * 4, row or -(-inputs // 4) * 4), dtype)
    want[:outputs, :inputs] = numbers
    got = Weights(StoredReals(numbers), taps=1, dtype=dtype, row=row).array()
    assert not np.shares_memory(got, numbers)
    np.testing.assert_array_equal(got, (want if row else want.T).reshape(-1))


@pytest.mark.quick
def test_numbers_of_another_type_become_those_of_the_buffer() -> None:
    numbers = RNG.normal(size=(8, 24)).astype(np.float32)
    for row in (24, None):
        got = Weights(numbers, taps=1, dtype=F16, row=row).array()
        want = numbers.astype(np.float16)
        np.testing.assert_array_equal(got, (want if row else want.T).reshape(-1))


@pytest.mark.quick
def test_taps_of_whole_slices_lie_as_in_the_file() -> None:
    numbers = RNG.normal(size=(4, 2, 3, 8)).astype(np.float16)
    weights = Weights(StoredReals(numbers), taps=6, dtype=F16, row=48)
    assert np.shares_memory(weights.array(), numbers)
    np.testing.assert_array_equal(weights.array(), numbers.reshape(-1))
    rows = Weights(StoredReals(numbers[..., :6]), taps=6, dtype=F16, row=48).array()
    want = np.zeros((4, 6, 8), np.float16)
    want[..., :6] = numbers.reshape(4, 6, 8)[..., :6]
    np.testing.assert_array_equal(rows, want.reshape(-1))


@pytest.mark.quick
def test_equal_bytes_on_other_scales_are_other_weights() -> None:
    whole = np.arange(64, dtype=np.int8).reshape(4, 16)
    scales = [
        None,
        Quantization((0.5,), (0,)),
        Quantization((0.5,), (1,)),
        Quantization((0.25,), (0,)),
        Quantization((0.5,) * 4, (0,) * 4),
        Quantization((0.5, 0.5, 0.5, 0.25), (0,) * 4),
        BlockScales(np.full((4, 2), 0.5, np.float32), 8),
        BlockScales(np.full((4, 2), 0.25, np.float32), 8),
    ]
    keys = [key_of(Weights(StoredReals(whole, scale))) for scale in scales]
    assert len(set(keys)) == len(scales)
    assert keys == [key_of(Weights(StoredReals(whole.copy(), scale))) for scale in scales]
