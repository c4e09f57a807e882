"""What printers ask of kernels: signs of whole numbers, rounded values, what literals make."""

from __future__ import annotations

import numpy as np
from tflgpu.language.builder import Builder
from tflgpu.language.constants import constant_values
from tflgpu.language.rounding import is_rounded, rounded_names
from tflgpu.language.signs import not_negative
from tflgpu.language.tree import Let
from tflgpu.language.types import Scalar


def started(name: str) -> Builder:
    """A kernel that writes something, as all must."""
    k = Builder(name, (8, 1, 1))
    k.store(k.buffer("dst", Scalar.I32, 1, "write"), 0, k.i32(0))
    return k


def test_indices_are_not_negative_and_differences_may_be() -> None:
    k = started("signs")
    i = k.let(k.global_id(0), "i")
    k.let(i * 4 + 3, "index")
    k.let((i + 7) % 5, "rest")
    k.let(i - 1, "before")
    k.let(k.max(i - 1, 0), "limited")
    k.let(k.var(i, "moved") + 1, "after")
    kernel = k.build()
    found = not_negative(kernel)
    known = {s.ident for s in kernel.body if isinstance(s, Let) and id(s.value) in found}
    assert known == {"i", "index", "rest", "limited"}


def test_sums_of_data_may_overflow_and_those_of_indices_do_not() -> None:
    k = started("data")
    src = k.buffer("src", Scalar.I32, 1, "read")
    i = k.let(k.global_id(0), "i")
    data = k.let(k.max(k.load(src, 0), 0), "data")
    k.let(data + data, "sum")
    k.let(data * i, "product")
    k.let(k.max(data, i) + i, "larger")
    k.let(data // 3 % 4, "rest")
    within = k.let(k.min(data, 63), "within")
    k.let(within * 64 + i, "place")
    k.let((data & 15) + i, "masked")
    k.let(data % 5 + i, "cycled")
    kernel = k.build()
    found = not_negative(kernel)
    known = {s.ident for s in kernel.body if isinstance(s, Let) and id(s.value) in found}
    assert known == {"i", "data", "rest", "within", "place", "masked", "cycled"}


def test_a_name_of_another_block_says_nothing() -> None:
    k = started("blocks")
    with k.loop(0, 4, name="i"):
        pass
    with k.loop(k.i32(-2), 4, name="i") as again:
        k.let(again + 1, "sum")
    kernel = k.build()
    inner = kernel.body[2].body[0]  # type: ignore[attr-defined]
    assert id(inner.value) not in not_negative(kernel)


def test_sums_and_products_of_data_may_wrap_around() -> None:
    k = started("data")
    src = k.buffer("src", Scalar.I32, 1, "read")
    x = k.let(k.max(k.load(src, 0), 0), "x")
    y = k.let(k.max(k.load(src, 1), 0), "y")
    k.let(x + y, "sum")
    k.let(x * 2, "twice")
    k.let(k.max(x + y, 0) // 2, "half")
    near = k.let(k.min(x, 999), "near")
    place = k.let(near * 1000 + k.global_id(0) % 7, "place")
    k.let(place % 10 + (y & 15) * near, "again")
    k.let(near * 3_000_000, "far")
    with k.loop(0, near, name="i") as i:
        k.let(i * 2_000_000, "within")
        k.let(i * near * 1_000_000 + near, "beyond")
    kernel = k.build()
    found = not_negative(kernel)
    inner = kernel.body[-1].body  # type: ignore[attr-defined]
    lets = [s for s in (*kernel.body, *inner) if isinstance(s, Let)]
    known = {s.ident for s in lets if id(s.value) in found}
    assert known == {"x", "y", "half", "near", "place", "again", "within"}


def test_what_was_f32_and_is_f16_is_rounded() -> None:
    k = started("rounded")
    src = k.buffer("src", Scalar.F32, 4, "read")
    x = k.let(k.load(src, 0), "x")
    half = k.let(k.cast(x, Scalar.F16), "half")
    k.let(k.cast(half, Scalar.F32), "wide")
    names = rounded_names(k.build())
    assert names == {"half"}
    assert is_rounded(half, names)
    assert not is_rounded(x, names)


def test_literals_are_computed_by_the_rules_of_the_language() -> None:
    k = started("constants")
    k.let(k.f32(1.0) / 0.0, "infinite")
    k.let(k.select(k.const(True, k.i32(0).eq(0).type), k.f32(2.0, 4), k.f32(3.0, 4)), "two")
    k.let(k.cast(k.f32(3e9), Scalar.I32) + k.global_id(0), "sum")
    kernel = k.build()
    values = {stmt.ident: stmt.value for stmt in kernel.body if isinstance(stmt, Let)}
    found = constant_values(kernel)
    assert found[id(values["infinite"])].tolist() == [np.inf]
    assert found[id(values["two"])].tolist() == [[2.0] * 4]
    assert id(values["sum"]) not in found
