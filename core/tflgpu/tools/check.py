"""`check`: whether a device's outputs agree with LiteRT's, by how much they differ, and from which
operator on.

The measure is LiteRT itself: its two sets of kernels (XNNPACK, and the reference kernels) differ
from each other too, and a device may differ by twice as much, or by the tolerance of its
precision, whichever is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from tflgpu.compiler.report import DelegationReport
from tflgpu.errors import DeviceError, InputError
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.ir.dtypes import Array
from tflgpu.options import DelegateOptions
from tflgpu.options.keywords import OptionKeywords, Unpack
from tflgpu.tflite.model_file import ModelFile
from tflgpu.tflite.read import read_model
from tflgpu.tflite.source import Source
from tflgpu.tools.check_layer import first_diverging
from tflgpu.tools.check_outputs import (
    MASK_LIMIT,
    Gap,
    OutputKind,
    boxes_apart,
    gap_of,
    kind_of,
    other_classes,
    ranking,
    reach_of,
    real,
)
from tflgpu.tools.check_result import CheckResult, OutputCheck
from tflgpu.tools.check_runs import Sample, references, run_samples
from tflgpu.tools.runs import random_input

#: Shares of an output's largest value, by a device's precision.
LIMITS = {"f32": 1e-3, "f32_f16": 1e-2, "f16": 3e-2}
#: Steps of a quantized output that are always allowed: its own rounding may go the other way, and
#: that of one value that led to it.
STEPS = 2
#: The share of a step in a tensor of 8 bits that uses its range, of outputs that have no scale.
_STEP = 1 / 255
#: Of a quantized model whose spread LiteRT does not tell: more than any that was measured, which
#: were 0.023 to 0.072 on four models (docs/check.md).
UNKNOWN_SPREAD = 0.1
#: What is said of infinities in 16 bits.
_OVERFLOW = (
    "; f16 ends at 65504: use precision f32, or accuracy_guard=overflow, which moves to f32 what "
    "overflows"
)
#: Times LiteRT's own spread.
_SPREADS = 2.0
_FEW = 16  # elements that may be equal by chance
_POSTPROCESS = "TFLite_Detection_PostProcess"


def check(
    model: Source,
    samples: Iterable[npt.ArrayLike | Mapping[int, npt.ArrayLike]] | None = None,
    options: DelegateOptions | None = None,
    *,
    count: int = 4,
    seed: int = 0,
    tolerance: float | None = None,
    find_layer: bool = True,
    **keywords: Unpack[OptionKeywords],
) -> CheckResult:
    """Hold a device against LiteRT on a model's inputs.

        result = tflgpu.check("model.tflite", images, precision="f16")
        assert result.agrees, result

    Args:
        model: A path, or the bytes of a file.
        samples: Inputs: arrays, of a model with one input, or arrays by tensor index; None is
            random ones.
        options: Which device, and how, as `GpuDelegate` takes them; or as keywords.
        count: How many random inputs.
        seed: Of random inputs.
        tolerance: The share of an output's largest value that may differ, in the place of those of
            the precision (0.001 in 32-bit floats, 0.01 for f32_f16, 0.03 for f16; two steps of a
            quantized output) and of LiteRT's own spread.
        find_layer: Whether the operator is looked for from which on outputs differ.
        **keywords: Options, where ``options`` is not given.

    Raises:
        DeviceError: there is no device; or as `GpuDelegate`.
        UnsupportedError: neither LiteRT nor the references run the model.
        ModelError, InputError, OptionError: as `Interpreter`.
    """
    content = bytes(read_model(model).content)
    chosen = DelegateOptions.gathered(keywords) if options is None else options
    with Interpreter(None, content, []) as interpreter:
        details = interpreter.get_input_details()
    inputs = _samples(samples, details, count, seed)
    ours, report = _on_device(content, inputs, chosen)
    judge, found = _judged(content, inputs, ours, report, tolerance)
    if not find_layer or found.agrees:
        return found
    layer = first_diverging(judge.file, chosen, judge.wrong(content, inputs))
    return attrs.evolve(found, layer=layer)


def compared(
    model: Source, samples: Sequence[Sample], outputs: Sequence[Sequence[Array]], report: Any
) -> CheckResult:
    """Hold the outputs of runs that were made already against LiteRT, as `check` does its own.

    Args:
        model: A path, or the bytes of a file.
        samples: Inputs by tensor index, one for each run.
        outputs: Of each run, in the model's order.
        report: Where the operators ran.

    Raises:
        UnsupportedError: neither LiteRT nor the references run the model.
    """
    return _judged(bytes(read_model(model).content), samples, outputs, report, None)[1]


def _judged(
    content: bytes,
    inputs: Sequence[Sample],
    ours: Sequence[Sequence[Array]],
    report: DelegationReport,
    tolerance: float | None,
) -> tuple[_Judge, CheckResult]:
    theirs, notes = references(content, inputs)
    with Interpreter(None, content, []) as interpreter:
        ends = interpreter.get_output_details()
    judge = _Judge(read_model(content), ends, report, theirs, tolerance)
    outputs = judge.outputs(ours)
    suspicious = _suspicious(judge.file, report, outputs, judge.reference)
    every = (*suspicious, *notes)
    return judge, CheckResult(outputs, len(inputs), judge.reference, report, notes=every)


def _samples(
    given: Iterable[Any] | None, details: Sequence[Mapping[str, Any]], count: int, seed: int
) -> list[Sample]:
    if given is None:
        rng = np.random.default_rng(seed)
        return [{int(d["index"]): random_input(d, rng) for d in details} for _ in range(count)]
    found: list[Sample] = []
    for one in given:
        if isinstance(one, Mapping):
            found.append({int(index): np.asarray(array) for index, array in one.items()})
        elif len(details) == 1:
            found.append({int(details[0]["index"]): np.asarray(one)})
        else:
            raise InputError(
                f"the model has {len(details)} inputs, so that a sample is arrays by tensor index"
            )
    if not found:
        raise InputError("there are no samples to check")
    return found


def _on_device(
    content: bytes, samples: Sequence[Sample], options: DelegateOptions
) -> tuple[list[list[Array]], DelegationReport]:
    with GpuDelegate(options) as delegate:
        if delegate.device is None:
            reasons = "; ".join(delegate.choice.reasons)
            raise DeviceError(f"there is no device to check: {reasons}")
        with Interpreter(None, content, [delegate]) as interpreter:
            return run_samples(interpreter, samples), interpreter.report


@attrs.frozen(eq=False)
class _Judge:
    """Compares outputs with the references'."""

    file: ModelFile
    ends: Sequence[Mapping[str, Any]]
    report: DelegationReport
    theirs: Mapping[str, list[list[Array]]]
    tolerance: float | None

    @property
    def reference(self) -> str:
        """The name of what outputs are compared with."""
        return next(iter(self.theirs))

    def outputs(
        self, ours: Sequence[Sequence[Array]], at: Sequence[int] | None = None
    ) -> tuple[OutputCheck, ...]:
        """The findings for each output; ``at`` says which samples these are."""
        every = range(len(ours)) if at is None else at
        right = [self.theirs[self.reference][i] for i in every]
        others = [
            [outputs[i] for i in every]
            for name, outputs in self.theirs.items()
            if name != self.reference
        ]
        boxes = self._boxes()
        found = []
        for number, end in enumerate(self.ends):
            quantization = end["quantization"]
            expected = [outputs[number] for outputs in right]
            kind = OutputKind.BOXES if number in boxes else kind_of(expected[0])

            gap = _gaps([o[number] for o in ours], expected, quantization)
            spread = None
            if others:
                spread = _gaps([o[number] for o in others[0]], expected, quantization)
            limit = self._limit(kind, spread, number, expected)
            why = self._why(kind, gap, limit, number, ours, right)
            said = str(end["name"]), str(np.dtype(end["dtype"])), tuple(expected[0].shape)
            found.append(OutputCheck(*said, kind, gap, spread, limit, why))
        return tuple(found)

    def wrong(self, content: bytes, samples: Sequence[Sample]) -> Any:
        """A function for `first_diverging`, on the sample that is furthest off."""
        worst: list[int] = []

        def by(options: DelegateOptions) -> tuple[bool, float]:
            if not worst:
                ours, _ = _on_device(content, samples, options)
                each = [self.outputs([one], [i]) for i, one in enumerate(ours)]
                badness = [(any(o.why for o in e), max(map(_error, e), default=0.0)) for e in each]
                worst.append(max(range(len(each)), key=badness.__getitem__))
                return badness[worst[0]]
            ours, _ = _on_device(content, [samples[worst[0]]], options)
            found = self.outputs(ours, worst)
            return any(o.why for o in found), max(map(_error, found), default=0.0)

        return by

    def _boxes(self) -> Sequence[int]:
        """Numbers of the outputs that a detection's post-processing makes."""
        main = self.file.main
        made = {t for o in main.operators if o.name == _POSTPROCESS for t in o.outputs[:3]}
        found = [number for number, tensor in enumerate(main.outputs) if tensor in made]
        return found if len(found) == 3 else ()

    def _limit(
        self, kind: OutputKind, spread: Gap | None, number: int, expected: Sequence[Array]
    ) -> float:
        if self.tolerance is not None:
            return self.tolerance
        if kind is OutputKind.WHOLE:
            base = MASK_LIMIT if expected[0].size > 1 / MASK_LIMIT else 0.0
        else:
            base = LIMITS.get(self.report.precision, LIMITS["f32"])
            if is_quantized(self.file):
                own = UNKNOWN_SPREAD if spread is None else STEPS * self._step(number, expected)
                base = max(base, own)
        own = 0.0 if spread is None else spread.rms if kind is OutputKind.MASK else spread.share
        return max(base, _SPREADS * own)

    def _step(self, number: int, expected: Sequence[Array]) -> float:
        """A step of an output's scale as a share of the output's largest value."""
        scale = self.ends[number]["quantization"][0]
        if not scale:
            return _STEP
        reaches = [reach_of(real(a, self.ends[number]["quantization"])) for a in expected]
        return float(scale) / (min(reaches) or 1.0)

    def _why(
        self,
        kind: OutputKind,
        gap: Gap,
        limit: float,
        number: int,
        ours: Sequence[Sequence[Array]],
        right: Sequence[Sequence[Array]],
    ) -> str:
        if gap.lost:
            lost = f"{gap.lost} values are NaN or infinite, and finite on the CPU"
            return lost if self.report.precision == "f32" else f"{lost}{_OVERFLOW}"
        if kind is OutputKind.BOXES:
            boxes = self._boxes()
            pairs = zip(ours, right, strict=True)
            found = (boxes_apart(*([o[i] for i in boxes] for o in pair)) for pair in pairs)
            return next((why for why in found if why), "")
        error = gap.rms if kind is OutputKind.MASK else gap.share
        if error > limit:
            of = "of the elements differ" if kind is OutputKind.WHOLE else "of its largest value"
            return f"off by {error:.2g} {of}, and {limit:.2g} is allowed"
        for mine, theirs in zip(ours, right, strict=True):
            a, b = mine[number], theirs[number]
            why = ""
            if kind is OutputKind.MASK and (share := other_classes(a, b)) > MASK_LIMIT:
                why = f"{share:.1%} of the pixels have another class"
            elif kind is OutputKind.SCORES:
                a, b = (real(each, self.ends[number]["quantization"]) for each in (a, b))
                why = ranking(a, b, limit * reach_of(b))
            if why:
                return why
        return ""


def _gaps(
    outputs: Sequence[Array], expected: Sequence[Array], quantization: tuple[float, int]
) -> Gap:
    pairs = zip(outputs, expected, strict=True)
    return reduce(Gap.merged, (gap_of(*pair, quantization) for pair in pairs), Gap())


def _error(output: OutputCheck) -> float:
    return float("inf") if output.gap.lost else output.gap.share


def is_quantized(file: ModelFile) -> bool:
    """Whether activations of a model are stored in 8 or 16 bits."""
    return any(
        t.quantization is not None and not t.is_constant and not t.dtype.is_float
        for t in file.main.tensors
    )


def _suspicious(
    file: ModelFile, report: DelegationReport, outputs: Sequence[OutputCheck], reference: str
) -> list[str]:
    if not report.delegated_nodes:
        return [
            f"suspicious: no operator runs on a device, so the CPU was compared with {reference}"
        ]
    floats = [o for o in outputs if o.dtype.startswith(("float", "complex"))]
    elements = sum(int(np.prod(o.shape)) for o in floats)
    if is_quantized(file) or elements < _FEW or not all(o.gap.equal for o in floats):
        return []
    said = f"suspicious: every output is bit for bit equal to that of {reference}"
    return [f"{said}, as hardly any device's is; is it the device that ran?"]
