"""What the tests of variables on a device share: a device that is watched, and runs beside
LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter as LiteRT
from tflgpu.compiler.report_values import Place
from tflgpu.ir.dtypes import Array

from tests.flow.flow_models import (
    Op,
    accumulator,
    initializer,
    model,
)
from tests.running import allocated, results

ONCE: Op = ("CALL_ONCE", "", "", {"init_subgraph_index": 1})
X = np.array([1, 2], np.float32)
ADDING = model(accumulator(ONCE), initializer([10, 20]))


def step(interpreter: Any, *given: Any) -> Array:
    return results(interpreter, given)[0]


def litert(content: bytes) -> Any:
    return allocated(LiteRT(model_content=content))


def alike(mine: Any, theirs: Any, count: int, x: Any = X) -> None:
    for n in range(count):
        given = (np.asarray(x) * (n + 1)).astype(np.float32)
        np.testing.assert_allclose(step(mine, given), step(theirs, given), rtol=1e-6)


def of_variables(interpreter: Any) -> dict[str, str]:
    """Why operators on variables are not on the device; "" for one that is."""
    report = interpreter.report
    names = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")
    assert all(
        (r.place is Place.DEVICE) == (not r.reason) for r in report.operators if r.op in names
    )
    return {row.op: row.reason for row in report.operators if row.op in names}
