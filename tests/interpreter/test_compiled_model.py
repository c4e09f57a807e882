"""`tflgpu.compiled_model` beside the installed LiteRT's: names, arguments, results."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu import compiled_model as ours
from tflgpu.compiled_model import (
    CompiledModel,
    CpuKernelMode,
    CpuOptions,
    Environment,
    EnvironmentOptions,
    GpuOptions,
    HardwareAccelerator,
    Options,
    TensorBuffer,
)
from tflgpu.errors import (
    ArgumentError,
    InputError,
    ModelError,
    OptionError,
    ResizeError,
    StateError,
    UnsupportedError,
)
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.interpreter import interpreter_models as models
from tests.interpreter.cache_models import ROOM, WIDTH, language_model
from tests.interpreter.test_caches import TOKENS, expected, step

theirs = pytest.importorskip("ai_edge_litert.compiled_model")
CPU, GPU = HardwareAccelerator.CPU, HardwareAccelerator.GPU
X = np.array([[1.0, -2.0, 0.5]], np.float32)

#: Classes whose constructors take pointers of LiteRT's.
_OF_POINTERS = {"CompiledModel", "Environment", "TensorBuffer"}
#: What NPUs take, which there are none of.
_OF_NPUS = {"QualcommOptions", "IntelOpenVinoOptions"}


def public(cls: Any) -> set[str]:
    return {name for name in dir(cls) if name[0] != "_"}


def arguments(function: Any) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [
        (p.name, p.kind, p.default.name if hasattr(p.default, "name") else p.default)
        for p in found
        if p.name != "self"
    ]


CLASSES = sorted(
    name
    for name, value in vars(theirs).items()
    if inspect.isclass(value) and value.__module__.startswith("ai_edge_litert")
)


def test_every_class_is_there() -> None:
    assert {"CompiledModel", "Options", "TensorBuffer"} <= set(CLASSES) <= set(ours.__all__)


@pytest.mark.parametrize("name", [n for n in CLASSES if n not in _OF_NPUS])
def test_names_and_arguments(name: str) -> None:
    its, mine = getattr(theirs, name), getattr(ours, name)
    if issubclass(its, int):
        assert {n: int(v) for n, v in its.__members__.items()} == {
            n: int(v) for n, v in mine.__members__.items()
        }
        return
    assert public(its) <= public(mine)
    if name not in _OF_POINTERS:
        assert arguments(its) == arguments(mine)
    for method in public(its):
        if callable(getattr(its, method)):
            assert arguments(getattr(its, method)) == arguments(getattr(mine, method)), method


@pytest.mark.parametrize("content", [models.chain, models.static, models.two_subgraphs])
@pytest.mark.parametrize("accelerators", [None, CPU, GPU | CPU])
def test_results_and_details(
    content: Callable[[], bytes], accelerators: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TFLGPU_DEFAULT_DELEGATE")
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    a = theirs.CompiledModel.from_buffer(content(), theirs.HardwareAccelerator.CPU)
    with CompiledModel.from_buffer(content(), accelerators) as b:
        assert a.get_signature_list() == b.get_signature_list()
        assert a.get_num_signatures() == b.get_num_signatures()
        assert b.is_fully_accelerated()
        assert b.report().backend == ("" if accelerators == CPU else "cpu_ref")
        for index, (key, sides) in enumerate(a.get_signature_list().items()):
            assert a.get_signature_index(key) == b.get_signature_index(key) == index
            assert a.get_signature_by_index(index) == b.get_signature_by_index(index)
            assert a.get_input_tensor_details(key) == b.get_input_tensor_details(key)
            assert a.get_output_tensor_details(key) == b.get_output_tensor_details(key)
            found = []
            for model in (a, b):
                inputs = model.create_input_buffers(index)
                outputs = model.create_output_buffers(index)
                sizes = []
                for at, buffer in enumerate(inputs):
                    sizes.append(model.get_input_buffer_requirements(at, index))
                    shape = buffer.get_tensor_details()["shape"]
                    data = np.arange(np.prod(shape), dtype=np.float32) - 1.5 * at
                    buffer.write(data)
                    np.testing.assert_array_equal(buffer.read(2, np.float32), data[:2])
                model.run_by_index(index, inputs, outputs)
                by_name = [model.create_output_buffer_by_name(key, n) for n in sides["outputs"]]
                given = dict(zip(sides["inputs"], inputs, strict=True))
                model.run_by_name(key, given, dict(zip(sides["outputs"], by_name, strict=True)))
                results = []
                for at, (one, other) in enumerate(zip(outputs, by_name, strict=True)):
                    sizes.append(model.get_output_buffer_requirements(at, index))
                    results.append((one.get_tensor_details(), one.read(3, np.float32)))
                    np.testing.assert_array_equal(results[-1][1], other.read(3, np.float32))
                found.append((sizes, results))
            (sizes, results), (its_sizes, its_results) = found
            assert sizes == its_sizes
            for (details, array), (its_details, its_array) in zip(
                results, its_results, strict=True
            ):
                assert details == its_details
                np.testing.assert_allclose(array, its_array, rtol=1e-6)
        assert b.get_signature_index("nothing") == -1


def test_from_a_file_on_memory_of_ours(tmp_path: Path, reference: Any) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(models.static())
    environment = Environment.with_delegate(reference)
    x, y = X.copy(), np.zeros((3,), np.float32)
    with CompiledModel.from_file(str(path), environment=environment) as model:
        assert model.environment is environment
        assert model.report().backend == "cpu_ref"
        a, b = TensorBuffer.create_from_host_memory(x), TensorBuffer.create_from_host_memory(y)
        for scale in (1, -3):
            x[...] = X * scale
            model.run_by_index(0, [a], [b])
            np.testing.assert_array_equal(y, np.maximum(X[0] * scale, 0))
        other = TensorBuffer.create_from_host_memory(X * 2)
        model.run_by_index(0, [other], [b])
        np.testing.assert_array_equal(y, np.maximum(X[0] * 2, 0))
        model.run_by_index(0, [a], [b])
        np.testing.assert_array_equal(y, np.maximum(X[0] * -3, 0))


@pytest.mark.parametrize("strict", [True, False])
def test_resize(reference: Any, strict: bool) -> None:
    environment = Environment.with_delegate(reference)
    with CompiledModel.from_buffer(models.chain(), environment=environment) as model:
        old = model.create_input_buffers(0)
        model.resize_input_tensor(0, [4, 3], strict=strict)
        assert model.get_input_tensor_details("serve")["image"]["shape"] == [4, 3]
        assert model.get_input_buffer_requirements(0)["buffer_size"] == 48
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        with pytest.raises(InputError, match=r"input 'image' is float32\[4, 3\], and the buffer"):
            model.run_by_index(0, old, outputs)
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        inputs[0].write(x)
        model.run_by_index(0, inputs, outputs)
        found = outputs[0].read(12, np.float32).reshape(4, 3)
        np.testing.assert_array_equal(found, (x + models.C) * models.C)
        model.resize_input_tensor_by_name("serve", "image", [2, 3])
        assert model.create_output_buffers(0)[0].get_tensor_details()["shape"] == [2, 3]
        with pytest.raises(ResizeError, match="shape"):
            model.resize_input_tensor(0, [2, 4])
        with pytest.raises(InputError, match="Input tensor not found: 'nothing'"):
            model.resize_input_tensor_by_name("serve", "nothing", [2, 3])


@pytest.mark.parametrize("backend", ["cpu", "cpu_ref"])
def test_the_same_buffer_as_input_and_output_again(backend: str) -> None:
    with tflgpu.GpuDelegate(backend=backend) as delegate:
        environment = Environment.with_delegate(delegate)
        with CompiledModel.from_buffer(models.chain(), environment=environment) as model:
            both, wanted = TensorBuffer.create_from_host_memory(X.copy()), X
            for _ in range(3):
                model.run_by_index(0, [both], [both])
                wanted = (wanted + models.C) * models.C
                np.testing.assert_array_equal(both.read(3, np.float32), wanted[0])


@pytest.mark.parametrize("backend", ["cpu", "cpu_ref"])
def test_the_same_buffers_again(backend: str) -> None:
    """What a run found is kept for the next one, as long as that is asked for the same."""
    with tflgpu.GpuDelegate(backend=backend) as delegate:
        environment = Environment.with_delegate(delegate)
        with CompiledModel.from_buffer(models.chain(), environment=environment) as model:
            ((x,), (y,)) = model.create_input_buffers(0), model.create_output_buffers(0)
            (other,) = model.create_output_buffers(0)

            def run(n: int, into: TensorBuffer) -> None:
                x.write(n * X)
                model.run_by_index(0, [x], [into])
                wanted = (n * X + models.C) * models.C
                np.testing.assert_array_equal(into.read(3, np.float32), wanted[0])

            for n, into in enumerate((y, y, y, other, y, other, other)):
                run(n, into)
            np.testing.assert_array_equal(y.read(3, np.float32), ((4 * X + models.C) * models.C)[0])
            for inputs, outputs, error in (
                ([x], [], InputError), ([x, other], [], InputError), ([x], [3], ArgumentError),
            ):  # fmt: skip
                with pytest.raises(error):
                    model.run_by_index(0, inputs, outputs)
            with pytest.raises(ArgumentError, match="signature index"):
                model.run_by_index(False, [x], [other])
            run(9, other)
            model.resize_input_tensor(0, [2, 3])
            with pytest.raises(InputError, match="and the buffer"):
                run(1, other)
            model.resize_input_tensor(0, [1, 3])
            run(2, other)
            run(3, other)
            other.destroy()
            with pytest.raises(StateError, match="destroyed"):
                run(4, other)


def caches_in_place(module: Any, model: Any) -> list[Any]:
    """As scripts run language models: one buffer for the cache, which is input and output."""
    decode = model.get_signature_index("decode")
    cache = model.create_input_buffer_by_name("decode", "kv_cache_k_0")
    cache.write(np.zeros((1, ROOM, WIDTH), np.float32))

    def run(key: str, tokens: Any, at: int) -> Any:
        buffers = {"kv_cache_k_0": cache}
        for name, array in step(tokens, at).items():
            buffers[name] = model.create_input_buffer_by_name(key, name)
            buffers[name].write(array)
        made = {"kv_cache_k_0": cache}
        if key == "decode":
            made["logits"] = model.create_output_buffer_by_name(key, "logits")
        model.run_by_name(key, buffers, made)
        return made.get("logits")

    assert decode == 1
    run("prefill_4", TOKENS[:4], 0)
    return [run("decode", TOKENS[at], at).read(37, np.float32) for at in range(4, 12)]


def test_a_buffer_that_is_input_and_output(delegate: Any) -> None:
    logits, _ = expected()
    environment = Environment.with_delegate(delegate)
    with CompiledModel.from_buffer(language_model(), environment=environment) as model:
        found = caches_in_place(ours, model)
        assert repr(model.create_input_buffer_by_name("decode", "kv_cache_k_0")) == (
            "<TensorBuffer: float32[1, 13, 5] in a device>"
        )
    np.testing.assert_allclose(found, [one.ravel() for one in logits], rtol=1e-5, atol=1e-5)


def test_buffers_that_change_places(reference: Any) -> None:
    logits, _ = expected()
    environment = Environment.with_delegate(reference)
    with CompiledModel.from_buffer(language_model(), environment=environment) as model:
        inputs, outputs = model.create_input_buffers(1), model.create_output_buffers(1)
        prefill = model.create_input_buffers(0)
        prefill[0].write(TOKENS[None, :4])
        prefill[1].write(np.arange(4, dtype=np.int32))
        model.run_by_index(0, prefill, [inputs[2]])
        for at in range(4, 12):
            inputs[0].write(TOKENS[at : at + 1])
            inputs[1].write(np.array([at], np.int32))
            model.run_by_index(1, inputs, outputs)
            np.testing.assert_allclose(
                outputs[0].read(37, np.float32), logits[at - 4].ravel(), rtol=1e-5, atol=1e-5
            )
            inputs[2], outputs[1] = outputs[1], inputs[2]


def test_a_run_that_goes_on(delegate: Any) -> None:
    environment = Environment.with_delegate(delegate)
    with CompiledModel.from_buffer(models.static(), environment=environment) as model:
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        for scale in (1, 2, 3):
            inputs[0].write(X * scale)  # waits for the run before
            run = model.run_async(0, inputs, outputs)
        np.testing.assert_array_equal(outputs[0].read(3, np.float32), np.maximum(X[0] * 3, 0))
        assert run.done()
        assert run.wait(0)
        first = model.run_async(0, inputs, outputs)
        model.run_by_index(0, inputs, outputs)
        assert first.done()
        with pytest.raises(ArgumentError, match="timeout"):
            first.wait("soon")
        last = model.run_async(0, inputs, outputs)
    assert last.done()


SCRIPT = """
import numpy as np
from ai_edge_litert.compiled_model import CompiledModel, HardwareAccelerator, Options, TensorBuffer

options = Options.create()
options.hardware_accelerators = HardwareAccelerator.CPU
options.cpu_options.num_threads = 1
with CompiledModel.from_file(PATH, options=options) as model:
    key = list(model.get_signature_list())[0]
    name = model.get_signature_list()[key]["inputs"][0]
    inputs = model.create_input_buffers(0)
    outputs = model.create_output_buffers(0)
    inputs[0].write(np.array([[1.0, 2.0, -3.0]], dtype=np.float32))
    model.run_by_index(0, inputs, outputs)
    first = outputs[0].read(3, np.float32)
    host = TensorBuffer.create_from_host_memory(np.array([[4.0, 5.0, 6.0]], dtype=np.float32))
    given = model.create_input_buffer_by_name(key, name)
    given.write(host.read(3, np.float32).reshape(1, 3))
    made = model.create_output_buffer_by_name(key, "y")
    model.run_by_name(key, {name: given}, {"y": made})
    size = int(np.prod(made.get_tensor_details()["shape"]))
    second = made.read(size, np.float32).reshape(1, 3)
    bytes_needed = model.get_output_buffer_requirements(0)["buffer_size"]
    accelerated = model.is_fully_accelerated()
with open(OPEN_PATH, "rb") as file:
    model = CompiledModel.from_buffer(file.read(), HardwareAccelerator.CPU)
with model:
    model.resize_input_tensor(0, [2, 3])
    inputs = model.create_input_buffers(0)
    outputs = model.create_output_buffers(0)
    inputs[0].write(np.ones((2, 3), np.float32))
    model.run_by_index(0, inputs, outputs)
    third = outputs[0].read(6, np.float32)
host.destroy()
"""


def test_a_script_by_its_import(tmp_path: Path) -> None:
    path, open_path = tmp_path / "model.tflite", tmp_path / "open.tflite"
    path.write_bytes(models.static())
    open_path.write_bytes(models.chain())
    line = "from ai_edge_litert.compiled_model"
    found = []
    for script in (SCRIPT, SCRIPT.replace(line, "from tflgpu.compiled_model")):
        names: dict[str, Any] = {"PATH": str(path), "OPEN_PATH": str(open_path)}
        exec(script, names)
        found.append({n: names[n] for n in ("first", "second", "third", "bytes_needed")})
        assert names["accelerated"]
    theirs_found, ours_found = found
    assert SCRIPT.count("ai_edge_litert") == 1
    for name, value in theirs_found.items():
        np.testing.assert_allclose(ours_found[name], value, rtol=1e-6)


# Options


def test_gpu_options_become_ours() -> None:
    names = {f.name for f in dataclasses.fields(GpuOptions)}
    assert names == {f.name for f in dataclasses.fields(theirs.GpuOptions)}
    assert GpuOptions(True, True, False, True, True, True).delegate_options() == {
        "precision": tflgpu.Precision.F32, "wait_type": "active", "round_hybrid_inputs": True,
    }  # fmt: skip
    assert GpuOptions().delegate_options() == {}
    with pytest.raises(OptionError, match="infinite_float_capping: tflgpu computes infinities"):
        GpuOptions(infinite_float_capping=True).delegate_options()


def test_cpu_options_become_ours() -> None:
    assert CpuOptions(3, CpuKernelMode.REFERENCE, enable_ynnpack=True).delegate_options() == {
        "num_threads": 3, "op_resolver": tflgpu.OpResolverType.BUILTIN_REF,
    }  # fmt: skip
    assert CpuKernelMode.XNNPACK is CpuKernelMode.DELEGATE
    for options in (CpuOptions(xnnpack_flags=1), CpuOptions(xnnpack_weight_cache_path="x")):
        with pytest.raises(OptionError, match="leave them out"):
            options.delegate_options()
    with pytest.raises(OptionError, match="kernel_mode is a CpuKernelMode, not 7"):
        CpuOptions(kernel_mode=7).delegate_options()


def test_options_reach_the_delegate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    monkeypatch.setenv("TFLGPU_PRECISION", "f16")
    options = Options.create()
    options.hardware_accelerators = GPU
    with CompiledModel.from_buffer(models.static(), options=options) as model:
        assert model.report().precision == "f16"
    options.gpu_options.enforce_f32 = True
    options.cpu_options.num_threads = 2
    with CompiledModel.from_buffer(models.static(), options=options) as model:
        assert model.report().precision == "f32"
        assert model._interpreter._opener.options.num_threads == 2
        assert not model._interpreter._opener.options.allow_fallback


def test_gpu_alone_refuses_what_the_gpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLGPU_BACKEND", "cpu_ref")
    monkeypatch.setenv("TFLGPU_DEVICE", "1")
    words = write_model(
        ModelSpec(
            [TensorSpec("x", (2,), DType.I64), TensorSpec("y", (2,), DType.I64)],
            [OperatorSpec("ADD", {}, (0, 0), (1,))],
            (0,),
            (1,),
        )
    )
    with pytest.raises(UnsupportedError, match="ADD"):
        CompiledModel.from_buffer(words, GPU)
    monkeypatch.delenv("TFLGPU_DEFAULT_DELEGATE")
    with CompiledModel.from_buffer(words, GPU | CPU) as model:
        assert not model.is_fully_accelerated()


def test_npus_are_refused() -> None:
    for make in (ours.QualcommOptions, ours.IntelOpenVinoOptions):
        with pytest.raises(UnsupportedError, match=r"runs inside of LiteRT only.*leave these"):
            make(log_level=1)
    with pytest.raises(UnsupportedError, match="Qualcomm"):
        Options().qualcomm_options  # noqa: B018
    with pytest.raises(UnsupportedError, match="OpenVINO"):
        Options().intel_openvino_options  # noqa: B018
    with pytest.raises(UnsupportedError, match="NPU alone"):
        CompiledModel.from_buffer(models.static(), HardwareAccelerator.NPU)
    with CompiledModel.from_buffer(models.static(), HardwareAccelerator.NPU | CPU) as model:
        assert model.is_fully_accelerated()


def test_environments() -> None:
    assert Environment.create(options="here").options.runtime_path == "here"
    assert Environment.create(dispatch_library_path="d").options == EnvironmentOptions(
        None, "", "d"
    )
    for given in ({"options": "a", "runtime_path": "b"},
                  {"options": EnvironmentOptions(), "compiler_plugin_path": "b"}):  # fmt: skip
        with pytest.raises(OptionError):
            Environment.create(**given)
    with pytest.raises(OptionError, match=r"tflgpu\.GpuDelegate is needed"):
        Environment.with_delegate(None)
    with Environment.create() as environment:
        assert environment.capsule is None
    environment.close()
    for use in (lambda: environment.capsule, environment.__enter__,
                lambda: CompiledModel.from_buffer(models.static(), None, environment)):  # fmt: skip
        with pytest.raises(StateError, match="Environment is no longer valid"):
            use()


def test_a_delegate_with_options_of_its_own(reference: Any) -> None:
    environment = Environment.with_delegate(reference)
    options = Options(GPU, gpu_options=GpuOptions(enforce_f32=True))
    with pytest.raises(OptionError, match="delegate has options of its own"):
        CompiledModel.from_buffer(models.static(), environment=environment, options=options)


# Mistakes


def test_mistakes_of_the_model(tmp_path: Path) -> None:
    model = models.static()
    for given, error, said in (
        ({"hardware_accel": CPU, "options": Options()}, OptionError, "either options or"),
        ({"options": theirs.Options()}, OptionError, r"options are tflgpu\.compiled_model\.Opt"),
        ({"environment": 3}, OptionError, "environment is a"),
        ({"hardware_accel": 0}, OptionError, "hardware accelerators are"),
        ({"hardware_accel": "GPU"}, OptionError, "hardware accelerators are"),
    ):
        with pytest.raises(error, match=said):
            CompiledModel.from_buffer(model, **given)
    with pytest.raises(OptionError, match=r"gpu_options is tflgpu\.compiled_model\.GpuOptions"):
        Options(gpu_options=CpuOptions())
    with pytest.raises(ModelError):
        CompiledModel.from_file(str(tmp_path / "nothing.tflite"))
    with pytest.raises(ModelError):
        CompiledModel.from_buffer(b"nothing")


def test_mistakes_of_calls() -> None:
    key = "serve"
    with CompiledModel.from_buffer(models.chain(), CPU) as model:
        inputs, outputs = model.create_input_buffers(0), model.create_output_buffers(0)
        wrong = TensorBuffer.create_from_host_memory(np.zeros((1, 3), np.int32))
        for call, error, said in (
            (lambda: model.get_signature_by_index(7), InputError, "no signature 7; the mod"),
            (lambda: model.create_input_buffers(True), ArgumentError, "a signature index"),
            (lambda: model.get_input_tensor_details("no"), InputError, "Signature not found"),
            (lambda: model.create_input_buffer_by_name(key, "no"), InputError,
             "Input tensor not found: 'no'; signature 'serve' has"),
            (lambda: model.get_input_buffer_requirements(9), InputError, "Input index out"),
            (lambda: model.get_output_buffer_requirements("a"), ArgumentError, "output index"),
            (lambda: model.run_by_index(0, [], outputs), InputError, "0 input buffers for the 1"),
            (lambda: model.run_by_index(0, inputs, [3]), ArgumentError, "is a TensorBuffer, not 3"),
            (lambda: model.run_by_index(0, inputs[0], outputs), ArgumentError,
             "buffers are a list for inputs and one for outputs, not TensorBuffer and list"),
            (lambda: model.run_by_index(0, inputs, None), ArgumentError, "not list and NoneType"),
            (lambda: model.run_by_index(0, [wrong], outputs), InputError, "float32"),
            (lambda: model.run_by_name(key, {}, {}), InputError, "missing some input Tensor"),
            (lambda: model.run_by_name(key, {"image": inputs[0], "b": inputs[0]}, {}), InputError,
             "Input tensor not found: 'b'"),
        ):  # fmt: skip
            with pytest.raises(error, match=said):
                call()
    model.close()
    with pytest.raises(StateError, match="closed"):
        model.run_by_index(0, inputs, outputs)
    with pytest.raises(StateError, match="closed"):
        model.__enter__()


def test_mistakes_of_buffers() -> None:
    buffer = TensorBuffer.create_from_host_memory(np.zeros((2, 3), np.float32))
    assert repr(buffer) == "<TensorBuffer: float32[2, 3] in host memory>"
    buffer.write(np.array([1, 2], np.float32))
    np.testing.assert_array_equal(buffer.read(6, "float32"), [1, 2, 0, 0, 0, 0])
    for call, error, said in (
        (lambda: buffer.write([1.0]), InputError, "must be a NumPy array"),
        (lambda: buffer.write(np.zeros(3)), InputError, r"float64 cannot be written.*astype"),
        (lambda: buffer.write(np.zeros(7, np.float32)), InputError, "7 elements"),
        (lambda: buffer.write(np.array(["a"])), InputError, "Unsupported dtype"),
        (lambda: buffer.read(7, np.float32), InputError, "7 elements cannot be read"),
        (lambda: buffer.read(-1, np.float32), InputError, "-1 elements"),
        (lambda: buffer.read(1, np.int8), InputError, "int8 cannot be read from a buffer of float"),
        (lambda: buffer.read(1, "no type"), InputError, "Unsupported dtype: 'no type'"),
        (lambda: buffer.read("a", np.int8), ArgumentError, "num_elements"),
        (lambda: TensorBuffer.create_from_host_memory(np.zeros((4, 4)).T), InputError,
         "C-contiguous"),
        (lambda: TensorBuffer.create_from_host_memory([1]), InputError, "NumPy"),
    ):  # fmt: skip
        with pytest.raises(error, match=said):
            call()
    buffer.destroy()
    buffer.destroy()
    assert repr(buffer) == "<TensorBuffer: destroyed>"
    for use in (lambda: buffer.read(1, np.float32), lambda: buffer.capsule):
        with pytest.raises(StateError, match="has been destroyed"):
            use()


def test_texts_have_no_buffer() -> None:
    words = write_model(
        ModelSpec(
            [TensorSpec("x", (2,), DType.STRING), TensorSpec("y", (2,), DType.STRING)],
            [OperatorSpec("RESHAPE", {"new_shape": (2,)}, (0,), (1,))],
            (0,),
            (1,),
        )
    )
    with (
        CompiledModel.from_buffer(words, CPU) as model,
        pytest.raises(UnsupportedError, match="a TensorBuffer has no string"),
    ):
        model.create_input_buffers(0)
