"""The findings of a check, as values."""

from __future__ import annotations

import attrs

from tflgpu.compiler.report import DelegationReport
from tflgpu.tools.check_layer import DivergingLayer
from tflgpu.tools.check_outputs import Gap, OutputKind


@attrs.frozen
class OutputCheck:
    """One output of the model, over all samples.

    Attributes:
        name, dtype, shape: As the file has them.
        kind: What it is judged as.
        gap: The device against the reference.
        spread: LiteRT's reference kernels against XNNPACK; None where one of them does not run.
        limit: The share of its largest value that an element, of a mask the root of the mean
            square, may differ by.
        why: What is wrong; "" where it agrees.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: OutputKind
    gap: Gap
    spread: Gap | None
    limit: float
    why: str


@attrs.frozen(eq=False)
class CheckFields:
    """A device held against LiteRT, as fields; `CheckResult` can print them too.

    Attributes:
        outputs: In the model's order.
        samples: How many there were.
        reference: What the device was compared with.
        report: Where the operators ran.
        layer: The operator from which on outputs differ; None where they agree, or where it was not
            found.
        notes: What else there is to know: which reference does not run the model, and what makes a
            result suspicious.
    """

    outputs: tuple[OutputCheck, ...]
    samples: int
    reference: str
    report: DelegationReport
    layer: DivergingLayer | None = None
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether all outputs are within their limits."""
        return not any(output.why for output in self.outputs)
