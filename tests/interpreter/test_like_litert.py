"""tflgpu's interpreter has the arguments, names and half-private methods of the installed LiteRT's.

Whatever a newer LiteRT adds is noticed here: by name, with what would have to be decided.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import tflgpu
import tflgpu.interpreter
from tflgpu.contract.device import Probe
from tflgpu.errors import DelegateError, OptionError, StateError, UnsupportedError
from tflgpu.interpreter import Delegate, Interpreter, InterpreterWithCustomOps, SignatureRunner
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.model_file import Blockwise
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.interpreter import interpreter_models
from tests.interpreter import interpreter_models as models
from tests.running import allocate_and_run, allocated, delegates_on
from tests.small_models import small_model, tensor_of

litert = pytest.importorskip("ai_edge_litert.interpreter")

#: What LiteRT's interpreter has and ours has not, with the reason.
WITHOUT: dict[str, str] = {
    "__del__": "closing is done by finalizers, in any order",
}


def parameters(function: Any) -> list[tuple[str, Any]]:
    return [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]


# Names


def test_the_module_has_every_public_name() -> None:
    public = {
        name for name, value in vars(litert).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }  # fmt: skip
    assert {"Interpreter", "load_delegate"} <= public
    assert public == set(tflgpu.interpreter.__all__)
    for name in public:
        assert getattr(tflgpu.interpreter, name).__name__ == name
        assert name in dir(tflgpu.interpreter)


def test_an_unknown_name_of_the_module() -> None:
    with pytest.raises(
        AttributeError, match=r"'tflgpu\.interpreter' has no attribute 'Interpeter'"
    ):
        tflgpu.interpreter.Interpeter  # noqa: B018


@pytest.mark.parametrize("name", ["Interpreter", "SignatureRunner", "Delegate"])
def test_classes_have_every_method(name: str) -> None:
    theirs, ours = getattr(litert, name), getattr(tflgpu.interpreter, name)
    there = {
        n for n in vars(theirs) if n not in ("__module__", "__doc__", "__dict__", "__weakref__")
    }
    assert there - set(dir(ours)) - set(WITHOUT) == set()
    for method in there - set(WITHOUT) - {"__init__", "__call__"}:
        found = getattr(theirs, method)
        if not inspect.isfunction(found):
            continue
        wanted = parameters(found)
        assert parameters(getattr(ours, method))[: len(wanted)] == wanted, method


def test_op_resolver_types_are_theirs() -> None:
    kind = tflgpu.interpreter.OpResolverType
    assert {m.name: m.value for m in kind} == {m.name: m.value for m in litert.OpResolverType}
    assert kind is tflgpu.OpResolverType


# Arguments


def test_the_constructor_takes_every_argument_in_its_place() -> None:
    theirs = inspect.signature(litert.Interpreter.__init__).parameters
    ours = inspect.signature(Interpreter.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].kind is parameter.kind, name
        mine, other = ours[name].default, parameter.default
        assert getattr(mine, "value", mine) == getattr(other, "value", other), name
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[len(theirs) :])


def test_every_argument_is_explained() -> None:
    told = inspect.getdoc(Interpreter.__init__) or ""
    for name in inspect.signature(Interpreter.__init__).parameters:
        assert name == "self" or f"    {name}: " in told, name


def test_arguments_by_position() -> None:
    kind = litert.OpResolverType.BUILTIN
    given = (None, models.chain(), [], 2, kind, True, True, True, True, True, True)
    x = np.ones((1, 3), np.float32)
    results = []
    for module in (tflgpu, litert):
        interpreter = module.Interpreter(*given)
        allocate_and_run(interpreter, {0: x})
        assert interpreter.experimental_compress_quantization_zero_points is True
        results.append(interpreter.get_tensor(2))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    "name",
    [n for n in inspect.signature(Interpreter).parameters if n.startswith("experimental_")][2:],
)
def test_a_switch_that_is_none(name: str) -> None:
    switch: Any = {name: "maybe"}
    with pytest.raises(OptionError, match=f"{name} is True or False"):
        Interpreter(model_content=models.chain(), **switch)


# Details


def channels() -> bytes:
    """Constants with a scale for each channel, and zero points that are alike or not."""
    scales, data = (0.5, 0.25, 0.125), np.arange(6).reshape(3, 2)
    points = {"alike": (3, 3, 3), "different": (1, 2, 3), "zeros": (0, 0, 0), "one": (7,)}
    tensors = [TensorSpec("x", (2,)), TensorSpec("y", (2,))]
    for name, zero in points.items():
        quantization = Quantization(scales[: len(zero)], zero, 0)
        tensors.append(TensorSpec(name, (3, 2), DType.U8, data.astype(np.uint8), quantization))
    return write_model(ModelSpec(tensors, [OperatorSpec("RELU", {}, (0,), (1,))], (0,), (1,)))


@pytest.mark.parametrize("compress", [False, True])
def test_zero_points_are_compressed_as_in_litert(compress: bool) -> None:
    option: Any = {"experimental_compress_quantization_zero_points": compress}
    ours = Interpreter(model_content=channels(), **option)
    theirs = litert.Interpreter(model_content=channels(), **option)
    assert_same(ours.get_tensor_details(), theirs.get_tensor_details())
    points = [d["quantization_parameters"]["zero_points"] for d in ours.get_tensor_details()]
    assert [len(p) for p in points] == ([0, 0, 1, 3, 1, 1] if compress else [0, 0, 3, 3, 3, 1])


def blocks() -> bytes:
    """Weights of 4 bits, in blocks that have their scales in another tensor."""
    scales = np.linspace(0.1, 0.2, 6, dtype=np.float16).reshape(3, 2)
    tensors = [
        TensorSpec("x", (2, 32)),
        TensorSpec("y", (2, 3)),
        TensorSpec(
            "w", (3, 32), DType.I4, np.ones((3, 32), np.int8), blockwise=Blockwise(3, -1, 16)
        ),
        TensorSpec("scales", scales.shape, DType.F16, scales),
    ]
    product = OperatorSpec("FULLY_CONNECTED", {}, (0, 2), (1,), version=7)
    return write_model(ModelSpec(tensors, [product], (0,), (1,)))


def quantized() -> bytes:
    """An int8 convolution: scales by channel, an optional operand that is not there."""
    one = Quantization((0.05,), (3,))
    filters = Quantization((0.5, 0.25), (0, 0), 0)
    fields = {"padding": 1, "stride_h": 1, "stride_w": 1}
    return small_model(
        {
            "x": tensor_of((1, 2, 2, 3), DType.I8, None, one),
            "w": tensor_of((2, 1, 1, 3), DType.I8, np.ones((2, 1, 1, 3), np.int8), filters),
            "y": tensor_of((1, 2, 2, 2), DType.I8, None, one),
            "z": tensor_of((1, 2, 2, 2), quantization=None),
        },
        ("y = CONV_2D(x, w, -)", fields, {"version": 3}),
        ("z = DEQUANTIZE(y)", {}, {"version": 2}),
    )


def known(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of tensors that NumPy has a type for. LiteRT knows one for bf16 in a process that has
    imported ml_dtypes, as its compiled models do."""
    return [d for d in details if d["name"] != "bf16"]


@pytest.mark.parametrize(
    "make", [quantized, blocks, models.types, models.two_subgraphs, models.chain]
)
def test_half_private_methods_give_what_litert_gives(make: Any) -> None:
    content = make()
    ours, theirs = Interpreter(model_content=content), litert.Interpreter(model_content=content)
    assert_same(ours._get_full_signature_list(), theirs._get_full_signature_list())
    operators = theirs._get_ops_details()
    assert_same(ours._get_ops_details(), operators)
    for index in range(len(operators)):
        assert_same(ours._get_op_details(index), theirs._get_op_details(index))
    for subgraph in range(theirs.num_subgraphs()):
        for detail in known(theirs.get_tensor_details(subgraph)):
            index = detail["index"]
            assert_same(ours._get_tensor_details(index, subgraph), detail)
    for key in theirs.get_signature_list():
        assert_same(
            SignatureRunner(ours, key).get_output_details(),
            litert.SignatureRunner(theirs, key).get_output_details(),
        )


WRONG: dict[str, Any] = {
    "operator": lambda i: i._get_op_details(2),
    "negative operator": lambda i: i._get_op_details(-1),
    "operator by name": lambda i: i._get_op_details("ADD"),
    "tensor": lambda i: i._get_tensor_details(99, 0),
    "negative tensor": lambda i: i._get_tensor_details(-1, 0),
    "details of a subgraph": lambda i: i.get_tensor_details(5),
}


@pytest.mark.parametrize("what", WRONG)
def test_indices_that_are_none(what: str) -> None:
    for module in (tflgpu, litert):
        with pytest.raises((ValueError, TypeError)) as error:
            WRONG[what](module.Interpreter(model_content=models.chain()))
        if module is tflgpu:
            assert isinstance(error.value, tflgpu.TflgpuError)
            wanted = error
    assert isinstance(wanted.value, error.type)


def test_a_held_view_is_noticed_as_in_litert() -> None:
    for module in (tflgpu, litert):
        interpreter = allocated(module.Interpreter(model_content=models.chain()))
        assert interpreter._safe_to_run()
        view = interpreter.tensor(0)()
        assert not interpreter._safe_to_run()
        with pytest.raises(RuntimeError):
            interpreter._ensure_safe()
        del view
        interpreter._ensure_safe()


def test_there_is_no_native_interpreter() -> None:
    with pytest.raises(UnsupportedError, match="no tflite::Interpreter"):
        Interpreter(model_content=models.chain())._native_handle()


@pytest.mark.parametrize("given", [(None, "serve"), ("interpreter", None), (None, None)])
def test_a_runner_of_nothing(given: Any) -> None:
    for module in (tflgpu.interpreter, litert):
        interpreter = given[0] and module.Interpreter(model_content=models.chain())
        with pytest.raises(ValueError, match=r"signature_key|provided"):
            module.SignatureRunner(interpreter, given[1])


# Delegates by name, custom operators


def test_a_delegate_by_name() -> None:
    options = {"backend": "cpu_ref", "device": "1"}
    for make in (Delegate, tflgpu.interpreter.load_delegate, tflgpu.load_delegate):
        with make("tflgpu", options) as delegate:
            assert isinstance(delegate, Delegate)
            assert isinstance(delegate, tflgpu.GpuDelegate)
            with allocated(Interpreter(None, models.chain(), [delegate])) as interpreter:
                assert interpreter.report.backend == "cpu_ref"


@pytest.mark.parametrize(
    ("library", "options", "says"),
    [
        ("libedgetpu.so.1", {}, "not 'libedgetpu.so.1'; shared libraries"),
        ("tflgpu", {"backend": "cuda"}, "cannot be loaded: .*cuda"),
        ("tflgpu", {"backend": "cpu_ref", "device": "7"}, "cannot be loaded: .*no device 7"),
        ("tflgpu", {"bakend": "opencl"}, "did you mean backend"),
    ],
)
def test_what_cannot_be_loaded_is_a_value_error(
    library: str, options: dict[str, str], says: str
) -> None:
    with pytest.raises(ValueError, match=says) as error:
        tflgpu.interpreter.load_delegate(library, options)
    assert isinstance(error.value, (DelegateError, OptionError))


def test_custom_operators_without_any() -> None:
    for registerers in (None, [], ()):
        with InterpreterWithCustomOps(registerers, model_content=models.static()) as interpreter:
            allocate_and_run(interpreter, {0: np.array([[-1, 0, 2]], np.float32)})
            np.testing.assert_array_equal(interpreter.get_tensor(1), [[0, 0, 2]])
    with pytest.raises(StateError, match="closed"):
        interpreter.invoke()


@pytest.mark.parametrize("given", ["TF_RegisterMyOps", 7, [7], [None], {"f": print}])
def test_what_is_no_registerer(given: Any) -> None:
    with pytest.raises(OptionError, match="custom_op_registerers"):
        InterpreterWithCustomOps(given, model_content=models.custom())


# What the interpreter says of a model equals what LiteRT says, key by key and type by type.


def assert_same(ours: Any, theirs: Any, where: str = "details") -> None:
    """Equal values of equal types, all the way down."""
    assert type(ours) is type(theirs), f"{where}: {type(ours)} for {type(theirs)}"
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{i}]")
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, where
        assert ours.shape == theirs.shape, where
        np.testing.assert_array_equal(ours, theirs, where)
    else:
        assert ours == theirs, where


def assert_same_interface(ours: Interpreter, theirs: Any) -> None:
    assert_same(ours.get_input_details(), theirs.get_input_details(), "inputs")
    assert_same(ours.get_output_details(), theirs.get_output_details(), "outputs")
    assert_same(ours.get_signature_list(), theirs.get_signature_list(), "signatures")
    for key in theirs.get_signature_list():
        a, b = ours.get_signature_runner(key), theirs.get_signature_runner(key)
        assert_same(a.get_input_details(), b.get_input_details(), f"{key} inputs")
        assert_same(a.get_output_details(), b.get_output_details(), f"{key} outputs")


def assert_same_model(content: bytes) -> None:
    ours = Interpreter(model_content=content)
    theirs = litert.Interpreter(model_content=content)
    assert_same_interface(ours, theirs)
    assert ours.num_subgraphs() == theirs.num_subgraphs()
    for index in range(ours.num_subgraphs()):
        assert_same(ours.get_tensor_details(index), known(theirs.get_tensor_details(index)))
    assert_same(ours._get_ops_details(), theirs._get_ops_details(), "operators")


@pytest.mark.parametrize("name", interpreter_models.ALL)
def test_a_written_model_is_described_as_in_litert(name: str) -> None:
    assert_same_model(interpreter_models.ALL[name]())


@pytest.mark.parametrize("name", ["per_axis", "i4", "words"])
def test_constants_read_as_in_litert_before_allocation(name: str) -> None:
    content = interpreter_models.types()
    ours, theirs = Interpreter(model_content=content), litert.Interpreter(model_content=content)
    (index,) = (d["index"] for d in ours.get_tensor_details() if d["name"] == name)
    assert_same(ours.get_tensor(index), theirs.get_tensor(index))


def test_a_signature_that_the_file_lacks_follows_a_resize_as_in_litert() -> None:
    content = interpreter_models.static()
    ours, theirs = Interpreter(model_content=content), litert.Interpreter(model_content=content)
    for interpreter in (ours, theirs):
        size = [7, *interpreter.get_input_details()[0]["shape"][1:]]
        interpreter.resize_tensor_input(0, size)
        interpreter.allocate_tensors()
        assert list(interpreter.get_input_details()[0]["shape_signature"]) == size
        interpreter.resize_tensor_input(0, size, strict=True)  # as it is
        with pytest.raises(RuntimeError):
            interpreter.resize_tensor_input(0, [1, *size[1:]], strict=True)
    assert_same_interface(ours, theirs)


def test_details_follow_a_resize_as_in_litert() -> None:
    content = interpreter_models.chain()
    ours, theirs = Interpreter(model_content=content), litert.Interpreter(model_content=content)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
        interpreter.resize_tensor_input(0, [7, 3])
    assert_same_interface(ours, theirs)  # the input has changed, the output not yet
    assert list(ours.get_output_details()[0]["shape"]) == [1, 3]
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    assert_same_interface(ours, theirs)
    assert list(ours.get_output_details()[0]["shape"]) == [7, 3]


def test_details_are_copies() -> None:
    interpreter = Interpreter(model_content=interpreter_models.chain())
    interpreter.get_input_details()[0]["shape"][0] = 99
    assert list(interpreter.get_input_details()[0]["shape"]) == [1, 3]


def test_real_models_are_described_as_in_litert(models_dir: Path) -> None:
    paths = sorted(models_dir.glob("*.tflite"))
    assert paths, f"{models_dir} holds no models"
    for path in paths:
        assert_same_model(path.read_bytes())


# Graphs with odd edges (results that are inputs, constants, given twice, ...) on every device.


F, I32, I64, BOOL = DType.F32, DType.I32, DType.I64, DType.BOOL


def row(name: str, dtype: DType = F) -> TensorSpec:
    return TensorSpec(name, (1, 3), dtype)


def op(name: str, inputs: tuple[int, ...], output: int) -> OperatorSpec:
    return OperatorSpec(name, {}, inputs, (output,))


def new_shape() -> TensorSpec:
    return TensorSpec("shape", (2,), I32, [1, 3])


C = np.array([1.0, -2.0, 3.0], np.float32)

# Tensors, operators, inputs, outputs.
GRAPHS: dict[str, ModelSpec] = {
    "a no-op makes the output": ModelSpec(
        [row("x"), row("h"), new_shape(), row("y")],
        [op("ABS", (0,), 1), op("RESHAPE", (1, 2), 3)], (0,), (3,),
    ),
    "nothing but a no-op": ModelSpec(
        [row("x"), new_shape(), row("y")], [op("RESHAPE", (0, 1), 2)], (0,), (2,)
    ),
    "an input is an output": ModelSpec([row("x"), row("y")], [op("ABS", (0,), 1)], (0,), (0, 1)),
    "an output given twice": ModelSpec([row("x"), row("y")], [op("ABS", (0,), 1)], (0,), (1, 1)),
    "an output that is constant": ModelSpec(
        [row("x"), TensorSpec("c", (3,), data=C), TensorSpec("d", (3,)), row("y")],
        [op("ABS", (1,), 2), op("ADD", (0, 2), 3)], (0,), (2, 3),
    ),
    "an input that nobody reads": ModelSpec(
        [row("x"), row("unused"), row("y")], [op("ABS", (0,), 2)], (0, 1), (2,)
    ),
    "an intermediate is an output": ModelSpec(
        [row("x"), row("h"), row("y")], [op("ABS", (0,), 1), op("RELU", (1,), 2)], (0,), (1, 2)
    ),
    "int32": ModelSpec([row("x", I32), row("y", I32)], [op("ADD", (0, 0), 1)], (0,), (1,)),
    "int64": ModelSpec([row("x", I64), row("y", I64)], [op("ADD", (0, 0), 1)], (0,), (1,)),
    "bool in and out": ModelSpec(
        [row("x", BOOL), row("y", BOOL)], [op("LOGICAL_NOT", (0,), 1)], (0,), (1,)
    ),
    "bool between": ModelSpec(
        [row("x"), row("z"), row("b", BOOL), row("y")],
        [op("GREATER", (0, 1), 2), op("SELECT_V2", (2, 0, 1), 3)], (0, 1), (3,),
    ),
    "no dimensions": ModelSpec(
        [TensorSpec("x", ()), TensorSpec("y", ())], [op("ABS", (0,), 1)], (0,), (1,)
    ),
}  # fmt: skip


@pytest.fixture(params=["none", "cpu_ref 0", "cpu_ref 1", "opencl 0"])
def delegates(
    request: pytest.FixtureRequest, require_backend: Callable[[str], Probe]
) -> Iterator[list[GpuDelegate]]:
    """No delegate, and one of each device."""
    backend, *device = request.param.split()
    options = {"device": int(device[0]), "guard_bands": True} if device else {}
    yield from delegates_on(backend, require_backend, **options)


@pytest.mark.parametrize("name", GRAPHS)
def test_it_runs_as_in_litert(name: str, delegates: list[GpuDelegate]) -> None:
    content = write_model(GRAPHS[name])
    rng = np.random.default_rng(5)
    theirs = allocated(litert.Interpreter(model_content=content))
    with allocated(Interpreter(model_content=content, experimental_delegates=delegates)) as ours:
        for _ in range(2):
            for details in theirs.get_input_details():
                value = (5 * rng.standard_normal(details["shape"])).astype(details["dtype"])
                ours.set_tensor(details["index"], value)
                theirs.set_tensor(details["index"], value)
            ours.invoke()
            theirs.invoke()
            for details in theirs.get_output_details():
                got = ours.get_tensor(details["index"])
                expected = theirs.get_tensor(details["index"])
                assert got.dtype == expected.dtype
                np.testing.assert_array_equal(got, expected)
        report = ours.report
    # An operator of constants is evaluated while the graph is built, and is no node of it.
    evaluated = 1 if name == "an output that is constant" else 0
    assert report.total_nodes == len(GRAPHS[name].operators) - evaluated
    assert len(report.refusals) == report.total_nodes - report.delegated_nodes
