"""A layer of a transformer, of composites: few kernels, and LiteRT's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec
from tflgpu.tflite.write import write_model

pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

from composite_models import Body, by_litert, drawn, here
from flatbuffers import flexbuffers
from test_composite_attention import attention
from test_composite_layers import ROPE, rope, swiglu
from test_composite_norms import EPSILON, rms

TOKENS, WIDTH, HEADS, SHARED, DEPTH, HIDDEN = 6, 24, 4, 2, 8, 20


class Layer(Body):
    """The layer's own operators, and its composites."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix
        self.bodies: list[SubgraphSpec] = []
        self.rng = np.random.default_rng(5)

    def weights(self, *shape: int) -> int:
        return self.const(self.rng.uniform(-0.4, 0.4, shape))

    def dense(self, x: int, width: int) -> int:
        shape = self.shape(x)
        weights = self.weights(width, shape[-1])
        return self.op("FULLY_CONNECTED", [x, weights], (*shape[:-1], width), keep_num_dims=True)

    def whole(
        self,
        name: str,
        attributes: Mapping[str, Any],
        made: tuple[Body, list[int]],
        given: Sequence[int],
    ) -> int:
        body, outputs = made
        self.bodies.append(SubgraphSpec(body.tensors, body.operators, body.inputs, outputs))
        result = self._tensor(body.shape(outputs[0]), DType.F32)
        fields = {
            "name": self.prefix + name, "decomposition_subgraph_index": len(self.bodies),
            "composite_attributes": tuple(flexbuffers.Dumps(dict(attributes))),
        }  # fmt: skip
        self.operators.append(OperatorSpec("STABLEHLO_COMPOSITE", fields, list(given), [result]))
        return result

    def norm(self, x: int) -> int:
        return self.whole("rms_norm", EPSILON, rms(self.shape(x)), [x, self.weights(WIDTH)])


def layer(prefix: str) -> bytes:
    """One whose composites' names start so."""
    b = Layer(prefix)
    x, at, mask = (
        b.given((1, TOKENS, WIDTH)),
        b.given((TOKENS,), DType.I32),
        b.given((1, 1, TOKENS, TOKENS)),
    )
    y = b.norm(x)
    heads = [
        b.reshape(b.dense(y, count * DEPTH), 1, TOKENS, count, DEPTH)
        for count in (HEADS, SHARED, SHARED)
    ]
    q, k = (b.whole("rope", ROPE, rope(b.shape(h), 1), [h, at]) for h in heads[:2])
    made = attention(1, TOKENS, TOKENS, HEADS, SHARED, DEPTH, mask=(1, 1, TOKENS, TOKENS))
    y = b.whole("scaled_dot_product_attention", {}, made, [q, k, heads[2], mask])
    x = b.same("ADD", x, b.dense(b.reshape(y, 1, TOKENS, HEADS * DEPTH), WIDTH))
    gates = b.dense(b.norm(x), 2 * HIDDEN)
    y = b.whole("swiglu", {"gate_size": HIDDEN}, swiglu(b.shape(gates)), [gates])
    y = b.same("ADD", x, b.dense(y, WIDTH))
    return write_model(ModelSpec(b.tensors, b.operators, b.inputs, [y], subgraphs=b.bodies))


@pytest.mark.parametrize(("precision", "close"), [("f32", 2e-5), ("f16", 2e-2)])
def test_few_kernels_and_the_same_results(precision: str, close: float) -> None:
    content, unknown = layer("odml."), layer("some.")
    arrays = drawn(content)
    arrays[1][...] = np.arange(TOKENS)
    arrays[2][...] = np.where(np.tri(TOKENS), 0, -1e4)
    (wanted,) = by_litert(content, arrays)
    (found,), report = here(content, arrays, precision=precision)
    (apart,), before = here(unknown, arrays, precision=precision)
    np.testing.assert_allclose(found, wanted, rtol=close, atol=close)
    np.testing.assert_allclose(apart, wanted, rtol=close, atol=close)
    assert [c.op for c in report.composites] == [
        "RMS_NORMALIZATION", "ROTARY_EMBEDDING", "ROTARY_EMBEDDING", "ATTENTION",
        "RMS_NORMALIZATION", "GATED_SILU",
    ]  # fmt: skip
    assert not any(c.op for c in before.composites)
    # Attention is found among the operators too, behind what repeats the heads of its keys.
    assert (report.dispatches, before.dispatches) == (12, 37)
