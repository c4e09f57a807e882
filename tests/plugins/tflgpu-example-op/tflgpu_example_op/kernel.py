"""The kernel of ExampleSwish: an expression on four channels, which joins other kernels' stores."""

from __future__ import annotations

from collections.abc import Sequence

from tflgpu.sdk.kernels import Builder, ElementwiseRule, Expr

from tflgpu_example_op.op import NAME, Swish


def _swish(k: Builder, attributes: Swish, operands: Sequence[Expr]) -> Expr:
    x = operands[0]
    return x / (k.call("exp", x * -attributes.beta) + 1.0)


RULE = ElementwiseRule(NAME, _swish)
