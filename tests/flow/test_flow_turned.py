"""A loop whose body hands on an input at another place, which LiteRT's own WHILE gets wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flow_models import I32, STATE, counting, loop, model, subgraph, tensor, up_to
from tflgpu import GpuDelegate, Interpreter


def turning(rounds: int, handed_on: str) -> bytes:
    """(i, x, y) -> (i + 1, s, x) or (i + 1, y, x), where s is x + y."""
    y = tensor("y")
    results = [tensor("io", (), I32), tensor("xo"), tensor("yo")]
    main = subgraph(
        [*STATE, y, *results], [("WHILE", "i x y", "io xo yo", loop(1, 2))], "i x y", "io xo yo"
    )
    body = counting([y, tensor("s")], [("ADD", "x y", "s")], f"{handed_on} x", "i x y")
    return model(main, up_to(rounds, y), body)


@pytest.mark.parametrize("backend", ["none", "cpu_ref"])
@pytest.mark.parametrize("handed_on", ["s", "y"])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_what_is_handed_on_is_what_it_was(rounds: int, handed_on: str, backend: str) -> None:
    given: list[Any] = [np.int32(0), np.float32([1.5, -2]), np.float32([10, 20])]
    delegates = [] if backend == "none" else [GpuDelegate(backend=backend)]
    with Interpreter(
        model_content=turning(rounds, handed_on), experimental_delegates=delegates
    ) as interpreter:
        interpreter.allocate_tensors()
        for details, value in zip(interpreter.get_input_details(), given, strict=True):
            interpreter.set_tensor(details["index"], value)
        interpreter.invoke()
        found = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
    x, y = given[1:]
    for _ in range(rounds):
        x, y = (x + y if handed_on == "s" else y), x
    np.testing.assert_array_equal(found[1], x)
    np.testing.assert_array_equal(found[2], y)
