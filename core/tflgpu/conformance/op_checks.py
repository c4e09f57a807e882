"""Level 2: every op's samples, in every precision, at a partition's edge and inside one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Union

import attrs
import numpy as np

from tflgpu.compiler.stored_numbers import numerics_for
from tflgpu.conformance.run import Prepared, Result, Tensors, attempt, prepare, run_many
from tflgpu.conformance.samples import SampleCase, materialize
from tflgpu.conformance.special import SpecialNumbers, special_samples
from tflgpu.conformance.target import Check, DeviceUnderTest, NotApplicable, Outcome
from tflgpu.contract.device import NodeDevice, NodeRun
from tflgpu.errors import TflgpuError
from tflgpu.ir.dtypes import Array
from tflgpu.lowering.precision import Precision
from tflgpu.lowering.reason import Unsupported
from tflgpu.ops.base import Accuracy, OpDef, Sample

#: What asking about one question gave: like a `Result`, or why there is none.
Answer = Union[Result, Unsupported, NotApplicable]


@attrs.frozen(eq=False)
class Question:
    """A sample, the numbers drawn for it, and how it is to be run."""

    op: OpDef
    sample: Sample
    precision: Precision
    tensors: Tensors
    seed: int = 0
    planted: SpecialNumbers | None = None

    @property
    def name(self) -> str:
        """Its part of a check's name."""
        way = f"{self.precision.value}/{self.tensors.value}"
        planted = "" if self.planted is None else f"/{self.planted.name}"
        return f"{self.sample.id}{planted}/{way}"

    @property
    def half(self) -> bool:
        """Whether tensors may be stored as f16."""
        return self.precision is not Precision.F32

    def case(self) -> SampleCase:
        """The sample with its numbers."""
        case = materialize(self.op, self.sample, self.seed, half=self.half, planted=self.planted)
        if self.planted is not None and self.half and self.op.accuracy is Accuracy.EXACT:
            # Of huge operands come results that f16 rounds.
            case.expected[:] = [_as_f16(a) for a in case.expected]
        return case


def _as_f16(array: Array) -> Array:
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        return array.astype(np.float16).astype(array.dtype)


def op_checks(ops: Iterable[OpDef]) -> list[Check]:
    """One check for each sample, precision and way in which tensors lie."""
    found = []
    for op in ops:
        try:
            samples = tuple(op.samples())
        except TflgpuError as error:  # a plugin's: that op fails, and the others are asked about
            found.append(Check(f"2/{op.name}/samples", partial(_raise, error), op.name))
            continue
        for precision in Precision:
            for tensors in Tensors:
                plain = [Question(op, s, precision, tensors) for s in samples]
                # In one load with the others: their kernels are the same.
                questions = (*plain, *_special(op, precision, tensors))
                for i, question in enumerate(questions):
                    run = partial(_check, questions, i)
                    found.append(Check(f"2/{op.name}/{question.name}", run, op.name))
    return found


def _raise(error: TflgpuError, target: DeviceUnderTest) -> Outcome:
    raise error


def _special(op: OpDef, precision: Precision, tensors: Tensors) -> list[Question]:
    """Samples with NaN, infinities and huge numbers in their operands. In F32 they take turns at
    lying in either way; in 16 bits some of them lie as they do inside a partition."""
    if precision is Precision.F32:
        turn, of = list(Tensors).index(tensors), len(Tensors)
    elif precision is Precision.F16 and tensors is Tensors.INTERNAL:
        turn, of = 0, 3
    else:
        return []
    found = special_samples(op, half=precision is not Precision.F32)[turn::of]
    return [Question(op, sample, precision, tensors, planted=p) for sample, p in found]


def _check(questions: Sequence[Question], index: int, target: DeviceUnderTest) -> Outcome:
    """The first check of a group asks for all of it; the others read what came."""
    answers = target.once(("ops", id(questions)), lambda: ask(target, questions))
    case, answer = answers[index]
    return judge(target, case, answer, half=questions[index].half)


def ask(target: DeviceUnderTest, questions: Sequence[Question]) -> list[tuple[SampleCase, Answer]]:
    """Run many questions in one load."""
    cases = [q.case() for q in questions]
    first = [_prepared(target, q, c) for q, c in zip(questions, cases, strict=True)]
    ready = [p for p in first if isinstance(p, Prepared)]
    if isinstance(target.device, NodeDevice):
        return list(zip(cases, [p for p in first if not isinstance(p, Prepared)], strict=True))
    results = iter(run_many(target.device, ready))
    answers = [next(results) if isinstance(p, Prepared) else p for p in first]
    return list(zip(cases, answers, strict=True))


def _prepared(target: DeviceUnderTest, question: Question, case: SampleCase) -> Prepared | Answer:
    lacking = target.lacks(question.precision)
    if lacking is not None:
        return lacking
    numerics = numerics_for(question.op)
    refused = target.refusal(case.node, question.precision, numerics)
    if isinstance(target.device, NodeDevice):
        if question.tensors is Tensors.INTERNAL:
            return NotApplicable("the device runs nodes; tensors lie as it likes")
        return refused or attempt(lambda: _run_node(target, target.device, case))
    if refused is not None:
        return refused
    try:
        return prepare(case, target.compiled_for(question.precision, numerics), question.tensors)
    except TflgpuError as error:
        return error


def _run_node(target: DeviceUnderTest, device: object, case: SampleCase) -> list[Array]:
    assert isinstance(device, NodeDevice)
    variables = {v.id: np.array(case.arrays[v.id]) for v in case.variables}
    graph = case.graph
    run = NodeRun(
        tuple(graph.nodes), tuple(graph.inputs), tuple(graph.outputs), target.ops, variables
    )
    with closing(device.load_nodes(run)) as recording:
        for value, array in zip(graph.inputs, recording.inputs, strict=True):
            np.copyto(array, case.arrays[value.id])
        recording.run()
        found = [np.array(a) for a in recording.outputs]
    for i, (value, state) in enumerate(zip(case.variables, case.states, strict=True)):
        case.tolerance().check(variables[value.id], state, f"state {i}")
    return found


def judge(target: DeviceUnderTest, case: SampleCase, answer: Answer, *, half: bool) -> Outcome:
    """Hold what came against the op's reference.

    Raises:
        AssertionError: a result is not close enough, or a padding lane is not zero.
        TflgpuError: the device failed.
    """
    if isinstance(answer, (TflgpuError, AssertionError)):
        raise answer
    if isinstance(answer, (Unsupported, NotApplicable)):
        return answer
    tolerance = target.scaled(case.tolerance(half=half))
    # A device of nodes was asked for its variables already.
    wanted = [*case.expected, *case.states][: max(len(answer), len(case.expected))]
    for i, (got, expected) in enumerate(zip(answer, wanted, strict=True)):
        tolerance.check(got, expected, f"{case.op.name}, sample {case.sample.id}, output {i}")
    return None
