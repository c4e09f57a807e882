"""What the tests of saved models have in common: small graphs, and compiling them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from tflgpu.compiler.compile import compile as compile_graph
from tflgpu.compiler.parts import Compiled
from tflgpu.compiler.target import Target
from tflgpu.ir.graph import Graph
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.registry import default_passes
from tflgpu.saved.key import Key, key_of
from tflgpu.saved.model import compiled_in, saved_bytes
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model

from tests.small_models import small_model, tensor_of

FACTS = (("backend", "test"), ("device", "a device"), ("driver", "1.0"))


def convolved(scale: float = 0.5) -> bytes:
    """A convolution, an activation that joins it, and a product: 5 channels, odd sizes."""
    rng = np.random.default_rng(7)
    filters = (scale * rng.standard_normal((5, 3, 3, 3))).astype(np.float32)
    bias = rng.standard_normal(5).astype(np.float32)
    weights = rng.standard_normal((4, 5 * 7 * 5)).astype(np.float32)
    conv = {"padding": 0, "stride_w": 1, "stride_h": 1}
    return small_model(
        {
            "x": (1, 7, 5, 3),
            "f": tensor_of((5, 3, 3, 3), data=filters),
            "b": tensor_of((5,), data=bias),
            "c": (1, 7, 5, 5),
            "t": (1, 7, 5, 5),
            "w": tensor_of((4, 175), data=weights),
            "y": (1, 4),
        },
        ("c = CONV_2D(x, f, b)", conv),
        "t = TANH(c)",
        "y = FULLY_CONNECTED(t, w, -)",
    )


def graph_of(model: bytes, resized: Mapping[int, tuple[int, ...]] | None = None) -> Graph:
    return build_graph(read_model(model), 0, builtin_ops(), dict(resized or {}))


def target_of(**changes: Any) -> Target:
    target = Target.plain(DeviceCaps(), Precision.F32)
    return attrs.evolve(target, **{"passes": tuple(default_passes(())), **changes})


def compiled_small(model: bytes) -> tuple[Graph, Compiled, Key]:
    graph, target = graph_of(model), target_of()
    return graph, compile_graph(graph, target), key_of(graph, target, FACTS)


def bytes_of(compiled: Compiled, graph: Graph, key: Key) -> bytes:
    return b"".join(bytes(piece) for piece in saved_bytes(compiled, graph, key))


def through_bytes(compiled: Compiled, graph: Graph, key: Key) -> Compiled:
    data = bytes_of(compiled, graph, key)
    return compiled_in(memoryview(data), graph, key, "the file")
