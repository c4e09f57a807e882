"""merge_transposes, square, global_pool."""

from __future__ import annotations

from itertools import permutations

import pytest
from tflgpu.ir.dtypes import DType
from tflgpu.passes import global_pool, merge_transposes, remove_noops, square

from tests.passes.harness import RELU, Maker, check, names, only


@pytest.mark.parametrize("second", list(permutations(range(3))))
def test_two_transposes_become_one(second: tuple[int, ...]) -> None:
    g = Maker()
    y = g.op("TRANSPOSE", g.op("TRANSPOSE", g.input(2, 3, 5), g.ints(2, 0, 1)), g.ints(*second))
    after = check(g.done(g.op("ABS", y)), merge_transposes.PASS, rtol=0)
    assert names(after) == ["TRANSPOSE", "ABS"]
    assert after.nodes[0].origins == (0, 1)


def test_a_transpose_and_its_inverse_vanish() -> None:
    g = Maker()
    y = g.op("TRANSPOSE", g.op("TRANSPOSE", g.input(2, 3, 5), g.ints(2, 0, 1)), g.ints(1, 2, 0))
    after = check(g.done(g.op("ABS", y)), [merge_transposes.PASS, remove_noops.PASS], rtol=0)
    assert names(after) == ["ABS"]


def test_a_transpose_that_others_read_stays_for_them() -> None:
    g = Maker()
    x = g.op("TRANSPOSE", g.input(2, 3, 5), g.ints(2, 0, 1))
    graph = g.done(g.op("ABS", x), g.op("TRANSPOSE", x, g.ints(1, 0, 2)))
    after = check(graph, merge_transposes.PASS, rtol=0)
    assert names(after) == ["TRANSPOSE", "ABS", "TRANSPOSE"]
    assert after.nodes[2].input(0) is after.inputs[0]


def test_a_product_with_itself_is_a_square() -> None:
    g = Maker()
    x = g.input(2, 3)
    assert names(check(g.done(g.op("MUL", x, x)), square.PASS, rtol=0)) == ["SQUARE"]


def test_other_products_stay() -> None:
    g = Maker()
    x, i = g.input(2, 3), g.input(2, 3, dtype=DType.I32)
    graph = g.done(g.op("MUL", x, g.op("ABS", x)), g.op("MUL", x, x, **RELU), g.op("MUL", i, i))
    assert names(check(graph, square.PASS)) == names(graph)


@pytest.mark.parametrize(
    ("height", "width", "padding", "stride"), [(5, 7, 1, 1), (5, 7, 0, 9), (9, 9, 0, 8)]
)
def test_an_average_over_the_image_is_a_mean(
    height: int, width: int, padding: int, stride: int
) -> None:
    g = Maker()
    y = g.op("AVERAGE_POOL_2D", g.input(2, 5, 7, 6), filter_height=height, filter_width=width,
             stride_h=stride, stride_w=stride, padding=padding)  # fmt: skip
    after = check(g.done(y), global_pool.PASS)
    covers = height + width == 12 or height == 9
    assert names(after) == (["MEAN"] if covers else ["AVERAGE_POOL_2D"])


@pytest.mark.parametrize("fields", [{"filter_width": 6}, RELU, {"padding": 0, "filter_height": 4}])
def test_other_averages_stay(fields: dict[str, int]) -> None:
    g = Maker()
    options = {"filter_height": 5, "filter_width": 7, "stride_h": 9, "stride_w": 9, "padding": 1}
    graph = g.done(g.op("AVERAGE_POOL_2D", g.input(2, 5, 7, 6), **{**options, **fields}))
    assert only(check(graph, global_pool.PASS), "AVERAGE_POOL_2D")
