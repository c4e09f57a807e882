"""A delegate that reads what was saved: the same bits, the same report, and no compiling."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler import compile as compiling
from tflgpu.compiler.report import DelegationReport
from tflgpu.errors import SavedModelError
from tflgpu.ir.dtypes import DType
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry
from tflgpu.runtime.opening import open_graph
from tflgpu.runtime.provider import device_provider
from tflgpu.saved import facts, location
from tflgpu.saved.kernel import SavedKernel
from tflgpu.saved.location import entries
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocate_and_run, allocated
from tests.saved.saved_models import convolved, graph_of

DEVICES = [("cpu_ref", 1), ("opencl", 0)]
REF: dict[str, Any] = {"backend": "cpu_ref", "device": 1}


def run(
    model: bytes | Path, delegate: tflgpu.GpuDelegate
) -> tuple[list[np.ndarray], DelegationReport]:
    """All outputs of a run on numbers that are always the same, and where it ran."""
    given: Any = {"model_content": model} if isinstance(model, bytes) else {"model_path": model}
    with allocated(tflgpu.Interpreter(**given, experimental_delegates=[delegate])) as interpreter:
        rng = np.random.default_rng(5)
        for detail in interpreter.get_input_details():
            drawn = 4 * rng.random(detail["shape"]) - 2
            scale = 50 if np.issubdtype(detail["dtype"], np.integer) else 1
            interpreter.set_tensor(detail["index"], (scale * drawn).astype(detail["dtype"]))
        interpreter.invoke()
        outputs = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
        return outputs, interpreter.report


def assert_same(mine: Any, theirs: Any) -> None:
    assert [array.tobytes() for array in mine[0]] == [array.tobytes() for array in theirs[0]]
    assert mine[1] == theirs[1]


@pytest.mark.parametrize("backend", ["opencl", "vulkan", "wgpu"])
def test_nothing_is_printed_again(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The file has the code of kernels, and their statements are not even read."""
    model, path = convolved(), tmp_path / "m.tflgpu"
    with tflgpu.GpuDelegate(backend=backend) as delegate:
        delegate.save(model, path)
        compiled = run(model, delegate)
    with tflgpu.GpuDelegate(backend=backend, saved=path) as delegate:
        monkeypatch.setattr(SavedKernel, "body", property(never))
        assert_same(run(model, delegate), compiled)


@pytest.mark.parametrize("backend", ["vulkan", "wgpu"])
def test_guard_bands_have_code_of_their_own(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """It is printed from the kernels' statements, which a file has: compiling again might give
    others in a later release."""
    model, path = convolved(), tmp_path / "m.tflgpu"
    with tflgpu.GpuDelegate(backend=backend) as delegate:
        delegate.save(model, path)
        compiled = run(model, delegate)
    monkeypatch.setattr(compiling, "compile", never)
    with tflgpu.GpuDelegate(backend=backend, guard_bands=True, saved=path) as delegate:
        assert_same(run(model, delegate), compiled)


@pytest.fixture
def later_release(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """``later_release("0.7.2")``: tflgpu of that version, with other sources, one operator more,
    and other releases of NumPy and Python."""

    def turn_to(version: str) -> None:
        one_more = attrs.evolve(builtin_ops()["ADD"], name="OF_A_LATER_RELEASE")
        ops = {**builtin_ops(), one_more.name: one_more}
        monkeypatch.setattr(facts, "_version", lambda distribution: version)
        monkeypatch.setattr(facts, "_stamp", lambda place: f"sources of {version}")
        monkeypatch.setattr(np, "__version__", "9.9.9")
        monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "99", "0"))
        monkeypatch.setattr(Registry, "ops", lambda self: ops)
        facts._own.cache_clear()

    yield turn_to
    monkeypatch.undo()
    facts._own.cache_clear()


def test_a_file_outlives_patch_releases(
    tmp_path: Path, later_release: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = convolved(), tmp_path / "m.tflgpu"
    later_release("0.7.1")
    with tflgpu.GpuDelegate(**REF) as delegate:
        delegate.save(model, path)
        compiled = run(model, delegate)
    later_release("0.7.2")
    monkeypatch.setattr(compiling, "compile", never)
    with tflgpu.GpuDelegate(**REF, saved=path) as delegate:
        assert_same(run(model, delegate), compiled)


def test_a_file_is_refused_by_the_next_minor_release(
    tmp_path: Path, later_release: Callable[[str], None]
) -> None:
    model, path = convolved(), tmp_path / "m.tflgpu"
    later_release("0.7.1")
    with tflgpu.GpuDelegate(**REF) as delegate:
        delegate.save(model, path)
    later_release("0.8.0")
    with (
        tflgpu.GpuDelegate(**REF, saved=path) as delegate,
        pytest.raises(
            SavedModelError, match=r"is for something else: tflgpu: 0\.8 here, 0\.7 there"
        ),
    ):
        run(model, delegate)


def test_a_folder_keeps_nothing_from_one_release_to_the_next(
    tmp_path: Path, later_release: Callable[[str], None]
) -> None:
    options = {**REF, "serialization_dir": tmp_path, "model_token": "m"}
    for version in ("0.7.1", "0.7.2"):
        later_release(version)
        with tflgpu.GpuDelegate(**options) as delegate:
            run(convolved(), delegate)
    assert len(entries(tmp_path / "m" / "models")) == 2


def test_litert_s_interpreter_uses_a_folder_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, litert: Any
) -> None:

    def started() -> bytes:
        delegate = tflgpu.GpuDelegate(**REF)
        kept = location.SavedLocation(folder=tmp_path / "models")
        delegate.provider = attrs.evolve(delegate.provider, keeping=kept)
        interpreter = litert.Interpreter(
            model_content=convolved(), experimental_delegates=[delegate]
        )
        allocate_and_run(interpreter, {0: np.full((1, 7, 5, 3), 0.5, np.float32)})
        assert delegate.reports[-1].fully_delegated
        return interpreter.get_tensor(6).tobytes()

    compiled = started()
    assert len(entries(tmp_path / "models")) == 1
    monkeypatch.setattr("tflgpu.compiler.compile.compile", never)
    assert started() == compiled


def never(*_: Any) -> Any:
    raise AssertionError("something was compiled")


@pytest.mark.parametrize(("backend", "device"), DEVICES)
@pytest.mark.parametrize("precision", ["f32", "f32_f16"])
def test_the_same_bits_and_report(
    backend: str, device: int, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    options: dict[str, Any] = {"backend": backend, "device": device, "precision": precision}
    model, path = convolved(), tmp_path / "m.tflgpu"
    with tflgpu.GpuDelegate(**options) as delegate:
        said = delegate.save(model, path)
        compiled = run(model, delegate)
    assert said == compiled[1]
    monkeypatch.setattr("tflgpu.compiler.compile.compile", never)
    with tflgpu.GpuDelegate(saved=path, **options) as delegate:
        assert_same(run(model, delegate), compiled)


@pytest.mark.parametrize(
    ("backend", "device", "name"),
    [
        ("cpu_ref", 1, "tflm_mnist_lstm_fp32"),
        ("cpu_ref", 1, "dtln_model_quant_1"),
        ("cpu_ref", 1, "movie_review_nl_classifier"),
        ("opencl", 0, "tflm_mnist_lstm_fp32"),
    ],
)
def test_real_models(
    backend: str, device: int, name: str, tmp_path: Path, model_path: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """With variables, quantized, and with parts on the CPU."""
    model, path = model_path(name), tmp_path / "m.tflgpu"
    with tflgpu.GpuDelegate(backend=backend, device=device) as delegate:
        delegate.save(model, path)
        compiled = run(model, delegate)
    monkeypatch.setattr("tflgpu.compiler.compile.compile", never)
    with tflgpu.GpuDelegate(saved=path, backend=backend, device=device) as delegate:
        assert_same(run(model, delegate), compiled)


def test_a_provider_with_a_folder_compiles_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, graph = tmp_path / "models", graph_of(convolved())

    def opened() -> tuple[bytes, DelegationReport]:
        keeping = location.SavedLocation(None, folder, "mine")
        provider = device_provider(DelegateOptions(**REF), keeping=keeping)
        assert provider.opened is not None
        session = open_graph(graph, provider, provider.opened.cpu)
        session.arrays[graph.inputs[0].id][...] = 0.5
        session.run()
        found = session.arrays[graph.outputs[0].id].tobytes(), session.report
        session.close()
        provider.opened.close()
        return found

    compiled = opened()
    assert len(entries(folder)) == 1
    monkeypatch.setattr("tflgpu.compiler.compile.compile", never)
    assert opened() == compiled


def test_a_saved_model_is_not_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFLGPU_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "m.tflgpu"
    options = {**REF, "inference_preference": "sustained_speed"}
    with tflgpu.GpuDelegate(**options) as delegate:
        delegate.save(convolved(), path)
    monkeypatch.setattr("tflgpu.runtime.tuning.tune", never)
    with tflgpu.GpuDelegate(saved=path, **options) as delegate:
        _, report = run(convolved(), delegate)
    assert report.fully_delegated


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "m.tflgpu"
    with tflgpu.GpuDelegate(**REF) as delegate:
        delegate.save(convolved(), path)
    return path


def refusal(path: Path, model: bytes | None = None, **changes: Any) -> str:
    with (
        tflgpu.GpuDelegate(saved=path, **{**REF, **changes}) as delegate,
        pytest.raises(SavedModelError) as error,
    ):
        run(model or convolved(), delegate)
    return str(error.value)


def test_a_model_that_is_run_by_the_piece_is_not_saved(tmp_path: Path) -> None:
    """The true reason, and not that nobody runs its operators."""
    x, y, h = TensorSpec("x", (2,)), TensorSpec("y", (2,)), TensorSpec("h", (), DType.RESOURCE)
    body = [OperatorSpec("VAR_HANDLE", {"shared_name": "v"}, [], [2]),
            OperatorSpec("ASSIGN_VARIABLE", {}, [2, 0], []), OperatorSpec("READ_VARIABLE", {}, [2],
            [1])]  # fmt: skip
    content = write_model(ModelSpec([x, y, h], body, [0], [1]))
    with tflgpu.GpuDelegate(**REF) as delegate:
        with pytest.raises(SavedModelError, match=r"by the piece.*#0 VAR_HANDLE, #1 ASSIGN"):
            delegate.save(content, tmp_path / "m.tflgpu")
        assert not (tmp_path / "m.tflgpu").exists()
        assert run(content, delegate)[0][0].shape == (2,)


def test_another_model_is_refused(saved: Path) -> None:
    assert "model: " in refusal(saved, convolved(scale=0.25))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"precision": "f32_f16"}, "site.precision: F32_F16 here, F32 there"),
        ({"max_delegated_partitions": 1}, "max_partitions: 1 here, None there"),
        ({"quantized_numerics": "integer"}, "numerics: INTEGER here, FLOAT there"),
        ({"device": 0}, "this device runs none"),
    ],
)
def test_other_options_are_refused(saved: Path, changes: dict[str, Any], says: str) -> None:
    text = refusal(saved, **changes)
    assert says in text
    assert str(saved) in text


def test_other_shapes_are_refused(saved: Path) -> None:
    with (
        tflgpu.GpuDelegate(saved=saved, **REF) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=convolved(), experimental_delegates=[delegate])
        ) as interpreter,
    ):
        interpreter.resize_tensor_input(0, (2, 7, 5, 3))
        with pytest.raises(SavedModelError, match=r"inputs: x: f32\[2,7,5,3\] here"):
            interpreter.allocate_tensors()


def test_another_driver_is_refused(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tflgpu.GpuDelegate(saved=saved, **REF) as delegate:
        device = delegate.device
        assert device is not None
        newer = attrs.evolve(device.info, driver="another one")
        monkeypatch.setattr(device, "info", newer)
        with pytest.raises(SavedModelError, match="driver: another one here"):
            run(convolved(), delegate)


def test_a_file_that_is_not_there_or_is_none(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "absent.tflgpu")
    (tmp_path / "text").write_bytes(b"hello")
    assert "no saved model" in refusal(tmp_path / "text")
    assert "it is no file" in refusal(tmp_path)
    with pytest.raises(tflgpu.OptionError, match="path of a file"):
        tflgpu.GpuDelegate(saved=b"bytes", **REF)  # type: ignore[arg-type]


def test_what_runs_no_kernels_cannot_be_saved(tmp_path: Path) -> None:
    with (
        tflgpu.GpuDelegate(backend="cpu_ref", device=0) as delegate,
        pytest.raises(SavedModelError, match="runs kernels"),
    ):
        delegate.save(convolved(), tmp_path / "m.tflgpu")


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    with (
        tflgpu.GpuDelegate(**REF) as delegate,
        pytest.raises(SavedModelError, match="cannot be written"),
    ):
        delegate.save(convolved(), tmp_path / "nowhere" / "m.tflgpu")


def test_a_forged_file_has_no_operators_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its digest is right, since all of it was written so."""
    model, path = convolved(), tmp_path / "m.tflgpu"
    write = location.write_saved

    def forging(to: Path, compiled: Any, *args: Any, **kwargs: Any) -> None:
        compiled.parts[0].nodes[0].origins = (999,)
        write(to, compiled, *args, **kwargs)

    monkeypatch.setattr(location, "write_saved", forging)
    with tflgpu.GpuDelegate(**REF) as delegate:
        delegate.save(model, path)
    with (
        tflgpu.GpuDelegate(saved=path, **REF) as delegate,
        pytest.raises(SavedModelError, match="operators that the model does not have"),
    ):
        run(model, delegate)
