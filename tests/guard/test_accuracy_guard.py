"""The accuracy guard finds what f16 spoils, redoes just that in f32, and gives out right
results."""

from __future__ import annotations

import json
import logging
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu import DelegateOptions, OptionError
from tflgpu.compiler.join_reads import JoinReads
from tflgpu.compiler.report_values import AccuracyOutcome
from tflgpu.conformance.samples import materialize
from tflgpu.errors import DeviceError, StateError, UnsupportedError
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.graph import Value
from tflgpu.ops.registry import builtin_ops
from tflgpu.options.accuracy import AccuracyGuard, OnFailure
from tflgpu.options.option_list import OPTIONS
from tflgpu.runtime.guard.criterion import NOTHING, Off, off_by, worst
from tflgpu.runtime.guard.workshop import Workshop
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.guard.guard_models import SHAPE, Ours, chain, large, model, norm, norm_of, small, spoilt
from tests.running import raising
from tests.small_models import small_model, tensor_of

NORM = norm()


def delegate(precision: str = "f16", **options: Any) -> tflgpu.GpuDelegate:
    options = {"backend": "cpu_ref", "device": 1, "accuracy_guard": 1} | options
    return tflgpu.GpuDelegate(precision=precision, **options)


def error_of(results: list[Any], axis: int = 2) -> float:
    return float(np.abs(results[0] - norm_of(large(), axis)).max())


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kernel stores its result, and none is computed in the loads of the next, in f32."""
    monkeypatch.setattr(JoinReads, "_fits", lambda *_: False)


class TestRedone:
    """A node whose f16 result is off."""

    def test_without_the_guard_the_result_is_wrong(self) -> None:
        with delegate(accuracy_guard=None) as gpu, Ours(NORM, gpu) as run:
            assert error_of(run(large())) > 0.3
            assert run.report.accuracy is None

    @pytest.mark.usefixtures("stored")
    @pytest.mark.parametrize(
        ("backend", "index", "precision", "axis", "redone"),
        [
            ("cpu_ref", 1, "f16", 2, (1, 2, 3)),
            # Arithmetic is in f32, so RSQRT may read the large sum.
            ("cpu_ref", 1, "f32_f16", 1, (1, 2)),
            ("vulkan", 0, "f16", 2, (1, 2, 3)),
        ],
    )
    def test_the_node_is_redone_in_f32(
        self, caplog: Any, backend: str, index: int, precision: str,
        axis: int, redone: tuple[int, ...],
    ) -> None:  # fmt: skip
        content = norm(axis)
        with delegate(precision, backend=backend, device=index) as gpu, Ours(content, gpu) as run:
            if gpu.precision.value != precision:
                pytest.skip(f"{gpu.precision.value} is the nearest that it has")
            assert run.report.accuracy.outcome is AccuracyOutcome.PENDING
            assert error_of(run(large()), axis) < 2e-3  # the checked invocation itself
            assert error_of(run(large()), axis) < 2e-3
            report = run.report
            check = report.accuracy
            assert gpu.accuracy_checks == (check,)
        assert check.outcome is AccuracyOutcome.REDONE
        assert check.redone == redone
        assert check.error < 2e-3
        square = next(i for i in check.inaccurate if i.node == 1)
        assert square.op == "SQUARE" and square.error is None
        assert "NaN or infinite" in square.reason and "f16 ends at 65504" in square.reason
        # The others are as they were.
        assert report.precision == precision and report.fully_delegated
        (warning,) = [r.getMessage() for r in caplog.records if "accuracy guard" in r.message]
        assert "#1 SQUARE" in warning and "#4" not in warning
        assert "#1 SQUARE" in str(report)

    def test_what_one_kernel_computes_in_f32_is_not_redone(self) -> None:
        """Rows over their lengths are one kernel, which stores no square."""
        with delegate("f32_f16") as gpu, Ours(NORM, gpu) as run:
            assert error_of(run(large())) < 2e-3
            assert run.report.accuracy.outcome is AccuracyOutcome.ACCURATE

    @pytest.mark.usefixtures("stored")
    @pytest.mark.parametrize("precision", ["f16", "f32_f16"])
    def test_operands_that_cancel_are_redone_with_what_reads_them(self, precision: str) -> None:
        """x (1 + 2^-10) - x, where x is 700 to 701: the product is right within f16's rounding."""
        factor = np.full((1, 1, 7), 1 + 2.0**-10, np.float32)
        content = model(
            [SHAPE, (1, 1, 7), SHAPE, SHAPE, SHAPE],
            [("MUL", (0, 1), 2), ("SUB", (2, 0), 3), ("L2_NORMALIZATION", (2,), 4)], (3, 4),
            constants={1: factor},
        )  # fmt: skip
        x = np.linspace(700, 701, 35, dtype=np.float32).reshape(SHAPE)
        expected = x.astype(np.float64) * 2.0**-10
        with delegate(precision, accuracy_guard=None) as gpu, Ours(content, gpu) as run:
            assert np.abs(run(x)[0] - expected).max() > 0.1
        with delegate(precision) as gpu, Ours(content, gpu) as run:
            y, _ = run(x)
            check = run.report.accuracy
        assert np.abs(y - expected).max() < 1e-3
        assert check.outcome is AccuracyOutcome.REDONE
        assert [(i.node, i.op) for i in check.inaccurate] == [(1, "SUB")]
        assert "its operands are rounded" in check.inaccurate[0].reason
        assert check.redone == (0, 1)  # MUL makes its operand

    def test_so_is_what_makes_operands_that_were_only_moved(self) -> None:
        factor = np.full((1, 1, 7), 1 + 2.0**-10, np.float32)
        turned = (5, 1, 7)
        content = model(
            [SHAPE, (1, 1, 7), (3,), SHAPE, turned, turned, turned, turned],
            [
                ("MUL", (0, 1), 3), ("TRANSPOSE", (3, 2), 4), ("TRANSPOSE", (0, 2), 5),
                ("SUB", (4, 5), 6), ("NEG", (4,), 7),
            ],
            (6, 7, 3),
            constants={1: factor, 2: np.array([1, 0, 2], np.int32)},
        )  # fmt: skip
        x = np.linspace(700, 701, 35, dtype=np.float32).reshape(SHAPE)
        with delegate() as gpu, Ours(content, gpu) as run:
            y, *_ = run(x)
            check = run.report.accuracy
        np.testing.assert_allclose(y, x.reshape(turned) * 2.0**-10, atol=1e-3)
        assert [i.op for i in check.inaccurate] == ["SUB"]
        assert check.redone == (0, 1, 2, 3)

    def test_errors_that_only_meet_are_redone_together(self) -> None:
        """Forty products, each off by a rounding of its constant: none is to blame."""
        count = 40
        factor = np.full((1, 1, 7), 1.00048, np.float32)  # 1 in f16
        steps = [("MUL", (i, count + 1), i + 1) for i in range(count)]
        content = model(
            [SHAPE] * (count + 1) + [(1, 1, 7)], steps, (count,), constants={count + 1: factor}
        )
        x = small()
        guard = AccuracyGuard(tolerance=0.01)
        with delegate(accuracy_guard=guard) as gpu, Ours(content, gpu) as run:
            (y,) = run(x)
            report = run.report
        np.testing.assert_allclose(y, x * np.float64(factor) ** count, rtol=1e-4)
        assert report.accuracy.outcome is AccuracyOutcome.REDONE
        assert report.accuracy.inaccurate == ()
        assert report.accuracy.redone == tuple(range(count))
        assert report.precision == "f32"

    def test_whole_numbers_are_right_or_wrong(self) -> None:
        content = model(
            [SHAPE, SHAPE, (), (1, 5)],
            [("SQUARE", (0,), 1), ("ARG_MAX", (1, 2), 3)], (3,),
            constants={2: np.array(2, np.int32)}, types={3: DType.I32},
            fields={"ARG_MAX": {"output_type": 2}},
        )  # fmt: skip
        x = large()
        with delegate() as gpu, Ours(content, gpu) as run:
            (y,) = run(x)
            check = run.report.accuracy
        np.testing.assert_array_equal(y, np.square(x).argmax(2))
        assert check.outcome is AccuracyOutcome.REDONE
        assert check.inaccurate[0].op == "SQUARE"

    def test_a_later_run_may_find_what_the_first_did_not(self) -> None:
        with delegate(accuracy_guard=3) as gpu, Ours(NORM, gpu) as run:
            run(small())
            assert run.report.accuracy.outcome is AccuracyOutcome.ACCURATE
            assert error_of(run(large())) < 2e-3
            assert run.report.accuracy.outcome is AccuracyOutcome.REDONE
            assert run.report.accuracy.runs == 2
            assert gpu.accuracy_checks == ()
            run(small())
            assert gpu.accuracy_checks[0].runs == 3

    def test_what_ran_before_is_released(self) -> None:
        with delegate() as gpu, Ours(NORM, gpu) as run:
            before = [step.recording for step in run.session.parts]
            run(large())
            assert run.session.parts[0].recording is not before[0]
            for recording in before:
                with pytest.raises(StateError, match="closed"):
                    recording.run()


class TestHealthy:
    """Where nothing has to be done, nothing is."""

    def test_nothing_is_redone(self, caplog: Any) -> None:
        caplog.set_level(logging.WARNING)
        with delegate() as gpu, Ours(NORM, gpu) as run:
            run(small())
            check = run.report.accuracy
        assert check.outcome is AccuracyOutcome.ACCURATE
        assert check.redone == check.inaccurate == ()
        assert 0 < check.error < 5e-3
        assert caplog.records == []

    def test_what_is_no_number_in_f32_is_no_fault(self) -> None:
        x = large()
        x[0, 1, 2], x[0, 3, 4] = np.nan, np.inf
        with delegate("f32") as gpu, Ours(NORM, gpu) as run:
            run(x)
            assert run.report.accuracy.outcome is AccuracyOutcome.ACCURATE

    def test_a_quantized_model_is_held_against_its_own_numerics(self) -> None:
        quant = Quantization((0.05,), (3,))
        x = np.arange(-10, 11, dtype=np.int8).reshape(3, 7)
        content = small_model(
            dict.fromkeys(("t0", "t1", "t2"), tensor_of((3, 7), DType.I8, quantization=quant)),
            "t1 = RELU(t0)",
            "t2 = ADD(t1, t0)",
        )
        with delegate() as gpu, Ours(content, gpu) as run:
            run(x)
            assert run.report.accuracy.outcome is AccuracyOutcome.ACCURATE

    def test_afterwards_a_run_is_as_without_it(self, monkeypatch: Any) -> None:
        references = []
        made = Workshop.reference
        monkeypatch.setattr(
            Workshop, "reference", lambda self: references.append(made(self)) or references[-1]
        )
        with delegate(accuracy_guard=2) as gpu, Ours(NORM, gpu) as run:
            run(small())
            assert run.session._watcher is not None
            run(small())
            assert run.session._watcher is None
            run(small())
            assert run.report.accuracy.runs == 2
            (reference,) = references
            with pytest.raises(StateError, match="closed"):
                reference.run()

    def test_another_shape_is_checked_anew(self) -> None:
        with delegate() as gpu, Ours(chain("SQUARE", "SQRT"), gpu) as run:
            run(small())
            assert run.report.accuracy.outcome is AccuracyOutcome.ACCURATE
            run.interpreter.resize_tensor_input(0, (2, 3))
            run.interpreter.allocate_tensors()
            x = np.full((2, 3), 1000, np.float32)
            np.testing.assert_allclose(run(x)[0], x, rtol=1e-3)
            assert run.report.accuracy.outcome is AccuracyOutcome.REDONE
            assert len(gpu.accuracy_checks) == 2

    def test_nothing_on_the_device_is_nothing_to_check(self) -> None:
        with delegate(min_nodes_per_partition=99) as gpu, Ours(NORM, gpu) as run:
            run(large())
            assert run.report.accuracy is None


class TestFailure:
    """A device that is wrong in f32 as well."""

    CONTENT = chain("NEG", "EXP")  # t2 is the result, which the device spoils

    def right(self, results: list[Any]) -> bool:
        return bool(np.allclose(results[0], np.exp(-small()), rtol=1e-3))

    @pytest.mark.parametrize("precision", ["f32", "f16"])
    def test_everything_goes_to_the_cpu(self, precision: str, caplog: Any) -> None:
        with (
            spoilt("t2", precision=precision, accuracy_guard=2) as gpu,
            Ours(self.CONTENT, gpu) as run,
        ):
            assert self.right(run(small()))
            loads = gpu.device.loads
            assert self.right(run(small()))
            assert gpu.device.loads == loads
            report = run.report
        check = report.accuracy
        assert check.outcome is AccuracyOutcome.ON_CPU
        assert [(i.node, i.op) for i in check.inaccurate] == [(1, "EXP")]
        assert check.inaccurate[0].error == pytest.approx(0.5, rel=1e-2)
        assert check.redone == ()
        assert report.delegated_nodes == 0
        assert {r.node for r in report.refusals} == {0, 1}
        assert all("accuracy guard" in r.reason for r in report.refusals)
        assert [o.op for o in report.operators] == ["NEG", "EXP"]
        told = json.loads(report.to_json())
        assert {o["code"] for o in told["operators"]} == {"inaccurate"}
        assert told["accuracy"]["outcome"] == "on_cpu"
        assert [i["op"] for i in told["accuracy"]["inaccurate"]] == ["EXP"]
        assert "accuracy guard: results on the device were wrong" in report._repr_html_()
        assert "everything runs on the CPU" in caplog.text

    def test_it_is_kept_if_that_is_wanted(self, caplog: Any) -> None:
        guard = "runs=1,on_failure=keep"
        with spoilt("t2", accuracy_guard=guard) as gpu, Ours(self.CONTENT, gpu) as run:
            (y,) = run(small())
            np.testing.assert_allclose(y, 1.5 * np.exp(-small()), rtol=1e-5)
            check = run.report.accuracy
            assert run.report.fully_delegated
        assert check.outcome is AccuracyOutcome.KEPT
        assert check.error == pytest.approx(0.5, rel=1e-4)
        assert "kept as it is" in caplog.text

    @pytest.mark.parametrize("options", [
        {"accuracy_guard": {"on_failure": "error"}},
        {"accuracy_guard": 1, "allow_fallback": False},
    ])  # fmt: skip
    def test_it_is_an_error_if_that_is_wanted(self, options: dict[str, Any]) -> None:
        with spoilt("t2", **options) as gpu, Ours(self.CONTENT, gpu) as run:
            for _ in range(2):  # it is no better the next time
                with pytest.raises(DeviceError, match=r"accuracy guard: .* #1 EXP: off by 0\.5"):
                    run(small())
            with pytest.raises(StateError, match="no results"):
                run.interpreter.get_tensor(run.outputs[0])
            assert run.report.accuracy.outcome is AccuracyOutcome.FAILED

    def test_a_cpu_that_cannot_run_it_is_said(self, monkeypatch: Any, caplog: Any) -> None:
        monkeypatch.setattr(Workshop, "reference", raising(UnsupportedError("no kernel for it")))
        with delegate() as gpu, Ours(NORM, gpu) as run:
            run(small())
            check = run.report.accuracy
            run(small())
        assert check.outcome is AccuracyOutcome.UNCHECKED
        assert "no kernel for it" in check.story and "not checked" in caplog.text

    def test_where_nothing_can_be_blamed_the_results_are_right_all_the_same(
        self, monkeypatch: Any, caplog: Any
    ) -> None:
        monkeypatch.setattr(
            Workshop, "on_device", raising(DeviceError("no memory for all of them side by side"))
        )
        with delegate() as gpu, Ours(NORM, gpu) as run:
            assert error_of(run(large())) < 1e-5
            assert run.report.precision == "f32"
        assert "no memory for all of them" in caplog.text


@pytest.mark.parametrize("exclude", [(), ("UNIDIRECTIONAL_SEQUENCE_LSTM",)], ids=["gpu", "cpu"])
def test_state_advances_once_a_run(exclude: tuple[str, ...]) -> None:
    """An LSTM keeps its state; what follows it is spoilt by f16 in the second run."""
    definition = builtin_ops()["UNIDIRECTIONAL_SEQUENCE_LSTM"]
    sample = definition.samples()[0]
    case = materialize(definition, sample)
    values = [case.graph.values[i] for i in range(len(case.graph.values))]
    tensors = [
        TensorSpec(v.name, v.shape, v.dtype, v.data, v.quant, is_variable=v.is_variable)
        for v in values
    ]
    (out,) = case.node.outputs
    square, root, factor = len(tensors), len(tensors) + 1, len(tensors) + 2
    tensors += [TensorSpec("scaled", out.shape), TensorSpec("square", out.shape)]
    tensors += [TensorSpec("factor", (1,)), TensorSpec("root", out.shape)]
    given = [-1 if v is None else v.id for v in case.node.inputs]
    operators = [
        OperatorSpec(definition.name, dict(sample.fields), given, (out.id,), sample.version),
        OperatorSpec("MUL", {}, (out.id, factor), (square,)),
        OperatorSpec("SQUARE", {}, (square,), (root,)),
        OperatorSpec("SQRT", {}, (root,), (factor + 1,)),
    ]
    inputs = [v.id for v in case.graph.inputs if not tensors[v.id].is_variable]
    content = write_model(ModelSpec(tensors, operators, [*inputs, factor], [factor + 1]))
    rng = np.random.default_rng(0)
    arrays = [rng.normal(0, 1, tensors[i].shape).astype(np.float32) for i in inputs]

    def run(options: dict[str, Any]) -> tuple[list[Any], Any]:
        with delegate(exclude=exclude, **options) as gpu, Ours(content, gpu) as ours:
            found = []
            for scale in (1, 3000, 1):
                (y,) = ours(*arrays, np.array([scale], np.float32))
                found.append(y / scale)
            return found, ours.report

    right, report = run({"precision": "f32", "accuracy_guard": None})
    assert len(report.refusals) == len(exclude) and report.delegated_nodes
    assert np.abs(right[0] - right[2]).max() > 1e-2  # state matters
    guarded, report = run({"accuracy_guard": 3})
    assert report.accuracy.outcome is AccuracyOutcome.REDONE
    for y, expected in zip(guarded, right, strict=True):
        np.testing.assert_allclose(y, expected, atol=3e-3)


def test_options_tell_how_long_and_how_close() -> None:
    off = attrs.evolve(AccuracyGuard(), tolerance=1e-4)
    with delegate(accuracy_guard=off) as gpu, Ours(chain("TANH"), gpu) as run:
        run(small())
        assert run.report.accuracy.outcome is AccuracyOutcome.REDONE
    with delegate(accuracy_guard=0) as gpu, Ours(chain("TANH"), gpu) as run:
        run(small())
        assert run.report.accuracy is None


# How far off a tensor is, in numbers that a person can check.


def off(got: object, expected: object, quant: Quantization | None = None) -> Off:
    a, b = np.asarray(got), np.asarray(expected)
    value = Value(0, "x", b.shape, DType.from_numpy(b.dtype), quant=quant)
    return off_by(a, b, value)


def f32(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def test_it_is_a_share_of_the_largest_magnitude() -> None:
    found = off(f32(1, -8, 0.5), f32(1, -10, 0))
    assert (found.share, found.lost, found.elements) == (pytest.approx(0.2), 0, 3)
    assert found.beyond(0.19) and not found.beyond(0.21)
    assert found.error == found.share


def test_what_is_lost_is_always_too_much() -> None:
    found = off(f32(np.nan, np.inf, 3), f32(1, 2, 3))
    assert (found.share, found.lost) == (0, 2)
    assert found.beyond(1e9) and found.error is None
    assert str(found) == "2 of 3 values are NaN or infinite"


def test_nothing_is_expected_where_f32_is_not_finite() -> None:
    assert off(f32(1, 2, 5), f32(np.nan, np.inf, 5)) == Off(0, 0, 3)


def test_a_tensor_of_zeros_has_a_scale_of_1() -> None:
    assert off(f32(0.25, 0), f32(0, 0)).share == 0.25


def test_whole_numbers_and_truth_values_differ_or_not() -> None:
    assert off(np.array([1, 2, 3, 4]), np.array([1, 2, 3, 1000])).share == 0.25
    assert off(np.array([True, False]), np.array([True, True])).share == 0.5


def test_a_quantized_step_is_no_difference() -> None:
    quant = Quantization((0.5,), (10,))
    stored = np.array([10, 20, 110], np.int8)
    assert off(stored + np.array([1, -1, 1], np.int8), stored, quant).share == 0
    # Three steps of 0.5, of which one is free, of 50.
    assert off(stored + np.array([3, 0, 0], np.int8), stored, quant).share == pytest.approx(0.02)


def test_the_worst_has_lost_most() -> None:
    assert worst([]) is NOTHING
    lost, far = Off(0, 1, 2), Off(9, 0, 2)
    assert worst([NOTHING, far, lost]) is lost
    assert worst([NOTHING, far]) is far


def test_no_elements_are_never_off() -> None:
    assert off(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)) == NOTHING


# What ``accuracy_guard`` may be given as, and what is refused.


DEFAULT = AccuracyGuard()
KEEP = AccuracyGuard(runs=3, tolerance=0.02, on_failure=OnFailure.KEEP)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, None), (0, None), (False, None), ("off", None), ("0", None), (True, DEFAULT),
        ("on", DEFAULT), (1, DEFAULT), ("1", DEFAULT), (np.int64(2), AccuracyGuard(runs=2)),
        ("runs=3, tolerance=2e-2, on_failure=keep", KEEP),
        ({"runs": 3, "tolerance": 0.02, "on_failure": "KEEP"}, KEEP), (KEEP, KEEP),
        ("tolerance=1", AccuracyGuard(tolerance=1)),
    ],
)  # fmt: skip
def test_what_it_is_given_as(given: Any, meant: AccuracyGuard | None) -> None:
    assert DelegateOptions(accuracy_guard=given).accuracy_guard == meant
    if isinstance(given, str):
        assert DelegateOptions.from_text({"accuracy_guard": given}).accuracy_guard == meant


def test_it_is_off_unless_asked_for() -> None:
    assert DelegateOptions().accuracy_guard is None
    assert DelegateOptions.from_text({"accuracy_guard": "none"}).accuracy_guard is None


def test_it_may_come_from_the_environment() -> None:
    found = DelegateOptions.from_environment({"TFLGPU_ACCURACY_GUARD": "runs=3,tolerance=0.02"})
    assert found.accuracy_guard == AccuracyGuard(runs=3, tolerance=0.02)
    with pytest.raises(OptionError, match=r"TFLGPU_ACCURACY_GUARD.*runs is a number, not 'often'"):
        DelegateOptions.from_environment({"TFLGPU_ACCURACY_GUARD": "often"})


@pytest.mark.parametrize("guard", [None, DEFAULT, KEEP])
def test_it_is_shown_as_it_is_taken(guard: AccuracyGuard | None) -> None:
    kind = OPTIONS["accuracy_guard"].kind
    assert kind.parse("accuracy_guard", kind.shown(guard)) == guard


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (-1, "runs is -1; the least is 1"),
        (1.5, "runs is a whole number"),
        ("often", "runs is a number, not 'often'"),
        ("2.5", "runs is a whole number"),
        ("runs=0", "runs is 0"),
        ("runs=3;tolerance=1", "runs is a number"),
        ("runs=3,often", "pairs as in"),
        ("rons=3", "has no 'rons'; it has runs, tolerance, on_failure"),
        ({"tolerance": 0}, "tolerance is a number above 0"),
        ("tolerance=nan", "tolerance is a number above 0"),
        ({"tolerance": True}, "tolerance is a number above 0"),
        ({"on_failure": "ignore"}, "on_failure is one of cpu, keep, error, not 'ignore'"),
        ([1], "runs is a whole number"),
        (np.array([1, 2]), "runs is a whole number"),
    ],
)
def test_what_is_refused(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        DelegateOptions(accuracy_guard=given)
    assert "accuracy_guard" in str(caught.value)
