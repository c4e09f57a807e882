"""Finding passes, their order, and what all of them together make of real models."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tflgpu import passes
from tflgpu.errors import GraphError, PluginError
from tflgpu.ir.graph import Graph
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.base import Pass, PassContext, run_passes
from tflgpu.passes.registry import builtin_passes, default_passes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.passes.harness import CONTEXT, Maker, draw, evaluate, inferred, names


def test_every_module_with_a_pass_is_found_and_says_what_it_does() -> None:
    modules = [
        importlib.import_module(f"tflgpu.passes.{m.name}")
        for m in pkgutil.iter_modules(passes.__path__)
    ]
    with_pass = {m.PASS.name: m for m in modules if hasattr(m, "PASS")}
    assert {p.name for p in builtin_passes()} == set(with_pass)
    for name, module in with_pass.items():
        assert module.__name__ == f"tflgpu.passes.{name}"
        assert module.__doc__


def test_plugins_passes_take_their_place_by_phase() -> None:
    early, late = (
        Pass(name, lambda graph, context: 0, phase) for name, phase in (("z", -1), ("a", 99))
    )
    order = default_passes([late, early])
    assert (order[0], order[-1]) == (early, late)
    assert [p.phase for p in order] == sorted(p.phase for p in order)
    assert default_passes([early, late]) == order


def test_two_passes_of_one_name_clash() -> None:
    with pytest.raises(PluginError, match="2 passes named 'square'"):
        default_passes([Pass("square", lambda graph, context: 0)])


def test_passes_that_do_not_settle_are_named(g: Maker) -> None:
    graph = g.done(g.op("ABS", g.input(2)))
    with pytest.raises(GraphError, match="restless do not settle"):
        run_passes(graph, [Pass("restless", lambda graph, context: 1)], CONTEXT)


def test_a_pass_that_breaks_the_graph_is_named(g: Maker) -> None:
    def wreck(graph: Graph, context: PassContext) -> int:
        graph.nodes[0].inputs[0] = graph.nodes[0].outputs[0]
        return 1

    graph = g.done(g.op("ABS", g.input(2)))
    with pytest.raises(GraphError, match=r"after wreck: #0 ABS: input 0"):
        run_passes(graph, [Pass("wreck", wreck)], CONTEXT)


def test_an_empty_graph_passes() -> None:
    graph = Graph()
    assert set(run_passes(graph, default_passes(), CONTEXT).values()) == {0}


# Small enough to be computed by the references in a few seconds.
MODELS = [
    "mobilenet_v1_0.25_224_float",
    "mp_selfie_segmentation_f16",
    "movie_review_nl_classifier",
    "tflm_mnist_lstm_fp32",
    "mobilenet_v2_1.0_224_f32",
    "litert_torchaudio_conformer",
]


def optimized(path: Path) -> tuple[Graph, Graph]:
    graph = build_graph(read_model(path), 0, builtin_ops())
    after = graph.copy()
    run_passes(after, default_passes(), CONTEXT)
    return graph, after


@pytest.mark.parametrize("name", MODELS)
def test_real_models_compute_the_same(model_path: Callable[[str], Path], name: str) -> None:
    graph, after = optimized(model_path(name))
    inferred(after)
    assert len(after.nodes) <= len(graph.nodes)
    inputs = draw(graph)
    expected = evaluate(graph, inputs)
    # Deep models amplify a rounding; as much as one of the inputs' makes is to be expected.
    nudged = [a * np.float32(1 + 2**-22) if a.dtype == np.float32 else a for a in inputs]
    for mine, theirs, other in zip(
        evaluate(after, inputs), expected, evaluate(graph, nudged), strict=True
    ):
        scale, noise = np.abs(theirs).max(), np.abs(theirs - other).max()
        assert scale > 0
        assert noise < 1e-3 * scale
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5 * scale + 4 * noise)


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("ssd_mobilenet_v2_oidv4_fp16", ["DEQUANTIZE"]),
        ("mp_pose_landmark_full_f16", ["DEQUANTIZE"]),
        ("mobilenet_v1_0.25_224_float", ["SQUEEZE", "AVERAGE_POOL_2D"]),
        ("mp_selfie_segmentation_f16", ["DEQUANTIZE", "RELU"]),
    ],
)
def test_real_models_lose_what_is_not_needed(
    model_path: Callable[[str], Path], name: str, gone: list[str]
) -> None:
    graph, after = optimized(model_path(name))
    inferred(after)
    left = Counter(names(after))
    in_file = {o.name for o in read_model(model_path(name)).main.operators}
    assert all(op in in_file and not left[op] for op in gone)
    # Every operator of the file is accounted for, or was folded into constants.
    origins = {o for n in after.nodes for o in n.origins}
    folded = {n.origins[0] for n in graph.nodes} - origins
    by_origin = {n.origins[0]: n for n in graph.nodes}
    assert {by_origin[o].op for o in folded} <= {"DEQUANTIZE"}
