"""What the language writes where APIs leave a result open, held against what the language
computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tflgpu.language.builder import Builder
from tflgpu.language.evaluate import binary, convert
from tflgpu.language.exact import EXACT, exact
from tflgpu.language.interpreter import interpret
from tflgpu.language.tree import Name
from tflgpu.language.types import Scalar, Type

Array = np.ndarray[Any, Any]
COUNT = 4096


def _back(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float32)


WANTED: dict[str, tuple[Scalar, Callable[..., Array]]] = {
    "isnan": (Scalar.F32, np.isnan),
    "to_i32": (Scalar.F32, lambda x: convert(x, Scalar.I32)),
    "to_u32": (Scalar.F32, lambda x: convert(x, Scalar.U32)),
    "to_f16_and_back": (Scalar.F32, _back),
    "rem": (Scalar.I32, lambda a, b: binary("rem", a, b)),
}


def test_each_is_here() -> None:
    assert set(WANTED) == set(EXACT)


def _operands(scalar: Scalar, count: int) -> list[Array]:
    rng = np.random.default_rng(5)
    words = [rng.integers(0, 2**32, COUNT, np.uint32) for _ in range(count)]
    if scalar is Scalar.I32:
        low, high = words[0].view(np.int32), words[1].view(np.int32) >> 20
        return [low, np.where(high == 0, 1, high).astype(np.int32)]
    # Every exponent, the halves between two f16, and the ends of the integers' ranges.
    halves = (rng.integers(-4096, 4096, 512) * 2.0**-25).astype(np.float32)
    ends = np.array([2.0**31, 2.0**32], np.float32)
    ends = np.concatenate([ends, np.nextafter(ends, np.float32(0)), -ends, [65504, 65519, 65520]])
    found = words[0].view(np.float32)
    found[: halves.size] = halves
    found[512 : 512 + ends.size] = ends
    found[600:604] = np.nan, np.inf, -np.inf, -0.0
    return [found]


@pytest.mark.parametrize("name", EXACT)
def test_it_is_what_the_language_says(name: str) -> None:
    scalar, wanted = WANTED[name]
    found = exact(name, Type(scalar, 4))
    operands = _operands(scalar, len(found.parameters))
    k = Builder(name, (64, 1, 1))
    sources = [k.buffer(f"of_{p.ident}", scalar, 4, "read") for p in found.parameters]
    result = found.result.scalar
    dst = k.buffer("dst", Scalar.I32 if result is Scalar.BOOL else result, 4, "write")
    for parameter, source in zip(found.parameters, sources, strict=True):
        k.let(k.load(source, k.global_id(0)), parameter.ident)
    for let in found.body:
        k.emit(let)
    value = Name(found.result, found.body[-1].ident)
    k.store(dst, k.global_id(0), k.cast(value, Scalar.I32) if result is Scalar.BOOL else value)
    got = np.zeros(COUNT, dst.scalar.numpy)
    with np.errstate(all="ignore"):
        interpret(k.build(), (COUNT // 256, 1, 1), [*operands, got])
        want = wanted(*operands).astype(got.dtype)
    if want.dtype.kind == "f":
        assert (np.isnan(want) == np.isnan(got)).all()
        got, want = (np.where(np.isnan(a), 0, a).astype(np.float32) for a in (got, want))
    assert got.tobytes() == want.tobytes()
