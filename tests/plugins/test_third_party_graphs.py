"""Graph passes, kernel rules and ops of a third party: what they raise or give wrong names them,
before anything runs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.conformance.op_checks import op_checks
from tflgpu.errors import DeviceError, GraphError, ModelError, PluginError, TflgpuError
from tflgpu.ir.dtypes import DType
from tflgpu.ir.graph import Graph, Node, TensorSpec, Value
from tflgpu.lowering.lowering import Constant, Dispatch
from tflgpu.lowering.rule import ElementwiseRule, GroupRule, KernelRule
from tflgpu.ops.base import Arg, Contents, OnDevice, OpDef, Sample, no_attrs
from tflgpu.passes.base import Pass, PassContext
from tflgpu.tflite.spec import ModelSpec, OperatorSpec
from tflgpu.tflite.spec import TensorSpec as TensorOf
from tflgpu.tflite.write import write_model

from tests.plugins import third_party_toys as toys
from tests.plugins.third_party_toys import ERRORS, PlanToy, X, install, plugin_of, registry_of, run
from tests.running import raising

WHO = r"plugin toy-plugin \(from toy-package\)"
WANTED = np.tanh(np.maximum(X, 0))


# Passes


def _swap_outputs(graph: Graph, context: PassContext) -> int:
    graph.outputs[0] = graph.nodes[0].outputs[0]
    return 1


def _lose_output(graph: Graph, context: PassContext) -> int:
    graph.outputs.clear()
    return 1


def _reshape_output(graph: Graph, context: PassContext) -> int:
    graph.outputs[0].shape = (3, 2)
    return 1


def _retype_output(graph: Graph, context: PassContext) -> int:
    graph.outputs[0].dtype = DType.I32
    return 1


def _forget_maker(graph: Graph, context: PassContext) -> int:
    graph.nodes.pop()
    return 1


def _reverse(graph: Graph, context: PassContext) -> int:
    graph.nodes.reverse()
    return 1


def _edit_in_silence(graph: Graph, context: PassContext) -> int:
    if graph.nodes[0].op == "ABS":
        return 0
    graph.nodes[0].op = "ABS"
    return 0


def _unknown_op(graph: Graph, context: PassContext) -> int:
    graph.nodes[0].op = "NO_SUCH_OP"
    return 1


def _no_attributes(graph: Graph, context: PassContext) -> int:
    graph.nodes[0].op, graph.nodes[0].attrs = "CONV_2D", None
    return 1


def _wrong_inner_shape(graph: Graph, context: PassContext) -> int:
    graph.nodes[0].outputs[0].shape = (7,)
    return 1


def _list_for_shape(graph: Graph, context: PassContext) -> int:
    graph.nodes[0].outputs[0].shape = [2, 3]  # type: ignore[assignment]
    return 1


def _a_string_for_a_node(graph: Graph, context: PassContext) -> int:
    graph.nodes.append("RELU")  # type: ignore[arg-type]
    return 1


def _no_nodes(graph: Graph, context: PassContext) -> int:
    graph.nodes = None  # type: ignore[assignment]
    return 1


def _stray_origin(graph: Graph, context: PassContext) -> int:
    graph.nodes[0].origins = (99,)
    return 1


def _no_origin(graph: Graph, context: PassContext) -> int:
    graph.nodes[0].origins = ()
    return 1


PASSES: dict[str, tuple[Callable[[Graph, PassContext], Any], str]] = {
    "None": (lambda g, c: None, "returned None"),
    "bool": (lambda g, c: True, "returned True"),
    "float": (lambda g, c: 0.5, "returned 0.5"),
    "text": (lambda g, c: "many", "returned 'many'"),
    "negative": (lambda g, c: -1, "returned -1"),
    "restless": (lambda g, c: 1, "do not settle"),
    "edits, and says 0": (_edit_in_silence, "edited the graph and returned 0"),
    "another output": (_swap_outputs, "outputs are not those"),
    "an output lost": (_lose_output, "outputs are not those"),
    "output of another shape": (_reshape_output, r"was f32\[2,3\]"),
    "output of another type": (_retype_output, r"was f32\[2,3\]"),
    "an output that nothing makes": (_forget_maker, "never made"),
    "nodes out of order": (_reverse, "before it is made"),
    "an op that there is not": (_unknown_op, "there is no op NO_SUCH_OP"),
    "attributes of no op": (_no_attributes, "#0 CONV_2D is not one that its op takes"),
    "a tensor of another shape": (_wrong_inner_shape, r"#0 RELU makes f32\[2,3\]"),
    "a shape that is none": (_list_for_shape, r"shape \[2, 3\]"),
    "a node that is none": (_a_string_for_a_node, "RELU"),
    "no nodes": (_no_nodes, "no graph"),
    "an operator that there is not": (_stray_origin, "operator 99"),
    "no operator": (_no_origin, "#.* RELU stands for no operator|RELU stands for no operator"),
}


def _pass(run: Callable[[Graph, PassContext], Any], name: str = "toy_pass") -> Any:
    return plugin_of(register_passes=lambda: [Pass(name, run)])


@pytest.mark.parametrize("fault", PASSES)
def test_a_pass_that_breaks_the_contract(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    action, match = PASSES[fault]
    install(monkeypatch, _pass(action))
    with pytest.raises((PluginError, GraphError), match=f"toy_pass of {WHO}.*{match}"):
        run(backend="cpu_ref")


@pytest.mark.parametrize("error", ERRORS)
def test_a_pass_that_raises(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _pass(raising(ERRORS[error])))
    with pytest.raises(PluginError, match=f"toy_pass of {WHO}.*it raised"):
        run(backend="cpu_ref")


def test_a_pass_that_does_right(monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(graph: Graph, context: PassContext) -> int:
        if graph.nodes[0].op != "RELU":
            return 0
        graph.nodes[0].op = "ABS"
        return 1

    install(monkeypatch, _pass(rename))
    y, _ = run(backend="cpu_ref")
    np.testing.assert_allclose(y, np.tanh(np.abs(X)), rtol=1e-6)


def test_a_pass_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _pass(raising(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        run(backend="cpu_ref")


# Kernel rules: the toy device runs kernels, and is the best there is


def _rules(*rules: Any) -> Any:
    return toys.hooks(PlanToy, register_kernels=lambda backend: list(rules))


def _nothing(low: Any) -> None:
    """Dispatches no kernel."""


def _unwritten(low: Any) -> None:
    k = low.kernel("toy", (64, 1, 1))
    src, temp = low.read(k, 0), low.write_temp(k, low.temp((2, 3)))
    temp.store(0, 0, src.load(0, 0))
    low.dispatch(k, (1, 1, 1))


def _by_hand(**changes: Any) -> Callable[[Any], None]:
    def build(low: Any) -> None:
        k = low.kernel("toy", (64, 1, 1))
        src, out = low.read(k, 0), low.write(k)
        out.store(0, 0, src.load(0, 0))
        low.dispatch(k, (1, 1, 1))
        low.dispatches[-1] = attrs.evolve(low.dispatches[-1], **changes)

    return build


def _ill_typed(low: Any) -> None:
    k = low.kernel("toy", (64, 1, 1))
    low.write(k).store(0, 0, k.i32(3))
    low.dispatch(k, (1, 1, 1))


def _reads_its_result(low: Any) -> None:
    k = low.kernel("toy", (64, 1, 1))
    low.write(k).store(k.i32(0), 0, low.read_value(k, low.node.outputs[0], "own").load(0, 0))
    low.dispatch(k, (1, 1, 1))


def _reads_too_early(low: Any) -> None:
    k = low.kernel("toy", (64, 1, 1))
    temp = low.read_temp(k, low.temp((2, 3)))
    low.write(k).store(k.i32(0), 0, temp.load(0, 0))
    low.dispatch(k, (1, 1, 1))


def _reads_a_stranger(low: Any) -> None:
    k = low.kernel("toy", (64, 1, 1))
    low.read_value(k, Value(99, "stranger", (2, 3), DType.F32), "stranger")


def _launches_twice(low: Any) -> None:
    k = low.kernel("toy", (64, 1, 1))
    low.write(k).store(k.i32(0), 0, low.read(k, 0).load(0, 0))
    low.dispatch(k, (1, 1, 1))
    low.dispatch(k, (1, 1, 1))


BUILDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (_nothing, "dispatched no kernel"),
    "result not written": (_unwritten, "no kernel of it writes its result"),
    "ill typed": (_ill_typed, ""),
    "too few bindings": (_by_hand(bindings=()), "0 bindings"),
    "no groups": (_by_hand(groups=(0, 1, 1)), "workgroups"),
    "groups of floats": (_by_hand(groups=(1.5, 1, 1)), "workgroups"),
    "bound to nothing": (_by_hand(bindings=(None, None)), "bound to None"),
    "result is a constant": (_by_hand(bindings=(Constant(X), Constant(X))), "constant"),
    "reads its result": (_reads_its_result, "is written by the same kernel|no kernel has written"),
    "reads a temporary too early": (_reads_too_early, "temp of kernel toy is read, and no kernel"),
    "reads a stranger": (_reads_a_stranger, "stranger.*is no tensor of the part|%99:.*no tensor"),
    "launched twice": (_launches_twice, "kernel toy is launched twice"),
    "a workgroup of none": (lambda low: low.kernel("toy", (0, 1, 1)), "three positive whole"),
    "a workgroup of two": (lambda low: low.kernel("toy", (8, 1)), "three positive whole"),
    "no dispatch": (lambda low: low.dispatches.append("toy"), "'toy'"),
    "no kernel": (
        lambda low: low.dispatches.append(Dispatch(None, (1, 1, 1), (), "")), "None"),
}  # fmt: skip
BUILDS |= {f"raises {name}": (raising(error), "") for name, error in ERRORS.items()}


@pytest.mark.parametrize("fuses", [True, False])
@pytest.mark.parametrize("fault", BUILDS)
def test_a_rule_whose_kernels_are_none(
    fault: str, fuses: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    action, match = BUILDS[fault]
    install(monkeypatch, _rules(KernelRule("RELU", "toy_relu", action, rank=9, fuses=fuses)))
    with pytest.raises(PluginError, match=f"{WHO}: rule toy_relu for RELU failed.*{match}"):
        run(backend="toy")
    with pytest.raises(PluginError, match=WHO):
        run(allow_fallback=False)
    # Another rule takes its place, and a warning says so.
    with caplog.at_level(logging.WARNING, "tflgpu"):
        y, report = run()
    np.testing.assert_allclose(y, WANTED, rtol=1e-6)
    assert report.fully_delegated
    assert any(re.search(f"{WHO}: rule toy_relu", r.getMessage()) for r in caplog.records)


def _past_the_view(low: Any) -> None:
    """Writes elements by itself, and so nothing of what joined its store."""
    k = low.kernel("toy", (64, 1, 1))
    src, out = low.read(k, 0), low.write(k)
    i = k.global_id(0)
    with k.if_(i < 6):
        k.store_lane(out.buffer, i, k.max(k.load_lane(src.buffer, i), 0.0))
    low.dispatch(k, (6, 1, 1))


def test_a_rule_that_loses_what_joined_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """TANH joins the store of RELU, whose rule stores past its view."""
    install(monkeypatch, _rules(KernelRule("RELU", "toy_relu", _past_the_view, rank=9)))
    with pytest.raises(PluginError, match=r"#1 TANH is lost; .* says fuses=False"):
        run(backend="toy")
    rule = KernelRule("RELU", "toy_relu", _past_the_view, rank=9, fuses=False)
    install(monkeypatch, _rules(rule))
    y, _ = run(toys.model(("RELU",)), backend="toy")  # packed on both sides
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    assert run(backend="toy")[1].dispatches == 2


def test_a_rule_that_reads_what_its_group_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def match(node: Node, maker: Any, site: Any) -> Any:
        before = maker(node.input(0))
        return None if before is None else (before, node)

    def build(low: Any) -> None:
        k = low.kernel("toy", (64, 1, 1))
        low.write(k).store(k.i32(0), 0, low.read(k, 0).load(0, 0))
        low.dispatch(k, (1, 1, 1))

    install(monkeypatch, _rules(GroupRule("TANH", "toy_pair", match, build, rank=9)))
    with pytest.raises(PluginError, match=r"toy_pair.*src0 of kernel toy is read, and no kernel"):
        run(backend="toy")


def test_a_kernel_that_reads_outside_is_a_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(low: Any) -> None:
        k = low.kernel("toy", (8, 1, 1))
        i = k.let(k.global_id(0), "i")
        low.write(k).store(i, 0, low.read(k, 0).load(i, 0))
        low.dispatch(k, (2, 1, 1))

    install(monkeypatch, _rules(KernelRule("RELU", "toy_relu", build, rank=9)))
    with pytest.raises(
        DeviceError, match=rf"rule toy_relu for RELU of {WHO}\): kernel toy: src0\[6\]"
    ):
        run(backend="toy")


EXPRESSIONS: dict[str, Callable[..., Any]] = {
    "None": lambda k, attributes, operands: None,
    "text": lambda k, attributes, operands: "x",
    "scalar": lambda k, attributes, operands: operands[0].lane(0),
    "whole numbers": lambda k, attributes, operands: k.i32(1, 4),
    "several": lambda k, attributes, operands: [operands[0]],
} | {f"raises {name}": raising(error) for name, error in ERRORS.items()}


@pytest.mark.parametrize("fault", EXPRESSIONS)
def test_an_expression_that_is_none(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TANH joins the kernel of RELU, which is not to blame."""
    install(monkeypatch, _rules(ElementwiseRule("TANH", EXPRESSIONS[fault])))
    with pytest.raises(PluginError, match=f"{WHO}: rule elementwise for TANH"):
        run(backend="toy")
    y, report = run()
    np.testing.assert_allclose(y, WANTED, rtol=1e-6)
    assert report.fully_delegated


def test_where_no_rule_is_left_the_cpu_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = KernelRule("ToyTwice", "toy_rule", _nothing)
    target = toys.hooks(
        PlanToy, register_kernels=lambda backend: [rule], register_ops=lambda: [twice()]
    )
    install(monkeypatch, target)
    y, report = run(toys.model(custom="ToyTwice"))
    np.testing.assert_allclose(y, 2 * WANTED, rtol=1e-6)
    (refusal,) = report.refusals
    assert re.search(f"{WHO}: rule toy_rule for ToyTwice failed", refusal.reason)


@pytest.mark.parametrize("answer", [True, False, 0, "", ["no"]], ids=repr)
def test_an_acceptance_that_is_none(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = KernelRule("ToyTwice", "toy_rule", _nothing, lambda node, site: answer)
    target = toys.hooks(
        PlanToy, register_kernels=lambda backend: [rule], register_ops=lambda: [twice()]
    )
    install(monkeypatch, target)
    _, report = run(toys.model(custom="ToyTwice"))
    (refusal,) = report.refusals
    assert re.search(f"{WHO}: rule toy_rule for ToyTwice answered", refusal.reason)


def test_an_acceptance_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Yes when it is asked whether the device takes the node, and no when the kernel is due."""
    answers = iter([None])
    rule = KernelRule("ToyTwice", "toy_rule", _nothing, lambda n, s: next(answers, "not any more"))
    target = toys.hooks(
        PlanToy, register_kernels=lambda backend: [rule], register_ops=lambda: [twice()]
    )
    install(monkeypatch, target)
    y, report = run(toys.model(custom="ToyTwice"))
    np.testing.assert_allclose(y, 2 * WANTED, rtol=1e-6)
    assert [r.reason for r in report.refusals] == ["not any more"]


@pytest.mark.parametrize("error", ERRORS)
def test_an_acceptance_that_raises(
    error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fails = raising(ERRORS[error])
    install(monkeypatch, _rules(KernelRule("RELU", "toy_relu", _nothing, fails, rank=9)))
    y, report = run()
    np.testing.assert_allclose(y, WANTED, rtol=1e-6)
    assert report.fully_delegated  # the shipped rule is there
    said = [r.getMessage() for r in caplog.records if "failed on the question" in r.getMessage()]
    assert re.match(rf"{WHO}: rule toy_relu for RELU failed .* takes its place", said[0])


# Ops


def twice(**changes: Any) -> OpDef:
    """A good op, but for the changes."""
    return attrs.evolve(
        OpDef(
            "ToyTwice", no_attrs, lambda a, operands: [operands[0].spec],
            lambda a, arrays: [np.asarray(arrays[0] * 2, np.float32)],
            lambda: [Sample("odd", {}, (Arg((3, 5)),))], is_custom=True,
        ),
        **changes,
    )  # fmt: skip


def _op(**changes: Any) -> Any:
    return plugin_of(register_ops=lambda: [twice(**changes)])


def _run_twice(**options: Any) -> Any:
    return run(toys.model(custom="ToyTwice"), **options)


def test_a_good_op(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _op())
    y, _ = _run_twice(backend="cpu_ref")
    np.testing.assert_allclose(y, 2 * WANTED, rtol=1e-6)


INFER: dict[str, Any] = {
    "None": None,
    "a spec": TensorSpec((2, 3), DType.F32),
    "no spec": [(2, 3)],
    "two": [TensorSpec((2, 3), DType.F32)] * 2,
    "nothing": [],
    "negative": [TensorSpec((2, -3), DType.F32)],
    "fraction": [TensorSpec((2, 1.5), DType.F32)],  # type: ignore[arg-type]
    "no tuple": [TensorSpec(6, DType.F32)],  # type: ignore[arg-type]
    "no type": [TensorSpec((2, 3), "f32")],  # type: ignore[arg-type]
    "other type": [TensorSpec((2, 3), DType.I32)],
    "other shape": [TensorSpec((3, 2), DType.F32)],
}


@pytest.mark.parametrize("fault", INFER)
def test_shapes_that_are_none(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _op(infer=lambda attributes, operands: INFER[fault]))
    # Another shape than the file's is believed until the reference gives something else.
    with pytest.raises((PluginError, ModelError, DeviceError), match=WHO):
        _run_twice(backend="cpu_ref")


@pytest.mark.parametrize("function", ["parse", "infer"])
@pytest.mark.parametrize("error", ERRORS)
def test_reading_an_op_raises(function: str, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _op(**{function: raising(ERRORS[error])}))
    with pytest.raises(PluginError, match=f"{WHO}: op ToyTwice: {function} raised"):
        _run_twice(backend="cpu_ref")


def test_a_refusal_of_an_op_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _op(infer=raising(ModelError("it takes two operands"))))
    with pytest.raises(ModelError, match=f"{WHO}.*it takes two operands"):
        _run_twice(backend="cpu_ref")


def _write(attributes: Any, arrays: Any) -> Any:
    arrays[0][...] *= 2
    return [arrays[0]]


REFERENCES: dict[str, Callable[[Any, Any], Any]] = {
    "None": lambda a, arrays: None,
    "an array": lambda a, arrays: arrays[0] * 2,
    "lists": lambda a, arrays: [[1.0]],
    "nothing": lambda a, arrays: [],
    "two": lambda a, arrays: [arrays[0], arrays[0]],
    "shape": lambda a, arrays: [arrays[0].T.copy()],
    "one number": lambda a, arrays: [np.float32(2)],
    "type": lambda a, arrays: [arrays[0].astype(np.float64)],
    "writes into its operand": _write,
} | {f"raises {name}": raising(e) for name, e in ERRORS.items()}


@pytest.mark.parametrize("fault", REFERENCES)
def test_a_reference_that_is_none(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, _op(reference=REFERENCES[fault]))
    with pytest.raises(DeviceError, match=WHO):
        _run_twice(backend="cpu_ref")
    with (
        tflgpu.Interpreter(model_content=toys.model(custom="ToyTwice")) as opened,
        pytest.raises(DeviceError, match=WHO),
    ):
        opened.allocate_tensors()
        opened.invoke()


@pytest.mark.parametrize("reason", [True, 0, ["no"], ""], ids=repr)
def test_limits_that_are_none(reason: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = twice(device=OnDevice(limits=lambda n: reason))
    install(monkeypatch, toys.hooks(PlanToy, register_ops=lambda: [limited]))
    _, report = _run_twice()
    (refusal,) = report.refusals
    assert re.search(f"{WHO}: op ToyTwice: device.limits gave", refusal.reason)


@pytest.mark.parametrize("samples", [raising(KeyError("x")), lambda: None, lambda: ["s"]])
def test_samples_that_are_none_fail_alone(samples: Any) -> None:
    found = registry_of(_op(samples=samples))
    checks = op_checks([found.ops()["ToyTwice"], found.ops()["RELU"]])
    broken = [c for c in checks if c.op == "ToyTwice"]
    assert len(broken) == 1
    assert len(checks) > 1
    with pytest.raises(TflgpuError, match=f"{WHO}: op ToyTwice: samples"):
        broken[0].run(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("truth", [True, False])
def test_an_op_that_says_that_shapes_are_all_it_depends_on(
    truth: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the constant that it makes would be that of zeros, whatever the operand holds."""
    of_shape = lambda a, arrays: [np.full(arrays[0].shape, arrays[0].size, np.float32)]  # noqa: E731
    content = toys.model(custom="ToyTwice")
    install(
        monkeypatch,
        _op(contents=Contents(shape_only=True), **({"reference": of_shape} if truth else {})),
    )
    if truth:
        y, _ = run(content)
        assert (y == 6).all()
        return
    with pytest.raises(
        TflgpuError, match=f"{WHO}: op ToyTwice: reference gave .* shape_only: leave"
    ):
        run(content)


def test_results_that_an_op_keeps_and_writes_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of two nodes of it were one array, and the sum of x and -x not 0."""
    kept = np.zeros((2, 3), np.float32)

    def reference(attributes: Any, arrays: Any) -> list[Any]:
        kept[...] = arrays[0] * 2
        return [kept]

    install(monkeypatch, _op(reference=reference))
    names = ("ToyTwice", "NEG", "ToyTwice", "ADD")
    places = [((0,), 1), ((0,), 2), ((2,), 3), ((1, 3), 4)]
    operators = [OperatorSpec(n, {}, i, (o,)) for n, (i, o) in zip(names, places, strict=True)]
    tensors = [TensorOf(f"t{i}", (2, 3)) for i in range(5)]
    y, _ = run(write_model(ModelSpec(tensors, operators, (0,), (4,))))
    np.testing.assert_array_equal(y, np.zeros((2, 3)))
