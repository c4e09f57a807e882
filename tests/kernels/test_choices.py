"""Choices among the ways to write a kernel: each gives the same, and which one counts where
something is known of a problem."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu_cpu_ref.device
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.target import Target
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ir.graph import Graph
from tflgpu.lowering.choices import ChoicePoint, Choices
from tflgpu.lowering.precision import Precision
from tflgpu.ops.attention import Attention, AttentionSizes
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.running import by_plan
from tests.small_models import small_model

CAPS = attrs.evolve(tflgpu_cpu_ref.device.CAPS, is_gpu=True, compute_units=4)


def fully_connected(rows: int, depth: int, columns: int, *, computed: bool = False) -> Graph:
    """A product, of an input or of what its loads compute of one."""
    weights = np.random.default_rng(4).uniform(-1, 1, (columns, depth)).astype(np.float32)
    shapes = {"x": (rows, depth), "a": (rows, depth), "w": weights, "y": (rows, columns)}
    lines = (
        ("a = RELU(x)", "y = FULLY_CONNECTED(a, w)") if computed else ("y = FULLY_CONNECTED(x, w)",)
    )
    return built(small_model(shapes, *lines))


def built(model: bytes) -> Graph:
    return build_graph(read_model(model), 0, builtin_ops())


def attention(queries: int, keys: int, depth: int) -> Graph:
    graph = Graph()
    shapes = AttentionSizes(1, queries, keys, 2, 2, depth, depth).operands(Attention(0.5))[:3]
    values = [graph.add_value(shape, DType.F32) for shape in shapes]
    made = graph.add_value((1, queries, 2, depth), DType.F32)
    graph.inputs, graph.outputs = values, [made]
    graph.add_node("ATTENTION", Attention(0.5), values, [made])
    return graph


#: A kind, a model, its precision, and how far f16 sums may be away.
CANDIDATES = {
    "few_rows": (fully_connected(3, 260, 36), "f32", 1e-5),
    "few_rows in f16": (fully_connected(1, 1040, 12), "f16", 5e-3),
    "blocked": (fully_connected(37, 52, 20), "f32", 1e-5),
    "blocked of what is computed": (fully_connected(37, 52, 20, computed=True), "f16", 5e-3),
    "attention": (attention(33, 70, 24), "f16", 5e-3),
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_gives_the_same(name: str) -> None:
    """On the kernel interpreter, which also refuses races and accesses out of bounds."""
    graph, precision, bound = CANDIDATES[name]
    caps = attrs.evolve(CAPS, matrix_tiles=not name.startswith("blocked"), vendor="nvidia")
    target = Target.plain(caps, Precision(precision), alignment=16)
    device = tflgpu_cpu_ref.device.CpuRefDevice()

    def run(names: dict[str, str]) -> tuple[Array, dict[str, ChoicePoint], set[str]]:
        points: dict[str, ChoicePoint] = {}
        site = attrs.evolve(target.site, choices=Choices(names, points=points))
        (plan,) = compile_graph(graph, attrs.evolve(target, site=site)).plans
        draw = np.random.default_rng(2)
        inputs = [draw.uniform(-1, 1, io.shape) for io in plan.inputs]
        made = by_plan(device, plan, *inputs)[0].astype(np.float64)
        return made, points, {dispatch.tuned for dispatch in plan.dispatches}

    wanted, points, _ = run({})
    (point,) = points.values()
    assert point.key.startswith(f"{name.partition(' ')[0]} ")
    assert len(point.candidates) > 1
    for candidate in point.candidates:
        made, _, tuned_by = run({point.key: candidate})
        assert tuned_by == {f"{name.partition(' ')[0]} {candidate}"}
        error = np.linalg.norm(made - wanted) / np.linalg.norm(wanted)
        assert error <= bound, candidate
    device.close()


def test_a_candidate_that_is_gone_counts_for_nothing() -> None:
    ways = ["short", "longer"]
    for names in ({}, {"p": "gone"}, {"q": "longer"}):
        assert Choices(names).choose(lambda: "p", ways, len, ()) == ("short", "")
    points: dict[str, Any] = {}
    assert Choices({"p": "longer"}, points=points).choose(lambda: "p", ways, len, ()) == (
        "longer",
        "longer",
    )
    assert list(points["p"].candidates.items()) == [("short", 5), ("longer", 6)]
    assert points["p"].chosen == "longer"


def test_a_row_of_a_release_counts_while_the_same_is_predicted() -> None:
    ways = ["short", "longer"]

    def chosen(row: dict[str, str], **names: str) -> str:
        return Choices(names, shipped={"p": row}).choose(lambda: "p", ways, len, ())[1]

    assert chosen({"short": "longer"}) == "longer"
    # Something else is predicted since; the candidate is gone; what was measured here comes first.
    assert chosen({"longest": "longer"}) == chosen({"short": "gone"}) == ""
    assert chosen({"short": "longer"}, p="short") == "short"
