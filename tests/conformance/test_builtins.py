"""Every builtin operator of TFLite's schema is run, or refused with what is missing."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import tflgpu
from tflgpu.conformance.other_builtins import names, others
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.bodies import RUN_BY_HOST
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import write_model

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="needs tflgpu[litert]")

OTHERS = others()
#: The LiteRT that the table of these operators was made by.
TABLE_OF = (2, 3)
#: Options that name a subgraph: one that does not run itself.
BODIES = {
    "CALL": {"subgraph": 1},
    "STABLEHLO_REDUCE": {"body_subgraph_index": 1},
    "STABLEHLO_SORT": {"comparator_subgraph_index": 1},
    "STABLEHLO_WHILE": {"cond_subgraph_index": 1, "body_subgraph_index": 1},
}


def one(name: str) -> bytes:
    """A model of one operator, which need not make sense."""
    tensors = [TensorSpec("x", (1,)), TensorSpec("y", (1,))]
    body = SubgraphSpec(tensors[:1], [], [0], [0])
    operator = OperatorSpec(name, BODIES.get(name, {}), [0], [1])
    return write_model(ModelSpec(tensors, [operator], [0], [1], subgraphs=[body]))


def has_kernel(name: str) -> bool:
    """Whether LiteRT finds one. Nothing is prepared."""
    try:
        litert.Interpreter(model_content=one(name))
    except ValueError as error:  # which may also be about options that the model lacks
        return "Didn't find op" not in str(error)
    return True


def test_the_schema_is_walked_whole() -> None:
    assert len(names()) > 200
    assert set(names()) == (set(builtin_ops()) & set(names())) | set(OTHERS)
    assert set(OTHERS) >= RUN_BY_HOST
    for name, other in OTHERS.items():
        assert other.runs in ("LiteRT", "host", "no"), name
        assert other.why, name


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_litert_has_what_the_table_says(name: str) -> None:
    found, is_run = has_kernel(name), OTHERS[name].runs != "no"
    here = tuple(map(int, version("ai-edge-litert").split(".")[:2]))
    if here != TABLE_OF and found != is_run:
        pytest.skip(f"the table is of LiteRT {TABLE_OF}, this is {here}")
    assert found == is_run


@pytest.mark.parametrize("name", sorted(n for n in OTHERS if OTHERS[n].runs == "no"))
def test_what_nobody_runs_is_refused_with_what_is_missing(name: str) -> None:
    if has_kernel(name):
        pytest.skip("this LiteRT has a kernel")
    interpreter = tflgpu.Interpreter(
        model_content=one(name), experimental_delegates=[], cpu_backend="litert"
    )
    with interpreter, pytest.raises(tflgpu.UnsupportedError, match=rf"#0 {name}: ") as caught:
        interpreter.allocate_tensors()
    said = str(caught.value)
    assert "is not defined" in said or "runs other subgraphs" in said
    assert "LiteRT" in said
