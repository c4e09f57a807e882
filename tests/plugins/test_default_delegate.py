"""The delegate of a model for which nobody names one: a GPU where there is one, the CPU side
otherwise and whatever the GPU does wrong. The GPU is a third party's toy."""

from __future__ import annotations

import logging
import signal
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.machines import ROUND_FIGURES
from tflgpu.contract.device import BackendInfo, Probe
from tflgpu.errors import DeviceError, OptionError, UnsupportedError
from tflgpu.interpreter import OpResolverType
from tflgpu.lowering.reason import ReasonCode
from tflgpu.lowering.rule import Unsupported
from tflgpu.ops.base import OpDef, TensorSpec, Variables, no_attrs
from tflgpu.tflite.spec import ModelSpec, OperatorSpec
from tflgpu.tflite.spec import TensorSpec as FileTensor
from tflgpu.tflite.write import write_model

from tests.plugins import third_party_toys as toys
from tests.plugins.default_runs import VARIABLE, counted, nothing_left, ran, why  # noqa: F401
from tests.plugins.third_party_toys import (
    ERRORS,
    INFO,
    WANTED,
    NodeToy,
    PlanToy,
    X,
    install,
    with_methods,
)
from tests.running import allocate_and_run, allocated, raising, set_and_run

KINDS = {"nodes": NodeToy, "plans": PlanToy}
LOAD = {"nodes": "load_nodes", "plans": "load"}
#: An exception of everybody's, one that is no Exception, and one of tflgpu's own.
SOME = ("value", "device")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made() -> Any:
    """A class of devices that counts them."""
    return counted(PlanToy)


# Whether there is one


def test_a_gpu_is_used_without_being_asked_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, toys.hooks(KINDS[kind]))
    report = ran()
    assert (report.backend, report.device) == ("toy", "Toy")
    assert report.fully_delegated
    assert any("a GPU" in reason for reason in report.choice)


def test_it_is_opened_when_tensors_are_allocated(
    monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    install(monkeypatch, toys.hooks(made))
    with tflgpu.Interpreter(model_content=toys.model()) as opened:
        opened.get_input_details()
        assert made.opened == 0
        opened.allocate_tensors()
        assert made.opened == 1
    assert made.closed == 1


OFF: dict[str, tuple[dict[str, Any], str]] = {
    "empty list": ({"experimental_delegates": []}, "no delegate was given"),
    "empty tuple": ({"experimental_delegates": ()}, "no delegate was given"),
    "reference kernels": (
        {"experimental_op_resolver_type": OpResolverType.BUILTIN_REF},
        "op resolver BUILTIN_REF brings no default delegate",
    ),
    "no default delegates": (
        {"experimental_op_resolver_type": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES},
        "op resolver BUILTIN_WITHOUT_DEFAULT_DELEGATES brings no default delegate",
    ),
}


@pytest.mark.parametrize("how", OFF)
def test_arguments_switch_it_off(how: str, monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    install(monkeypatch, toys.hooks(made))
    arguments, reason = OFF[how]
    assert why(ran(**arguments)) == reason
    assert made.opened == 0


@pytest.mark.parametrize(
    "how",
    [
        {"experimental_op_resolver_type": OpResolverType.BUILTIN},
        {"experimental_preserve_all_tensors": True},  # as in LiteRT, where XNNPACK goes on
        {"experimental_disable_delegate_node_fusion": True},
    ],
    ids=str,
)
def test_other_arguments_do_not(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, toys.hooks(PlanToy))
    assert ran(**how).backend == "toy"


@pytest.mark.parametrize("text", ["0", " off ", "No", "false"])
def test_the_environment_switches_it_off(
    text: str, monkeypatch: pytest.MonkeyPatch, made: Any
) -> None:
    install(monkeypatch, toys.hooks(made))
    monkeypatch.setenv(VARIABLE, text)
    assert VARIABLE in why(ran())
    assert made.opened == 0
    monkeypatch.setenv(VARIABLE, "")
    assert ran().backend == "toy"


def test_an_environment_that_says_neither_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "perhaps")
    with pytest.raises(OptionError, match=f"{VARIABLE} is True or False"):
        tflgpu.Interpreter(model_content=toys.model())


# Which one


def on_cpu(**others: Any) -> Any:
    """A plugin whose only device computes on the CPU."""
    info = attrs.evolve(INFO, is_gpu=False)
    made = with_methods(PlanToy)
    inner = made.__init__

    def init(self: Any) -> None:
        inner(self)
        self.info = info

    made.__init__ = init  # type: ignore[method-assign]
    probe = lambda backend: Probe(True, devices=(info,)) if backend == "toy" else None  # noqa: E731
    return toys.hooks(made, probe=probe, **others)


def test_a_device_that_computes_on_the_cpu_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, on_cpu())
    reason = why(ran())
    assert "toy device 0 (Toy): left out: no GPU, it computes on the CPU itself" in reason
    assert "there is no GPU that can be used" in reason
    with tflgpu.GpuDelegate() as asked:  # who asks for a delegate gets the best there is
        assert asked.choice.device is not None
        assert asked.choice.device.backend == "toy"


@pytest.mark.parametrize("name", ["TFLGPU_BACKEND", "TFLGPU_DEVICE"])
def test_but_where_the_environment_names_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, on_cpu())
    monkeypatch.setenv(name, "toy")
    assert ran().backend == "toy"


@pytest.mark.parametrize(
    ("name", "text"),
    [("TFLGPU_BACKEND", "opencil"), ("TFLGPU_DEVICE", "radeon")],
)
def test_what_the_environment_names_and_is_not_there(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, toys.hooks(PlanToy))
    monkeypatch.setenv(name, text)
    with caplog.at_level(logging.WARNING, "tflgpu"):
        assert text in why(ran())
    assert text in caplog.text


@pytest.mark.parametrize(("name", "text"), [("TFLGPU_DEVICE", "-3"), ("TFLGPU_PRECISION", "f8")])
def test_what_the_environment_says_and_is_no_value(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake of whoever set it, told as to whoever gives a delegate."""
    install(monkeypatch, toys.hooks(PlanToy))
    monkeypatch.setenv(name, text)
    with pytest.raises(OptionError, match=f"{name}.* not '?{text}"):
        ran()


def test_no_gpu_is_no_reason_to_warn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = toys.hooks(PlanToy, probe=lambda backend: Probe(False, "no driver"))
    install(monkeypatch, nothing)
    with caplog.at_level(logging.INFO, "tflgpu"):
        assert "toy: not available: no driver" in why(ran())
    mine = [r for r in caplog.records if "default delegate" in r.message]
    assert [r.levelname for r in mine] == ["INFO"]
    assert "no driver" in mine[0].message


# What it does wrong


@pytest.mark.parametrize("error", SOME)
def test_a_device_that_does_not_open(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, toys.hooks(raising(ERRORS[error])))
    assert "toy device 0 (Toy): cannot be opened" in why(ran())


@pytest.mark.parametrize("error", SOME)
@pytest.mark.parametrize("named", [False, True], ids=["found", "named"])
def test_a_device_that_does_not_load(
    kind: str, error: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt = with_methods(KINDS[kind], **{LOAD[kind]: raising(ERRORS[error])})
    install(monkeypatch, toys.hooks(spoilt))
    if named:  # what is asked for by name may not fall back, in a GpuDelegate
        monkeypatch.setenv("TFLGPU_BACKEND", "toy")
    report = ran()
    assert report.delegated_nodes == 0
    assert "could not load it" in str(report.common_reason)


def test_a_plugin_that_breaks_the_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from tflgpu.passes.base import Pass

    broken = Pass("broken", raising(ValueError("a pass of mine")))
    install(monkeypatch, toys.hooks(PlanToy, register_passes=lambda: [broken]))
    with caplog.at_level(logging.WARNING, "tflgpu"):
        assert "a pass of mine" in why(ran())
    assert "runs on the CPU, since the default delegate failed" in caplog.text


def test_a_mistake_of_our_own_is_shown_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, toys.hooks(PlanToy))
    monkeypatch.setattr(
        "tflgpu.compiler.compile.compile", raising(AssertionError("not thought of"))
    )
    with caplog.at_level(logging.WARNING, "tflgpu"):
        assert "AssertionError: not thought of" in why(ran())
    assert "Traceback" in caplog.text


def test_a_signal_is_nobodys_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    class Alarm(BaseException):
        pass

    def load(self: Any, plan: Any, *, guard_bands: bool = False) -> Any:
        signal.raise_signal(signal.SIGINT)

    install(monkeypatch, toys.hooks(with_methods(PlanToy, load=load)))
    before = signal.signal(signal.SIGINT, raising(Alarm))
    try:
        with (
            tflgpu.Interpreter(model_content=toys.model()) as opened,
            pytest.raises(Alarm),
        ):
            opened.allocate_tensors()
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_nobody_runs_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    content = toys.model(custom="Mystery")
    said = {}
    for name, maker in (("gpu", PlanToy), ("none", raising(DeviceError("gone")))):
        install(monkeypatch, toys.hooks(maker))
        with (
            tflgpu.Interpreter(model_content=content) as opened,
            pytest.raises(UnsupportedError, match=r"the CPU cannot run.*Mystery") as error,
        ):
            opened.allocate_tensors()
        said[name] = str(error.value)
    assert said["gpu"] == said["none"]


def test_refused_operators_run_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def supports(self: Any, node: Any, ops: Any) -> Any:
        return Unsupported("no TANH here") if node.op == "TANH" else None

    install(monkeypatch, toys.hooks(with_methods(NodeToy, supports=supports)))
    report = ran()
    assert report.delegated_nodes == 1
    assert [(r.op, r.reason) for r in report.refusals] == [("TANH", "no TANH here")]


# Runs that fail


def dying(kind: str, *, after: int) -> Any:
    """A device whose recordings fail from some run on."""
    base = KINDS[kind].recording

    class Dying(base):  # type: ignore[misc]
        runs = 0

        def run(self) -> None:
            Dying.runs += 1
            if Dying.runs > after:
                raise OSError(5, "the GPU has fallen off the bus")
            super().run()

        def close(self) -> None:
            super().close()
            if Dying.runs > after:
                raise OSError(5, "and does not close either")

    return with_methods(KINDS[kind], recording=Dying)


def test_a_run_that_fails_is_run_by_the_cpu(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = counted(dying(kind, after=1))
    install(monkeypatch, toys.hooks(made))
    with tflgpu.Interpreter(model_content=toys.model()) as opened:
        allocate_and_run(opened, {0: X})
        assert opened.report.backend == "toy"
        with caplog.at_level(logging.WARNING, "tflgpu"):
            opened.invoke()  # on what the input has had since before the failure
        np.testing.assert_allclose(opened.get_tensor(2), WANTED, rtol=1e-6)
        assert "fallen off the bus" in caplog.text
        assert "fallen off the bus" in why(opened.report)
        opened.set_tensor(0, -X)
        opened.resize_tensor_input(0, [1, 3])
        opened.allocate_tensors()
        opened.invoke()
        assert opened.report.backend == ""
        # Another model is not given the device that failed.
        assert made.opened == 1
        with allocated(tflgpu.Interpreter(model_content=toys.model())):
            assert made.opened == 2


def _infer(attributes: Any, operands: Any) -> list[TensorSpec]:
    return [operands[0].spec]


def _accumulate(attributes: Any, operands: Any) -> list[Any]:
    total = operands[1] + operands[0]
    return [total, total]


def test_state_counts_a_run_once_that_was_made_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    accumulate = OpDef(
        "Accumulate",
        no_attrs,
        _infer,
        _accumulate,
        list,
        is_custom=True,
        state=Variables(),
    )
    hooks = toys.hooks(dying("plans", after=2), register_ops=lambda: [accumulate])
    install(monkeypatch, hooks)
    tensors = [FileTensor("x", (2, 3)), FileTensor("total", (2, 3), is_variable=True)]
    tensors += [FileTensor("sum", (2, 3)), FileTensor("y", (2, 3))]
    operators = [
        OperatorSpec("Accumulate", {}, (0, 1), (2,)), OperatorSpec("NEG", {}, (2,), (3,)),
    ]  # fmt: skip
    content = write_model(ModelSpec(tensors, operators, (0,), (3,)))
    with allocated(tflgpu.Interpreter(model_content=content)) as opened:
        for times in (1, 2, 3, 4):
            set_and_run(opened, {0: X})
            np.testing.assert_allclose(opened.get_tensor(3), -times * X, rtol=1e-6)
            assert (opened.report.backend == "toy") == (times < 3)


def test_a_model_without_a_gpu_runs_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, on_cpu())
    with tflgpu.Model(toys.model(), num_threads=1) as model:
        assert "no GPU" in why(model.report)
    with pytest.raises(UnsupportedError, match=r"allow_fallback is off.*no GPU"):
        tflgpu.Model(toys.model(), allow_fallback=False)
    with tflgpu.Model(toys.model(), backend="toy") as model:
        assert model.report.backend == "toy"


def test_the_toy_is_the_better_ranked_backend() -> None:
    """What the tests above take for granted."""
    assert BackendInfo("toy", 0).rank >= 0
    assert INFO.is_gpu


def test_what_does_not_pay_stays_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a machine with a GPU, where nobody says anything: one that takes a second a part."""
    slow = attrs.evolve(ROUND_FIGURES.device, launch=1.0)
    times = attrs.evolve(ROUND_FIGURES, device=slow, measured=True, note="a test's")
    monkeypatch.setattr("tflgpu.runtime.timing.time_model", lambda *asked: times)
    monkeypatch.delenv("TFLGPU_PARTITIONING")
    install(monkeypatch, toys.hooks(PlanToy))
    with caplog.at_level(logging.WARNING, "tflgpu"):
        report = ran()
    assert (report.partitioning, report.estimates) == ("gain", "a test's"), str(report)
    assert report.delegated_nodes == 0
    assert {r.code for r in report.refusals} == {ReasonCode.NOT_WORTH_IT}
    assert "on the CPU (estimates)" in caplog.text
