"""A plugin's op may stand for a composite of a file, as a shipped one does."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from flatbuffers import flexbuffers
from tflgpu.compiler.stored_numbers import integer_node
from tflgpu.errors import ModelError, PluginError, UnsupportedError
from tflgpu.errors.blame import Failed
from tflgpu.ir.dtypes import Array, DType, Quantization
from tflgpu.ir.edit_guard import ask
from tflgpu.ir.graph import Graph, Node, Value
from tflgpu.ir.graph import TensorSpec as Spec
from tflgpu.language.builder import Builder
from tflgpu.language.tree import Expr
from tflgpu.lowering.rule import ElementwiseRule, GroupRule, KernelRule, Unsupported
from tflgpu.ops.base import (
    Accuracy,
    Arg,
    Composed,
    Contents,
    Fields,
    FileForm,
    OpDef,
    Operand,
    Quantized,
    Reading,
    Sample,
    Variables,
    no_attrs,
)
from tflgpu.ops.quantized import Hybrid, InDigits, Integers, OnTheFly, Replacement, Rounding
from tflgpu.ops.registry import builtin_ops
from tflgpu.plugins.registry import Registry
from tflgpu.tflite.build import build_graph
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import OperatorSpec, SubgraphSpec, TensorSpec

from tests.plugins.outside_ops import outside
from tests.plugins.third_party_toys import WANTED, PlanToy, hooks, install, plugin_of, registry_of
from tests.plugins.third_party_toys import model as model_facets
from tests.plugins.third_party_toys import run as run_edits
from tests.running import allocate_and_run, raising
from tests.small_models import small_model, tensor_of


@attrs.frozen
class Times:
    """What it multiplies by."""

    factor: float


def _infer(attributes: Times, operands: Sequence[Operand | None]) -> list[Spec]:
    (x,) = operands
    assert x is not None
    return [x.spec]


def _times(attributes: Times, arrays: Sequence[Array | None]) -> list[Array]:
    (x,) = arrays
    assert x is not None
    return [np.asarray(x * np.float32(attributes.factor))]


def _read(fields: Fields, operands: Sequence[Operand | None]) -> list[Reading]:
    if "by" not in fields.values:
        raise UnsupportedError("it does not say by what")
    factor = fields.number("by")
    return [Reading(Times(factor + 1)), Reading(Times(factor))]  # the first is never meant


def _draw(rng: np.random.Generator, operands: Sequence[Operand | None]) -> list[Array | None]:
    """What has a logarithm."""
    (x,) = operands
    assert x is not None
    return [rng.uniform(0.5, 3, x.shape).astype(np.float32)]


def op(read: Callable[..., Any] = _read) -> OpDef:
    return OpDef(
        "ToyTimes", lambda f: Times(f.number("by")), _infer, _times,
        lambda: [Sample("odd", {"by": 3}, (Arg((3, 5)),))], accuracy=Accuracy.ROUNDED,
        is_custom=True, elementwise=True,
        file=FileForm(composed=(Composed(("toy.times",), read,
        frozenset({"by"}), _draw),))
    )  # fmt: skip


def _expr(k: Builder, attributes: Times, operands: Sequence[Expr]) -> Expr:
    return operands[0] * attributes.factor


def plugin(read: Callable[..., Any] = _read) -> Any:
    return plugin_of(
        register_ops=lambda: [op(read)],
        register_kernels=lambda backend: [ElementwiseRule("ToyTimes", _expr)],
    )


def model(attributes: dict[str, Any], factor: float = 3.0) -> bytes:
    """x times ``factor``, by a logarithm and its inverse, so that no other pass makes one of it."""
    shape = (3, 5)
    body = SubgraphSpec(
        [TensorSpec("x", shape), TensorSpec("f", (), data=float(np.log(factor))), TensorSpec("l",
        shape),
         TensorSpec("s", shape), TensorSpec("y", shape)],
        [OperatorSpec("LOG", {}, [0], [2]), OperatorSpec("ADD", {}, [2, 1], [3]),
         OperatorSpec("EXP", {}, [3], [4])], [0], [4],
    )  # fmt: skip
    fields = {
        "name": "toy.times", "decomposition_subgraph_index": 1,
        "composite_attributes": tuple(flexbuffers.Dumps(attributes)),
    }  # fmt: skip
    return small_model(
        {"x": shape, "a": shape, "y": shape},
        "a = ABS(x)",
        ("y = STABLEHLO_COMPOSITE(a)", fields),
        subgraphs=[body],
    )


def run(content: bytes) -> tuple[Array, Any]:
    x = np.random.default_rng(1).uniform(-2, 2, (3, 5)).astype(np.float32)
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1) as delegate,
        tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter,
    ):
        allocate_and_run(interpreter, {0: x})
        np.testing.assert_allclose(interpreter.get_tensor(2), 3 * np.abs(x), rtol=1e-5)
        return x, interpreter.report


def test_it_takes_the_operators_place(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, plugin())
    _, report = run(model({"by": 3}))
    (found,) = report.composites
    assert (found.name, found.operators, found.op, found.reason) == (
        "toy.times",
        (1, 2, 3),
        "ToyTimes",
        "",
    )
    assert report.dispatches == 1


@pytest.mark.parametrize(
    ("read", "attributes", "why"),
    [
        (_read, {"by": 4}, ("ToyTimes of plugin toy-plugin (from toy-package): what it is made of "
                           "computes something else")),
        (_read, {"by": 3, "to": 4}, ("ToyTimes of plugin toy-plugin (from toy-package): its "
                                    "attribute 'to' is not understood")),
        (_read, {}, "ToyTimes of plugin toy-plugin (from toy-package): it does not say by what"),
        (raising(RuntimeError("no idea")), {"by": 3},
         "ToyTimes of plugin toy-plugin (from toy-package): no idea"),
        (lambda f, o: [1], {"by": 3}, "ToyTimes of plugin toy-plugin (from toy-package): "),
        (lambda f, o: None, {"by": 3}, "ToyTimes of plugin toy-plugin (from toy-package): "),
        (lambda f, o: [Reading(Times(3), (4,))], {"by": 3}, ("ToyTimes of plugin toy-plugin (from "
                                                            "toy-package): ")),
    ],
)  # fmt: skip
def test_what_it_does_not_know_runs_as_operators(
    monkeypatch: pytest.MonkeyPatch, read: Any, attributes: dict[str, Any], why: str
) -> None:
    install(monkeypatch, plugin(read))
    _, report = run(model(attributes))
    (found,) = report.composites
    assert found.op == ""
    assert found.reason.startswith(why)


def test_without_the_plugin_it_runs_as_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, outside())
    _, report = run(model({"by": 3}))
    assert report.composites[0].reason.startswith("no op is known that computes 'toy.times' as one")


# What a plugin's op says of itself and few models ask: wrong answers name the plugin, and fields
# that are none leave it out.


TWICE = OpDef(
    "ToyTwice", no_attrs, lambda a, x: [x[0].spec], lambda a, x: [x[0] * np.float32(2)],
    lambda: [Sample("odd", {}, (Arg((3, 5)),))], is_custom=True,
)  # fmt: skip


def _raises_facets(*args: Any) -> Any:
    raise KeyError("oh")


def _quantized(**said: Any) -> OpDef:
    return attrs.evolve(TWICE, quantized=Quantized(**said))


def _keeping(states: Any) -> OpDef:
    return attrs.evolve(TWICE, state=Variables(states))


_DIGITS = InDigits(None, {0: 2}, 8, {}, 0, _raises_facets, np.zeros(3, np.float32))

UNASKED: dict[str, tuple[OpDef, str]] = {
    "state.operands raises": (_keeping(_raises_facets), "raised KeyError"),
    "state.operands of none": (_keeping(lambda a: None), "gave None, not a tuple"),
    "state.operands twice": (_keeping(lambda a: (1, 1)), "gave .*there twice"),
    "quantized.stored raises": (_quantized(stored=_raises_facets), "raised KeyError"),
    "quantized.hybrid raises": (_quantized(hybrid=_raises_facets), "raised KeyError"),
    "quantized.hybrid of none": (_quantized(hybrid=lambda n: None), "gave None, not a Hybrid"),
    "quantized.hybrid of no such axis": (
        _quantized(hybrid=lambda n: Hybrid((OnTheFly((5,), Rounding.SYMMETRIC),))), "gave axes"),
    "quantized.table raises": (_quantized(table=_raises_facets), "raised KeyError"),
    "quantized.table of a few": (
        _quantized(table=lambda n: np.array([1, 2], np.int32)), r"gave int32\[2\]"),
    "quantized.digits raises": (_quantized(digits=_raises_facets), "raised KeyError"),
    "quantized.digits of a text": (_quantized(digits=lambda n: "two"), "gave 'two', not a InDig"),
    "quantized.digits of no such operand": (
        _quantized(digits=lambda n: attrs.evolve(_DIGITS, split={5: 2})), "gave operand 5"),
    "quantized.digits of no arrays": (
        _quantized(digits=lambda n: attrs.evolve(_DIGITS, table=None)), "gave .*not all arrays"),
    "quantized.results raises": (_quantized(results=_raises_facets), "raised KeyError"),
    "quantized.results of no arrays": (
        _quantized(results=lambda n: Replacement("NEG", None, (1,))), "gave .*arrays"),
    "elementwise raises": (attrs.evolve(TWICE, elementwise=_raises_facets), "raised KeyError"),
    "contents.zeros_where raises": (
        attrs.evolve(TWICE, contents=Contents(zeros_where=_raises_facets)), "raised KeyError"),
}  # fmt: skip


def _node(ops: Mapping[str, OpDef]) -> Node:
    return build_graph(read_model(model_facets(("NEG",))), 0, ops).nodes[0]


@pytest.mark.parametrize("fault", UNASKED)
def test_a_facet_that_few_models_ask_names_the_plugin(fault: str) -> None:
    (op, match), field = UNASKED[fault], fault.split(maxsplit=1)[0]
    found = registry_of(outside(op)).ops()
    node, facet = _node(found), attrgetter(field)(found[op.name])
    with pytest.raises(PluginError, match=rf"toy-plugin.*: op {op.name}: {field} {match}"):
        facet(node.attrs if field in ("state.operands", "quantized.stored") else node)


def test_digits_that_cannot_be_put_together_name_the_plugin() -> None:
    found = registry_of(outside(_quantized(digits=lambda n: _DIGITS))).ops()
    digits = found[TWICE.name].quantized.digits
    assert digits is not None
    said = digits(_node(found))
    assert said is not None
    with pytest.raises(PluginError, match=r"op ToyTwice: quantized.digits raised KeyError"):
        said.finish((0,))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("file.max_version", 0), ("batch", "each"), ("quantized.hybrid", 1),
        ("contents.texts", 1), ("contents.counts", [0]), ("device.checked", (-1,)),
        ("contents.indices", (True,)), ("contents.positions", None), ("contents.held", "bytes"),
        ("device.largest_operand", float("nan")), ("file.composed", ("odml.rms_norm",)),
        ("state", lambda attributes: (0,)), ("elementwise", "yes"), ("quantized.stored", None),
        ("quantized.one_scale", 1), ("quantized", True), ("movement", None),
        ("device.limits", None),
    ],
)  # fmt: skip
def test_a_field_that_is_none_leaves_the_plugin_out(field: str, value: Any) -> None:
    group, _, name = field.partition(".")
    part = attrs.evolve(getattr(TWICE, group), **{name: value}) if name else value
    plugin = outside(attrs.evolve(TWICE, **{group: part}))
    (failure,) = Registry.of({"toy-plugin": plugin}, "toy-package").failures
    assert f"OpDef 'ToyTwice': {field} is " in failure.error


# Integer ops of third parties: what they say is looked at before anything is built on it.


SHIPPED = builtin_ops()["QUANTIZED_ADD"]


def toy(attributes: Any, **changes: Any) -> OpDef:
    quantized = Quantized(stored=True, integers=Integers("ADD", attributes))
    return attrs.evolve(SHIPPED, name="ToyAdd", quantized=quantized, **changes)


def node() -> Node:
    graph = Graph()
    quant = Quantization((0.5,), (3,))
    a, b, c = (graph.add_value((2, 3), DType.I8, quant=quant) for _ in range(3))
    return graph.add_node("ADD", builtin_ops()["ADD"].parse(Fields("ADD", {})), [a, b], [c])


def ops_with(op: OpDef) -> Any:
    return registry_of(plugin_of(register_ops=lambda: [op])).ops()


def test_a_plugins_op_is_asked_first() -> None:
    shipped = SHIPPED.quantized.integers
    assert shipped is not None
    found = integer_node(node(), ops_with(toy(shipped.attributes)), lambda made: None)
    assert isinstance(found, Node)
    assert found.op == "ToyAdd"


def test_where_it_says_no_the_shipped_one_is_asked() -> None:
    found = integer_node(node(), ops_with(toy(lambda made: "not today")), lambda made: None)
    assert isinstance(found, Node)
    assert found.op == "QUANTIZED_ADD"


def test_all_reasons_are_given() -> None:
    refusal = Unsupported("no rule")
    found = integer_node(node(), ops_with(toy(lambda made: "not today")), lambda made: refusal)
    assert found == Unsupported("not today; no rule")


@pytest.mark.parametrize("given", [None, ""])
def test_no_answer(given: Any) -> None:
    ops = ops_with(toy(lambda made: given))
    with pytest.raises(
        PluginError, match=r"toy-plugin.*ToyAdd: quantized.integers.attributes gave"
    ):
        integer_node(node(), ops, lambda made: None)


def test_what_it_raises_has_its_name() -> None:
    with pytest.raises(PluginError, match=r"toy-plugin.*integers.attributes raised.*boom"):
        integer_node(node(), ops_with(toy(raising(ValueError("boom")))), lambda made: None)


def test_results_of_another_type() -> None:
    def infer(attributes: Any, operands: Any) -> Any:
        return [attrs.evolve(operands[0].spec, dtype=DType.I32)]

    shipped = SHIPPED.quantized.integers
    assert shipped is not None
    ops = dict(ops_with(toy(shipped.attributes, infer=infer)))
    del ops["QUANTIZED_ADD"]
    found = integer_node(node(), ops, lambda made: None)
    assert found == Unsupported("ToyAdd gives i32[2,3]")


@pytest.mark.parametrize(
    "wrong",
    [{"integers": "ADD"}, {"integers": Integers("ADD", None)}, {"stored": False}],  # type: ignore[arg-type]
)
def test_a_malformed_facet_is_refused(wrong: dict[str, Any]) -> None:
    op = toy(lambda made: "no")
    op = attrs.evolve(op, quantized=attrs.evolve(op.quantized, **wrong))
    found = registry_of(plugin_of(register_ops=lambda: [op]), broken=True)
    assert any("integers is" in str(failure) for failure in found.failures)


# A plugin that edits a node when it is asked about it: found, named, and taken back.


def _node_edits() -> Node:
    x, y = (Value(i, f"t{i}", (2, 3), DType.F32) for i in range(2))
    return Node("RELU", None, [x], [y])


def _to_neg(node: Node, *rest: Any) -> None:
    node.op = "NEG"


def _no_inputs(node: Node, *rest: Any) -> None:
    node.inputs.clear()


def _texts(node: Node, *rest: Any) -> None:
    node.inputs = ["x"]  # type: ignore[list-item]


def _flat(node: Node, *rest: Any) -> None:
    node.outputs[0].shape = (6,)


def _constant(node: Node, *rest: Any) -> None:
    node.input(0).data = np.zeros((2, 3), np.float32)


EDITS = (_to_neg, _no_inputs, _texts, _flat, _constant)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_an_edit_is_taken_back(edit: Callable[..., None]) -> None:
    node = _node_edits()
    x, y = node.inputs[0], node.outputs[0]
    answer = ask(edit, node, node)
    assert isinstance(answer, Failed)
    assert "which only graph passes may" in str(answer)
    assert (node.op, node.inputs, node.outputs) == ("RELU", [x], [y])
    assert y.shape == (2, 3)
    assert node.input(0).data is None


def test_an_answer_is_handed_on() -> None:
    assert ask(lambda node: "no", _node_edits(), _node_edits()) == "no"


def _match(node: Node, maker: Any, site: Any) -> None:
    _to_neg(maker(node.input(0)))


PLUGINS: dict[str, Callable[[], Any]] = {
    "accepts": lambda: hooks(
        PlanToy,
        register_kernels=lambda backend: [
            KernelRule("TANH", "toy", lambda low: None, _to_neg, rank=1000)
        ],
    ),
    "match": lambda: hooks(
        PlanToy,
        register_kernels=lambda backend: [
            GroupRule("TANH", "toy", _match, lambda low: None, rank=1000)
        ],
    ),
    "build": lambda: hooks(
        PlanToy,
        register_kernels=lambda backend: [
            KernelRule("TANH", "toy", lambda low: _to_neg(low.node), rank=1000)
        ],
    ),
    "veto": lambda: hooks(PlanToy, node_support=lambda backend, node, site: _to_neg(node)),
}


@pytest.mark.parametrize("kind", PLUGINS)
def test_the_model_is_computed_all_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, PLUGINS[kind]())
    with caplog.at_level(logging.WARNING, "tflgpu"):
        y, report = run_edits(enable_serialization=False)
    np.testing.assert_allclose(y, WANTED, rtol=1e-6)
    if kind == "veto":
        said = [refusal.reason for refusal in report.refusals]
    else:
        said = [record.getMessage() for record in caplog.records]
    assert any("toy-plugin" in text and "it edited" in text for text in said), said


# A plugin's op on texts (strings): the host runs its reference, and the rest of the model is
# compiled.


GIVEN = [b"a", b"", b"ccc"]


def _infer_texts(attributes: Any, operands: Sequence[Operand | None]) -> list[Spec]:
    (texts,) = operands
    if texts is None or texts.dtype is not DType.STRING:
        raise ModelError("ToyLengths takes texts")
    return [Spec(texts.shape, DType.F32)]


def _lengths(attributes: Any, arrays: Sequence[Array | None]) -> list[Array]:
    (texts,) = arrays
    assert texts is not None
    return [np.array([len(text) for text in texts.flat], np.float32).reshape(texts.shape)]


def op_texts(name: str = "ToyLengths", *, texts: bool = True) -> OpDef:
    return OpDef(
        name,
        no_attrs,
        _infer_texts,
        _lengths,
        tuple,
        accuracy=Accuracy.EXACT,
        is_custom=True,
        contents=Contents(texts=texts),
    )


def model_texts(name: str = "ToyLengths") -> bytes:
    """The lengths of three texts, negated."""
    return small_model(
        {"texts": tensor_of((3,), DType.STRING), "n": (3,), "y": (3,)},
        (f"n = {name}(texts)", {}, {"custom_options": b"\1"}),
        "y = NEG(n)",
    )


def test_the_host_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, plugin_of(register_ops=lambda: [op_texts()]))
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=1, partitioning="all") as delegate,
        tflgpu.Interpreter(
            model_content=model_texts(), experimental_delegates=[delegate]
        ) as interpreter,
    ):
        allocate_and_run(interpreter, {0: np.array(GIVEN, np.object_)})
        assert interpreter.get_tensor(2).tolist() == [-1, 0, -3]
        report = interpreter.report
        assert report.delegated_nodes == 1
        (refusal,) = report.refusals
        assert refusal.op == "ToyLengths"
        assert "texts (strings)" in refusal.reason


@pytest.mark.parametrize("ops", [[], [op_texts(texts=False)]], ids=["not defined", "without texts"])
def test_no_other_is_run(ops: list[OpDef], monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, plugin_of(register_ops=lambda: ops))
    reason = "takes texts|does not take texts" if ops else "not defined; a plugin can define it"
    with (
        tflgpu.Interpreter(model_content=model_texts()) as interpreter,
        pytest.raises(UnsupportedError, match=reason),
    ):
        interpreter.allocate_tensors()
