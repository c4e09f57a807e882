"""Operators that nobody here defines, or in a version that is newer: LiteRT's kernels run them, and
the rest of the model is on the device."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.errors import TflgpuError, UnsupportedError
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.ir.graph import FileOptions
from tflgpu.ops.registry import builtin_ops
from tflgpu.plugins import registry as plugins
from tflgpu.plugins.registry import registry
from tflgpu.tflite import schema
from tflgpu.tflite.encode import Record, finish
from tflgpu.tflite.flat import FlatFile
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec
from tflgpu.tflite.write import model_record, write_model
from tflgpu_litert.newer import repack

from tests.litert.litert_models import LITERT, between, litert, numbers, run
from tests.running import allocated, set_and_run
from tests.small_models import small_model, small_spec, tensor_of

SHAPE = (2, 3, 5)
X = numbers(SHAPE, 7)


def constant(data: Any, dtype: DType = DType.I32) -> TensorSpec:
    array = np.asarray(data, dtype.numpy)
    return TensorSpec("c", array.shape, dtype, data=array)


#: Each between RELU and NEG: its name, options, and operands after the first.
BUILTINS: dict[str, tuple[dict[str, Any], list[TensorSpec]]] = {
    "REVERSE_SEQUENCE": ({"seq_dim": 1, "batch_dim": 0}, [constant([2, 3])]),
    "DYNAMIC_UPDATE_SLICE": (
        {}, [constant(np.ones((1, 2, 4)), DType.F32), constant([1, 0, 1])],
    ),
    "FAKE_QUANT": ({"min": -1.0, "max": 1.5, "num_bits": 4}, []),
    "STABLEHLO_ADD": ({}, [constant(np.full(SHAPE, 0.5), DType.F32)]),
    "UNSORTED_SEGMENT_MAX": ({}, [constant([3, 0]), constant(4)]),
    "MATRIX_DIAG": ({}, []),
    "BITCAST": ({}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", BUILTINS)
def test_the_rest_is_on_the_device(name: str, delegate: tflgpu.GpuDelegate) -> None:
    assert name not in registry().ops()
    fields, given = BUILTINS[name]
    model = between(name, fields, shape=SHAPE, given=given)
    (expected,) = litert(model, [X])
    (found,), report = run(model, [X], delegate)
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)
    assert (report.delegated_nodes, report.total_nodes) == (2, 3)
    (refusal,) = report.refusals
    assert refusal.op == name
    assert refusal.runs_on.startswith(LITERT)
    assert f"op {name} is not defined" in refusal.reason


@pytest.mark.parametrize("name", BUILTINS)
def test_without_a_delegate(name: str) -> None:
    fields, given = BUILTINS[name]
    model = between(name, fields, shape=SHAPE, given=given)
    np.testing.assert_array_equal(run(model, [X])[0][0], litert(model, [X])[0])


def test_an_op_left_out_on_purpose(
    delegate: tflgpu.GpuDelegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A softmax with options, as if nobody here had written it."""
    known = {name: op for name, op in registry().ops().items() if name != "SOFTMAX"}
    monkeypatch.setattr(registry(), "_merged", known)
    model = between("SOFTMAX", {"beta": 0.7}, shape=SHAPE)
    (found,), report = run(model, [X], delegate)
    np.testing.assert_array_equal(found, litert(model, [X])[0])
    assert [r.op for r in report.refusals] == ["SOFTMAX"]


def test_a_newer_version(delegate: tflgpu.GpuDelegate) -> None:
    assert registry().ops()["SQRT"].file.max_version == 1
    model = between("SQRT", shape=SHAPE, version=2)
    try:
        litert(model, [X])
    except ValueError:
        pytest.skip("this LiteRT is too old for version 2 of SQRT")
    (found,), report = run(model, [X], delegate)
    np.testing.assert_array_equal(found, litert(model, [X])[0])
    (refusal,) = report.refusals
    assert "version 2 of SQRT is newer than 1" in refusal.reason
    assert refusal.runs_on.startswith(LITERT)


def test_a_version_that_litert_lacks_too(delegate: tflgpu.GpuDelegate) -> None:
    with pytest.raises(UnsupportedError) as raised:
        run(between("SQRT", version=77), [X], delegate)
    text = str(raised.value)
    assert "#1 SQRT: version 77 of SQRT is newer than 1, the newest understood" in text
    assert "LiteRT does not take it: Didn't find op for builtin opcode 'SQRT' version '77'" in text


def test_a_custom_op_that_nobody_has(delegate: tflgpu.GpuDelegate) -> None:
    with pytest.raises(UnsupportedError) as raised:
        run(between("Sparkle", custom_options=b"abc"), [X], delegate)
    text = str(raised.value)
    assert "#1 Sparkle: custom op Sparkle is not defined; a plugin can define it" in text
    assert "unresolved custom op: Sparkle" in text


def test_a_custom_op_that_litert_has(
    delegate: tflgpu.GpuDelegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detector's last step, as if nobody here had written it: its options go there as they
    are."""
    name = "TFLite_Detection_PostProcess"
    known = {n: op for n, op in registry().ops().items() if n != name}
    monkeypatch.setattr(registry(), "_merged", known)
    sample = builtin_ops()[name].samples()[0]
    args = [a for a in sample.args if a is not None]
    tensors = [
        *(TensorSpec(f"x{i}", a.shape, data=None if i < 2 else a.draw(np.random.default_rng(i)))
          for i, a in enumerate(args)),
        *(TensorSpec(f"y{i}", (1,)) for i in range(5)),
    ]  # fmt: skip
    operators = [
        OperatorSpec(name, {}, [0, 1, 2], [3, 4, 5, 6], custom_options=sample.custom_options),
        OperatorSpec("NEG", {}, [3], [7]),
    ]
    model = write_model(ModelSpec(tensors, operators, [0, 1], [7, 4, 5, 6]))
    xs = [numbers(args[0].shape, 2), numbers(args[1].shape, 3, 0, 1)]
    outputs, report = run(model, xs, delegate)
    for found, expected in zip(outputs, litert(model, xs), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert [r.op for r in report.refusals] == [name]


def test_what_litert_refuses_is_named(delegate: tflgpu.GpuDelegate) -> None:
    """Of SCATTER_ND LiteRT takes no updates of other sizes than the indices ask for."""
    given = [constant(np.ones((2, 4)), DType.F32), constant([5, 5])]
    tensors = [TensorSpec("i", (2, 1), DType.I32), TensorSpec("j", (2, 1), DType.I32), *given,
               TensorSpec("made", (1,)), TensorSpec("y", (1,))]  # fmt: skip
    operators = [
        OperatorSpec("ABS", {}, [0], [1]),
        OperatorSpec("SCATTER_ND", {}, [1, 2, 3], [4]),
        OperatorSpec("NEG", {}, [4], [5]),
    ]
    model = write_model(ModelSpec(tensors, operators, [0], [5]))
    with pytest.raises(
        UnsupportedError, match=r"#1 SCATTER_ND: op SCATTER_ND is not defined.*Lite"
    ):
        run(model, [np.array([[1], [2]], np.int32)], delegate)


def test_a_shape_that_only_a_run_tells_is_refused(delegate: tflgpu.GpuDelegate) -> None:
    made = TensorSpec("made", (4,))
    tensors = [
        TensorSpec("x", (6,)), TensorSpec("a", (6,)), made, TensorSpec("i", (4,), DType.I32),
        TensorSpec("y", (4,)),
    ]  # fmt: skip
    operators = [
        OperatorSpec("RELU", {}, [0], [1]), OperatorSpec("UNIQUE", {"idx_out_type": 2}, [1], [2,
        3]),
        OperatorSpec("NEG", {}, [2], [4]),
    ]  # fmt: skip
    model = write_model(ModelSpec(tensors, operators, [0], [4]))
    with pytest.raises(
        UnsupportedError, match=r"#1 UNIQUE: .*LiteRT knows the shape of its result"
    ):
        run(model, [numbers((6,))], delegate)


class TestControlFlow:
    """The subgraphs that an operator runs go to LiteRT with it, where there is no device. (Where
    there is one they are compiled: see tests/flow.)"""

    def test_while(self, delegate: tflgpu.GpuDelegate) -> None:
        model = write_model(looped())
        x = numbers((2, 3), 6)
        for rounds in (0, 5):
            given = [np.array([rounds], np.int32), x]
            (found,), report = run(model, given, delegate)
            np.testing.assert_array_equal(found, litert(model, given)[0])
            np.testing.assert_allclose(found, -np.maximum(x, 0) * 1.5**rounds, rtol=1e-6)
        assert [r.op for r in report.refusals] == ["WHILE"]
        assert "the host decides what runs" in report.refusals[0].reason

    def test_if(self, delegate: tflgpu.GpuDelegate) -> None:
        branch = [TensorSpec("x", (2, 3)), TensorSpec("z", (2, 3))]
        tensors = [
            TensorSpec("p", (1,), DType.BOOL),
            *branch,
            *(TensorSpec(n, (2, 3)) for n in "ay"),
        ]
        operators = [
            OperatorSpec("RELU", {}, [1], [2]),
            OperatorSpec("IF", {"then_subgraph_index": 1, "else_subgraph_index": 2}, [0, 2], [3]),
            OperatorSpec("NEG", {}, [3], [4]),
        ]
        branches = [
            SubgraphSpec(branch, [OperatorSpec(name, {}, [0], [1])], [0], [1])
            for name in ("SQUARE", "SQRT")
        ]
        model = write_model(ModelSpec(tensors, operators, [0, 1], [4], subgraphs=branches))
        x = numbers((2, 3), 6)
        for p, expected in ((True, np.square), (False, np.sqrt)):
            (found,), _ = run(model, [np.array([p]), x], delegate)
            np.testing.assert_allclose(found, -expected(np.maximum(x, 0)), rtol=1e-6)

    def test_one_that_runs_itself_is_refused(self) -> None:
        """LiteRT would run out of stack."""
        model = write_model(looped(runs_itself=True))
        with pytest.raises(tflgpu.ModelError, match="subgraph 1 runs itself"):
            run(model, [np.array([1], np.int32), numbers((2, 3))])

    def test_one_with_a_state_is_not_litert_s(self) -> None:
        """But runs by the piece."""
        spec = looped()
        body = spec.subgraphs[0]
        tensors = [attrs.evolve(t, is_variable=t.name == "grown") for t in body.tensors]
        changed = attrs.evolve(
            spec, subgraphs=[attrs.evolve(body, tensors=tensors), spec.subgraphs[1]]
        )
        model, given = write_model(changed), [np.array([3], np.int32), numbers((2, 3))]
        (found,), report = run(model, given)
        np.testing.assert_array_equal(found, litert(model, given)[0])
        assert next(r for r in report.refusals if r.op == "WHILE").runs_on == "host"


def looped(*, runs_itself: bool = False) -> ModelSpec:
    """``y = -(relu(x) * 1.5 ** n)``, by WHILE; subgraph 1 counts down, and 2 says how long."""
    number = TensorSpec("n", (1,), DType.I32)
    state = [number, TensorSpec("x", (2, 3))]
    main = [*state, TensorSpec("a", (2, 3)), TensorSpec("m", (1,), DType.I32),
            TensorSpec("b", (2, 3)), TensorSpec("y", (2, 3))]  # fmt: skip
    body_tensors = [*state, constant([1]), attrs.evolve(number, name="fewer"), TensorSpec("grown",
    (2, 3)),
                    TensorSpec("f", (), data=np.float32(1.5))]  # fmt: skip
    again = {"cond_subgraph_index": 2, "body_subgraph_index": 1}
    steps = [
        OperatorSpec("SUB", {}, [0, 2], [3]),
        OperatorSpec("MUL", {}, [1, 5], [4]),
    ]
    if runs_itself:
        steps = [OperatorSpec("WHILE", again, [0, 1], [3, 4])]
    subgraphs = [
        SubgraphSpec(body_tensors, steps, [0, 1], [3, 4], "body"),
        SubgraphSpec(
            [*state, constant([0]), TensorSpec("more", (1,), DType.BOOL)],
            [OperatorSpec("GREATER", {}, [0, 2], [3])], [0, 1], [3], "cond",
        ),
    ]  # fmt: skip
    operators = [
        OperatorSpec("RELU", {}, [1], [2]),
        OperatorSpec("WHILE", again, [0, 2], [3, 4]),
        OperatorSpec("NEG", {}, [4], [5]),
    ]
    return ModelSpec(main, operators, [0, 1], [5], subgraphs=subgraphs)


def test_shapes_follow_resized_inputs(delegate: tflgpu.GpuDelegate) -> None:
    fields, given = BUILTINS["MATRIX_DIAG"]
    model = between("MATRIX_DIAG", fields, shape=SHAPE, given=given)
    interpreter = tflgpu.Interpreter(model_content=model, experimental_delegates=[delegate])
    with interpreter:
        for size in (4, 2):
            interpreter.resize_tensor_input(0, (size, 3))
            interpreter.allocate_tensors()
            x = numbers((size, 3), size)
            set_and_run(interpreter, {0: x})
            expected = -np.maximum(x, 0)[..., None] * np.eye(3, dtype=np.float32)
            np.testing.assert_array_equal(interpreter.get_tensor(3), expected)


def test_quantized_numbers_reach_it_as_the_file_has_them(delegate: tflgpu.GpuDelegate) -> None:
    """Between 8-bit operators, which run on real numbers, one that LiteRT runs on stored ones."""
    quant = Quantization((0.05,), (-4,))
    tensors = [
        *(TensorSpec(n, SHAPE, DType.I8, None, quant) for n in ("x", "a", "b", "y")),
        constant([2, 3]),
    ]
    operators = [
        OperatorSpec("RELU", {}, [0], [1], version=2),
        OperatorSpec("REVERSE_SEQUENCE", {"seq_dim": 1, "batch_dim": 0}, [1, 4], [2]),
        OperatorSpec("RELU6", {}, [2], [3], version=2),
    ]
    model = write_model(ModelSpec(tensors, operators, [0], [3]))
    with pytest.raises(RuntimeError):  # LiteRT reverses u8, i16, i32, i64 and f32, but not i8
        litert(model, [np.zeros(SHAPE, np.int8)])
    model = write_model(
        ModelSpec(
            [attrs.evolve(t, dtype=DType.U8, quantization=Quantization((0.05,), (124,)))
             if t.dtype is DType.I8 else t for t in tensors],
            operators, [0], [3],
        )
    )  # fmt: skip
    x = np.random.default_rng(0).integers(0, 256, SHAPE).astype(np.uint8)
    (found,), report = run(model, [x], delegate)
    np.testing.assert_array_equal(found, litert(model, [x])[0])
    assert [r.op for r in report.refusals] == ["REVERSE_SEQUENCE"]


class TestState:
    """SVDF, as if nobody here had written it, keeps a state tensor, which lives in the session and
    not in LiteRT."""

    STATE = 3

    @pytest.fixture(autouse=True)
    def _undefined(self, monkeypatch: pytest.MonkeyPatch) -> None:
        known = {name: op for name, op in registry().ops().items() if name != "SVDF"}
        monkeypatch.setattr(registry(), "_merged", known)

    def model(self) -> bytes:
        batch, size, filters, memory = 2, 5, 4, 3
        tensors = [
            TensorSpec("x", (batch, size)),
            constant(numbers((filters, size), 1), DType.F32),
            constant(numbers((filters, memory), 2), DType.F32),
            TensorSpec("state", (batch, memory * filters), is_variable=True),
            TensorSpec("made", (1,)), TensorSpec("y", (1,)),
        ]  # fmt: skip
        operators = [
            OperatorSpec("SVDF", {"rank": 1}, [0, 1, 2, -1, 3], [4]),
            OperatorSpec("NEG", {}, [4], [5]),
        ]
        return write_model(ModelSpec(tensors, operators, [0], [5]))

    def test_it_goes_on_and_can_be_reset(self, delegate: tflgpu.GpuDelegate) -> None:
        xs = [numbers((2, 5), seed) for seed in range(3)]
        expected = self.expected(xs)
        delegates = [delegate]
        with allocated(
            tflgpu.Interpreter(model_content=self.model(), experimental_delegates=delegates)
        ) as interpreter:
            for _ in range(2):
                for x, (wanted, state) in zip(xs, expected, strict=True):
                    set_and_run(interpreter, {0: x})
                    np.testing.assert_array_equal(interpreter.get_tensor(5), wanted)
                    np.testing.assert_array_equal(interpreter.get_tensor(self.STATE), state)
                interpreter.reset_all_variables()
                assert not interpreter.get_tensor(self.STATE).any()

    def expected(self, xs: list[Any]) -> list[tuple[Any, Any]]:
        from ai_edge_litert.interpreter import Interpreter

        native = allocated(Interpreter(model_content=self.model()))
        found = []
        for x in xs:
            set_and_run(native, {0: x})
            found.append((native.get_tensor(5), native.get_tensor(self.STATE)))
        assert not np.array_equal(found[0][0], found[1][0])
        return found


def test_a_variable_that_nothing_was_assigned_to() -> None:
    """LiteRT gives whatever is in its memory."""
    model = small_model(
        {"v": tensor_of((), DType.RESOURCE), "y": (2,)},
        ("v = VAR_HANDLE()", {"shared_name": "s"}),
        "y = READ_VARIABLE(v)",
    )
    with pytest.raises(
        tflgpu.StateError, match="variable 's' is read before anything was assigned"
    ):
        run(model, [])


class TestNumPyIsTheCpuSide:
    """Then such operators are refused as ever, and the message says what would run them."""

    def test_by_choice(self) -> None:
        with pytest.raises(UnsupportedError, match="op MATRIX_DIAG is not defined") as raised:
            run(between("MATRIX_DIAG"), [X], cpu_backend="cpu_ref")
        assert "the CPU side in use only runs operators that are defined" in str(raised.value)

    def test_since_litert_is_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec",
            lambda name, *rest: None if name == "ai_edge_litert" else real(name, *rest),
        )  # fmt: skip
        made = plugins.Registry(registry().plugins)
        monkeypatch.setattr(plugins, "_registry", made)
        with pytest.raises(
            UnsupportedError, match=r"might run it, .*pip install \"tflgpu\[litert\]\""
        ):
            run(between("MATRIX_DIAG"), [X])


# Options of operators that the schema known here lacks: what it cannot write again LiteRT's own
# can; where nobody can, they are refused, since LiteRT would run something else.


FIELDS = {"min": -1.0, "max": 1.0, "num_bits": 2}


@pytest.fixture
def without_a_field(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A model with an option that the reader does not know."""
    content = write_model(spec("FAKE_QUANT", FIELDS))
    (operator,) = read_model(content).main.operators
    assert operator.gap == ""
    real = schema.layout("FakeQuantOptions")
    known = {n: f for n, f in real.fields.items() if n != "num_bits"}
    older = schema.TableLayout(real.name, known)

    def layout(table: str) -> schema.TableLayout:
        return older if table == real.name else schema.layout(table)

    monkeypatch.setattr(FlatFile.__init__, "__defaults__", (layout,))
    monkeypatch.setattr("tflgpu.tflite.operators.layout", layout)
    (operator,) = read_model(content).main.operators
    assert "field 2, which the schema known here lacks" in operator.gap
    return content


def test_a_field_that_the_schema_lacks(without_a_field: bytes) -> None:
    (found,), _ = run(without_a_field, [X])
    np.testing.assert_array_equal(found, litert(without_a_field, [X])[0])
    assert len(np.unique(found)) <= 4  # of two bits


def test_a_field_that_nobody_knows(without_a_field: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert.schema_py_generated", None)
    monkeypatch.delattr("ai_edge_litert.schema_py_generated", raising=False)
    with pytest.raises(UnsupportedError, match=r"#0 FAKE_QUANT.*cannot be written again: its opt"):
        run(without_a_field, [X])


def test_a_builtin_that_the_schema_lacks(
    delegate: tflgpu.GpuDelegate, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = np.array([2, 3], np.int32)
    given = [TensorSpec("c", (2,), DType.I32, data=lengths)]
    content = between("REVERSE_SEQUENCE", {"seq_dim": 1, "batch_dim": 0}, shape=SHAPE, given=given)
    code = schema.BUILTIN_CODES["REVERSE_SEQUENCE"]
    known = {c: n for c, n in schema.BUILTINS.items() if c != code}
    monkeypatch.setattr("tflgpu.tflite.operators.BUILTINS", known)
    (found,), report = run(content, [X], delegate)
    np.testing.assert_array_equal(found, litert(content, [X])[0])
    assert [r.op for r in report.refusals] == [f"BUILTIN_{code}"]


def test_a_builtin_that_litert_lacks_too() -> None:
    record, buffers = model_record(spec("NEG", {}))
    codes = [Record("OperatorCode", {"deprecated_builtin_code": 127, "builtin_code": 250})]
    content = finish(Record("Model", {**record.values, "operator_codes": codes}), buffers)
    with pytest.raises(UnsupportedError, match=r"#0 BUILTIN_250.*LiteRT does not take it"):
        run(content, [X])


@pytest.mark.parametrize("seed", range(30))
def test_damaged_options_are_an_error_of_ours(seed: int, without_a_field: bytes) -> None:
    """Whatever stands where LiteRT's schema reads, it is refused or runs, and nothing else."""
    rng = np.random.default_rng(seed)
    content = bytearray(without_a_field)
    for at in rng.integers(8, len(content), 4):
        content[at] = rng.integers(256)
    with contextlib.suppress(TflgpuError):
        read_model(bytes(content))
        for operator in read_model(bytes(content)).main.operators:
            if operator.place is not None:
                source = FileOptions(
                    operator.name, operator.is_custom, {}, gap="x", place=operator.place
                )
                packed = repack(source)
                assert packed is None or packed.builtin >= 0


def spec(name: str, fields: Mapping[str, Any]) -> ModelSpec:
    return small_spec({"x": SHAPE, "y": SHAPE}, (f"y = {name}(x)", fields))
