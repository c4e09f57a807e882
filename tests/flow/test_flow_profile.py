"""A profile of a model whose pieces run several times."""

from __future__ import annotations

import numpy as np
import pytest
from tflgpu import GpuDelegate, Interpreter
from tflgpu.compiler.machines import Limits
from tflgpu.devices import limits

from tests.flow.flow_models import I32, STATE, const, counting, loop, model, subgraph, tensor, up_to
from tests.running import allocate_and_run


@pytest.mark.parametrize("options", [{}, {"exclude": "SIN"}], ids=["device", "mixed"])
def test_every_call_of_a_piece_is_told(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "limits_of", lambda device, owner: Limits(1e9, 1e10))
    body = counting([tensor("y"), tensor("z")], [("SIN", "x", "y"), ("NEG", "y", "z")], "z")
    main = subgraph(
        [*STATE, const("c", [2, 3]), tensor("x2"), tensor("io", (), I32), tensor("xo")],
        [("MUL", "x c", "x2"), ("WHILE", "i x2", "io xo", loop(1, 2))],
        "i x",
        "io xo",
    )
    content = model(main, up_to(3), body)
    with (
        GpuDelegate(backend="cpu_ref", device=1, **options) as delegate,
        Interpreter(model_content=content, experimental_delegates=[delegate]) as opened,
    ):
        allocate_and_run(opened, {1: np.array([3, 5], np.float32)})
        before = opened.get_tensor(opened.get_output_details()[1]["index"])
        found = opened.profile(3)
        after = opened.get_tensor(opened.get_output_details()[1]["index"])
    assert (before == after).all()
    assert sum(found.steps.values()) == pytest.approx(found.seconds, rel=0.05)
    own = [part for part in found.parts if part.subgraph == 0]
    assert [part.ops for part in own] == [("MUL",)]
    assert found.by_operator.keys() == {0}
    inside = [part for part in found.parts if part.subgraph is None]
    ops = [op for part in inside for d in part.dispatches for op in d.ops]
    on_cpu = [op for part in inside if part.on_cpu for op in part.ops]
    assert ops.count("NEG") + on_cpu.count("NEG") == 3
    assert on_cpu.count("SIN") == (3 if options else 0)
    assert all(d.flops == 0 for d in found.dispatches)  # how often each runs is not in the file
