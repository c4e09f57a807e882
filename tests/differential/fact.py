"""Everything that is known of one case, for the rules that class it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.ops.base import Accuracy
from tflgpu.ops.registry import builtin_ops
from tflgpu.tflite.model_file import ModelFile
from tflgpu.tflite.read import read_model

from tests.differential.case import Outcome, Script
from tests.differential.compare import Difference, difference
from tests.differential.spread import Spread

#: How far results may be apart in relation to their size where only rounding is in between, and
#: nothing is known of how it carries: what `Tolerance.transcendental` says.
_RTOL = {"f32": 2e-5, "f32_f16": 4e-3, "f16": 2e-2}

_HYBRID = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL"})

#: ``ask(kernels)``: another answer of LiteRT about the same case, or the spread.
Ask = Callable[[str], Any]


@attrs.define(eq=False, slots=False)
class Fact:
    """One case, what came of it on both sides, and what can still be asked.

    Attributes:
        content: the file.
        script: what was done.
        theirs: what LiteRT's optimized kernels made of it.
        ours: what tflgpu made of it.
        ask: asks LiteRT again.
    """

    content: bytes
    script: Script
    theirs: Outcome
    ours: Outcome
    ask: Ask
    _kept: dict[str, Any] = attrs.field(factory=dict)

    @property
    def model(self) -> ModelFile | None:
        """The file as we read it, None where it is refused."""
        if "model" not in self._kept:
            try:
                self._kept["model"] = read_model(self.content)
            except TflgpuError:
                self._kept["model"] = None
        return self._kept["model"]

    @property
    def ops(self) -> frozenset[str]:
        """Names of its operators."""
        return frozenset() if self.model is None else frozenset(
            o.name for s in self.model.subgraphs for o in s.operators
        )  # fmt: skip

    @property
    def quantized(self) -> bool:
        """Whether any tensor has a scale."""
        return self.model is not None and any(
            t.quantization is not None for t in self.model.main.tensors
        )

    @property
    def hybrid(self) -> bool:
        """Whether an operator multiplies floats by weights of 8 bits."""
        if self.model is None:
            return False
        tensors = self.model.main.tensors
        for op in self.model.main.operators:
            if op.name in _HYBRID and len(op.inputs) > 1 and min(op.inputs[:2]) >= 0:
                x, weights = (tensors[i] for i in op.inputs[:2])
                if x.dtype is DType.F32 and weights.dtype in (DType.I8, DType.U8):
                    return True
        return False

    @property
    def odd(self) -> bool:
        """Whether there is anything but usual numbers: in the run that differs, in constants, or in
        the options of an operator."""
        found = self.difference
        if found is not None and self.script.runs[found.run] in ("nan", "inf", "huge", "wide"):
            return True
        if found is not None and self.spread is not None and self.spread.odd[found.run]:
            return True
        if self.model is None:
            return True
        numbers = [t.data for t in self.model.main.tensors if t.data is not None]
        options = [v for o in self.model.main.operators for v in o.fields.values()]
        return any(
            n.dtype.kind == "f" and not (np.abs(n.astype(np.float64)) < 1e30).all() for n in numbers
        ) or any(isinstance(v, float) and not abs(v) < 1e20 for v in options)

    @property
    def transposes_scalar(self) -> bool:
        """Whether there is a TRANSPOSE of a tensor without dimensions."""
        return self.model is not None and any(
            o.name == "TRANSPOSE" and not self.model.main.tensors[o.inputs[0]].shape
            for o in self.model.main.operators
        )

    @property
    def wraps(self) -> bool:
        """Whether a 32-bit bias of a quantized product leaves no room for the sum."""
        return self.model is not None and any(
            t.dtype is DType.I32 and t.quantization is not None and t.data is not None
            and np.size(t.data) and int(np.abs(t.data.astype(np.int64)).max()) >= 2**30
            for t in self.model.main.tensors
        )  # fmt: skip

    @property
    def foreign_filter(self) -> bool:
        """Whether floats are multiplied by a filter that is neither floats nor 8 bits."""
        if self.model is None:
            return False
        tensors = self.model.main.tensors
        pairs = [o.inputs[:2] for o in self.model.main.operators
                 if o.name in _HYBRID and len(o.inputs) > 1 and min(o.inputs[:2]) >= 0]  # fmt: skip
        return any(
            tensors[x].dtype is DType.F32
            and tensors[w].dtype not in (DType.F32, DType.I8, DType.U8)
            for x, w in pairs
        )

    def scales_differ(self, ops: frozenset[str]) -> bool:
        """Whether one of these operators reads or makes tensors of different quantizations."""
        if self.model is None:
            return False
        for op in self.model.main.operators:
            stored = [
                self.model.main.tensors[i]
                for i in (*op.inputs, *op.outputs)
                if i >= 0 and self.model.main.tensors[i].dtype in (DType.I8, DType.U8, DType.I16)
            ]
            quants = {(t.quantization.scale, t.quantization.zero_point)
                      if t.quantization else None for t in stored}  # fmt: skip
            if op.name in ops and len(quants) > 1:
                return True
        return False

    @property
    def exact(self) -> bool:
        """Whether its operators only move and compare numbers."""
        known = builtin_ops()
        return (
            not self.quantized
            and self.script.precision == "f32"
            and bool(self.ops)
            and all(n in known and known[n].accuracy is Accuracy.EXACT for n in self.ops)
        )

    @functools.cached_property
    def difference(self) -> Difference | None:
        """How the outputs differ where both sides finished: beyond what rounding explains."""
        if not (self.ours.accepted and self.theirs.accepted):
            return None
        rtol = _RTOL[self.script.precision]
        found = difference(self.ours, self.theirs, None, exact=self.exact, rtol=rtol)
        if found is None or found.kind in ("count", "dtype", "shape"):
            return found
        return difference(self.ours, self.theirs, self.moved, exact=self.exact, rtol=rtol)

    @property
    def spread(self) -> Spread | None:
        """How far rounding errors carry; None where that is not known."""
        if "spread" not in self._kept:
            found = self.ask("spread")
            self._kept["spread"] = found if isinstance(found, Spread) else None
        return self._kept["spread"]

    @property
    def moved(self) -> list[list[Array]] | None:
        """How far each element of each output may be moved by rounding."""
        return None if self.spread is None else self.spread.moved

    @property
    def overflows(self) -> bool:
        """Whether in the run that differs a number is finite but beyond f32."""
        found = self.difference
        return found is not None and self.spread is not None and self.spread.overflows[found.run]

    @property
    def steady(self) -> bool:
        """Whether LiteRT gives the same outputs again, and after another model was run."""
        again = self.other("builtin")
        return again.accepted and (
            difference(again, self.theirs, None, exact=True, rtol=0.0) is None
        )

    def agrees_with(self, kernels: str) -> bool:
        """Whether ours is what another of LiteRT's sets of kernels gives."""
        other = self.other(kernels)
        if not other.accepted:
            return False
        known = self.moved
        rtol = _RTOL[self.script.precision]
        return difference(self.ours, other, known, exact=self.exact, rtol=rtol) is None

    def litert_does(self, *habits: str) -> bool:
        """Whether LiteRT's outputs are those of our references with some habits of its kernels."""
        found = self._kept.get(f"quirks:{habits}")
        if found is None:
            found = self.ask("quirks:" + "+".join(habits))
            self._kept[f"quirks:{habits}"] = found
        if not isinstance(found, list):
            return False
        known = self.moved
        imitated = Outcome(state="ok", outputs=found)
        rtol = _RTOL[self.script.precision]
        return difference(imitated, self.theirs, known, exact=False, rtol=rtol) is None

    @property
    def ours_as_defined(self) -> bool:
        """Whether ours is what the references give on the numbers that the file's stand for: then
        LiteRT is the one that departs from the definition."""
        found = self._kept.get("defined")
        if found is None:
            found = self._kept["defined"] = self.ask("quirks:")
        if not isinstance(found, list):
            return False
        rtol = _RTOL[self.script.precision]
        defined = Outcome(state="ok", outputs=found)
        return difference(self.ours, defined, self.moved, exact=False, rtol=rtol) is None

    @property
    def sums_of_saturated(self) -> bool:
        """Whether LiteRT's outputs, which hold clamped infinities, are those of our references so
        clamped wherever neither has a number that large, or infinite, or NaN."""
        found = self.difference
        made = self.ask("quirks:saturate") if found is not None else None
        if found is None or not isinstance(made, list) or not self.ours_as_defined:
            return False
        largest = np.finfo(np.float32).max
        theirs = self.theirs.outputs
        if not any(np.any(np.abs(b) == largest) for b in theirs[found.run] if b.dtype.kind == "f"):
            return False
        pairs = [
            [_small(a, b, float(largest) / 64) for a, b in zip(*run, strict=True)]
            for run in zip(made, theirs, strict=True)
        ]
        left, right = ([[p[i] for p in run] for run in pairs] for i in (0, 1))
        a, b = Outcome(state="ok", outputs=left), Outcome(state="ok", outputs=right)
        return difference(a, b, self.moved, exact=False, rtol=_RTOL[self.script.precision]) is None

    @property
    def unread(self) -> bool:
        """Whether the operator at which LiteRT stopped is one whose results no output needs: ours
        does not run it."""
        said = re.search(r"Node number (\d+) \((\w+)\) failed", self.theirs.message)
        if self.model is None or said is None:
            return False
        graph = self.model.main
        at = int(said[1])
        if at >= len(graph.operators) or graph.operators[at].name != said[2]:
            return False
        needed = set(graph.outputs)
        for op in reversed(graph.operators):
            if needed.intersection(op.outputs):
                needed.update(op.inputs)
        return not needed.intersection(graph.operators[at].outputs)

    def other(self, kernels: str) -> Outcome:
        """What another set of LiteRT's kernels makes of it."""
        if kernels not in self._kept:
            self._kept[kernels] = self.ask(kernels)
        return self._kept[kernels]


def _small(a: Array, b: Array, limit: float) -> tuple[Array, Array]:
    """Two arrays without what is large, infinite or NaN in either of them."""
    if a.shape != b.shape or a.dtype.kind != "f" or b.dtype.kind != "f":
        return a, b
    keep = (np.abs(a) < limit) & (np.abs(b) < limit)
    return np.where(keep, a, 0).astype(a.dtype), np.where(keep, b, 0).astype(b.dtype)
