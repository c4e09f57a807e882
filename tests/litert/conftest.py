from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import tflgpu
from tflgpu.ops.base import OpDef
from tflgpu.plugins.registry import Registry

from tests.litert.litert_models import DEVICES

pytest.importorskip("ai_edge_litert")


@pytest.fixture(autouse=True)
def nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable asks for a CPU side, so that the default is LiteRT's."""
    monkeypatch.delenv("TFLGPU_CPU_BACKEND", raising=False)


#: What tests take for operators that nobody defines, whether or not somebody does by now.
LEFT_OUT = frozenset({
    "BITCAST", "DYNAMIC_UPDATE_SLICE", "FAKE_QUANT", "MATRIX_DIAG", "REVERSE_SEQUENCE",
    "SCATTER_ND",
    "STABLEHLO_ADD", "UNIQUE", "UNSORTED_SEGMENT_MAX",
})  # fmt: skip
#: What they take for an op of which an older version is defined.
OLDER = {"SQRT": 1}


@pytest.fixture(autouse=True)
def left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some builtin operators are not defined, or not in their newest version."""
    defined = Registry.ops

    def ops(self: Registry) -> dict[str, OpDef]:
        found = {n: op for n, op in defined(self).items() if n not in LEFT_OUT}
        older = {
            n: attrs.evolve(found[n], file=attrs.evolve(found[n].file, max_version=v))
            for n, v in OLDER.items()
        }
        return {**found, **older}

    monkeypatch.setattr(Registry, "ops", ops)


@pytest.fixture(params=DEVICES)
def delegate(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Any]
) -> Iterator[tflgpu.GpuDelegate]:
    """A delegate on each of two devices."""
    options = DEVICES[request.param]
    require_backend(options["backend"])
    with tflgpu.GpuDelegate(**options) as made:
        yield made
