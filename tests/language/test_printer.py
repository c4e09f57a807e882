"""What a dialect of another backend lacks is said by name."""

from __future__ import annotations

from typing import Any

import pytest
from tflgpu.errors import KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.c_family import CPrinter
from tflgpu.language.kernel import Kernel
from tflgpu.language.needs import Features
from tflgpu.language.types import Scalar


def _kernel() -> Kernel:
    k = Builder("twice", (64, 1, 1))
    x = k.buffer("x", Scalar.F32, 1, "read")
    y = k.buffer("y", Scalar.F32, 1, "write")
    i = k.global_id(0)
    k.store(y, i, k.load(x, i) * 2.0)
    return k.build()


class Half(CPrinter):
    """A dialect that nobody has finished."""

    def open_kernel(self) -> list[str]:
        return ["void twice(const float* x, float* y) {"]

    def prelude(self) -> list[str]:
        return []

    def builtin(self, expr: Any) -> Any:
        raise NotImplementedError  # as the base does

    def store(self, stmt: Any, index: Any, value: Any) -> str:
        return "y[0] = x[0];"


@pytest.mark.parametrize(("dialect", "lacks"), [(CPrinter, "open_kernel"), (Half, "builtin")])
def test_a_method_that_a_dialect_lacks(dialect: type[CPrinter], lacks: str) -> None:
    with pytest.raises(
        KernelError, match=f"kernel twice: {dialect.__name__} has no method {lacks}"
    ):
        dialect(_kernel(), Features()).source()
