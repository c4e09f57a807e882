"""Softsign's kernel: an expression, which joins the store of whatever makes its operand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.sdk.kernels import Builder, ElementwiseRule, Expr


def _softsign(k: Builder, attributes: Any, operands: Sequence[Expr]) -> Expr:
    x = k.let(operands[0], "x")
    return x / (k.call("abs", x) + 1.0)


RULES = (ElementwiseRule("Softsign", _softsign),)
