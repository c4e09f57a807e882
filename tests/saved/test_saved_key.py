"""A key names all that the content depends on: whatever changes, it is another one."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.compiler.machines import ROUND_FIGURES
from tflgpu.compiler.numerics import Numerics
from tflgpu.compiler.target import Target
from tflgpu.contract.device import DeviceInfo
from tflgpu.errors import ModelError, SavedModelError
from tflgpu.ir.dtypes import Array, DType
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.lowering import Precision
from tflgpu.lowering.rule import KernelRule
from tflgpu.lowering.weights import Weights
from tflgpu.ops.registry import builtin_ops
from tflgpu.passes.base import Pass
from tflgpu.plugins.sources import Plugin
from tflgpu.saved.facts import facts_of
from tflgpu.saved.key import Key, key_of
from tflgpu.saved.location import entries
from tflgpu.saved.model import compiled_in
from tflgpu.saved.stamps import stamp
from tflgpu.tflite.later import LaterModel
from tflgpu.tflite.model_file import TensorInfo
from tflgpu.tflite.read import read_model

from tests.running import allocate_and_run
from tests.saved.saved_models import (
    FACTS,
    bytes_of,
    compiled_small,
    convolved,
    graph_of,
    target_of,
)
from tests.small_models import small_model, tensor_of

INFO = DeviceInfo("opencl", 0, "a device", "nvidia", True, "driver 1.0")


def key(model: bytes | None = None, given: Any = FACTS, **changes: Any) -> Key:
    return key_of(graph_of(model or convolved()), target_of(**changes), given)


def test_the_same_again_has_the_same_key() -> None:
    assert key() == key()
    assert key().name == key().name
    assert key().differences(key()) == ()


def test_one_weight_is_enough() -> None:
    """The last float of the last constant, by its lowest bit."""
    model = graph_of(convolved())
    plain = key_of(model, target_of(), FACTS)
    value = [v for v in model.values.values() if v.data is not None][-1]
    assert value.data is not None
    changed = value.data.copy()
    changed.reshape(-1).view(np.uint32)[-1] ^= 1
    value.data = changed
    (said,) = plain.differences(key_of(model, target_of(), FACTS))
    assert said.startswith("model: ")


def test_other_shapes_have_another_key() -> None:
    target = target_of()
    model = small_model({"x": (1, 5), "y": (1, 5)}, "y = TANH(x)")
    plain = key_of(graph_of(model), target, FACTS)
    resized = key_of(graph_of(model, {0: (3, 5)}), target, FACTS)
    said = plain.differences(resized)
    assert any(text == "inputs: x: f32[1,5] here, x: f32[3,5] there" for text in said)


def _rule(owner: str) -> KernelRule:
    return KernelRule("TANH", "mine", lambda low: None, owner=owner)


def _changed_site(**changes: Any) -> Any:
    site = target_of().site
    return attrs.evolve(site, caps=attrs.evolve(site.caps, **changes))


CHANGES = {
    "precision": {"site": attrs.evolve(target_of().site, precision=Precision.F32_F16)},
    "a limit of the device": {"site": _changed_site(shared_bytes=1)},
    "a feature of the device": {"site": _changed_site(subgroup_shuffle=8)},
    "alignment": {"alignment": 256},
    "numerics": {"numerics": Numerics.INTEGER},
    "quantized_allowed": {"quantized_allowed": False},
    "max_partitions": {"max_partitions": 1},
    "min_nodes": {"min_nodes": 2},
    "by_gain": {"by_gain": True},
    "fuse": {"fuse": False},
    "spares_broken_rules": {"spares_broken_rules": True},
    "passes": {"passes": ()},
    "a plugin's pass": {"passes": (Pass("p", lambda graph, context: 0, owner="q"),)},
    "a plugin's rule": {"rules": (_rule("p"),)},
    "the same rule of another": {"rules": (_rule("q"),)},
    "a plugin's op": {"ops": {**builtin_ops(), "X": attrs.evolve(builtin_ops()["TANH"], name="X")}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_the_target_has_counts(name: str) -> None:
    assert key(**CHANGES[name]) != key()
    assert key(**CHANGES[name]).name != key().name


def test_measured_times_do_not_count() -> None:
    """They differ a little wherever and whenever they are measured; a file made with others would
    never be taken on the next machine of the same kind."""
    other = attrs.evolve(ROUND_FIGURES, measured=True, note="another day")
    assert key(by_gain=True, times=other) == key(by_gain=True)


def test_every_field_of_the_target_is_asked() -> None:
    """A field that comes later is part of the key without a word here, or nothing is saved."""

    @attrs.frozen(eq=False, slots=False)
    class Later(Target):
        per_node: Any = None

    def made(value: Any) -> Key:
        return key_of(graph_of(convolved()), Later(**shared, per_node=value), FACTS)

    target = target_of()
    shared = {f.name: getattr(target, f.name) for f in attrs.fields(Target)}
    assert made({1: Precision.F32}) != made({1: Precision.F16})
    assert made({1: Precision.F32}) == made({1: Precision.F32})
    with pytest.raises(SavedModelError, match="function"):
        made(lambda node: Precision.F32)


@pytest.mark.parametrize(
    "changes",
    [{"name": "another"}, {"driver": "driver 1.1"}, {"backend": "vulkan"}, {"vendor": "amd"}],
)
def test_the_device_and_its_driver_count(changes: dict[str, str]) -> None:
    assert facts_of(attrs.evolve(INFO, **changes), DeviceCaps(), ()) != facts_of(
        INFO, DeviceCaps(), ()
    )


def test_capabilities_that_no_target_has_count_too() -> None:
    assert facts_of(INFO, DeviceCaps(compute_units=8), ()) != facts_of(INFO, DeviceCaps(), ())


@pytest.mark.parametrize("name", ["tflgpu", "language", "python", "numpy"])
def test_versions_are_named(name: str) -> None:
    assert dict(facts_of(INFO, DeviceCaps(), ()))[name]


def test_a_plugin_counts_with_every_line_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "tflgpu_outside"
    package.mkdir()
    (package / "plugin.py").write_text("A = 1\n")
    module, top = ModuleType("tflgpu_outside.plugin"), ModuleType("tflgpu_outside")
    top.__path__ = [str(package)]
    monkeypatch.setitem(__import__("sys").modules, "tflgpu_outside", top)
    plugin = Plugin("outside", "a-distribution", module)

    def said() -> str:
        stamp.cache_clear()
        return dict(facts_of(INFO, DeviceCaps(), [plugin]))[f"plugin {plugin}"]

    before = said()
    assert said() == before
    (package / "plugin.py").write_text("A = 2\n")
    assert said() != before


def test_a_plugin_that_is_an_object_counts_with_the_code_of_its_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class is the standard library's, which does not change with it."""
    (tmp_path / "outside_hooks.py").write_text("def tflgpu_probe(backend): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    hooks = importlib.import_module("outside_hooks")
    target = SimpleNamespace(tflgpu_probe=hooks.tflgpu_probe)
    plugin = Plugin("outside", "a-distribution", target)

    def said() -> str:
        stamp.cache_clear()
        return dict(facts_of(INFO, DeviceCaps(), [plugin]))[f"plugin {plugin}"]

    before = said()
    (tmp_path / "outside_hooks.py").write_text("def tflgpu_probe(backend): 1/0\n")
    assert said() != before
    with pytest.raises(SavedModelError, match="no folder of its own"):
        facts_of(INFO, DeviceCaps(), [Plugin("odd", "a-distribution", SimpleNamespace())])


def test_code_that_is_not_to_be_found_is_not_guessed_about() -> None:
    with pytest.raises(SavedModelError, match="no folder of its own"):
        facts_of(
            INFO, DeviceCaps(), [Plugin("odd", "a-distribution", ModuleType("nowhere_at_all"))]
        )


def test_a_file_for_something_else_says_what_differs() -> None:
    graph, compiled, mine = compiled_small(convolved())
    data = memoryview(bytes_of(compiled, graph, mine))
    newer = key_of(graph, target_of(), (*FACTS[:2], ("driver", "1.1")))
    with pytest.raises(SavedModelError, match=r"driver: 1\.1 here, 1\.0 there"):
        compiled_in(data, graph, newer, "the file")


# A model's file that somebody writes to while it is in use: what it becomes is kept for nobody.


def content(weight: float) -> bytes:
    weights = np.full((5, 6), weight, np.float32)
    return small_model(
        {"x": (1, 6), "w": tensor_of((5, 6), data=weights), "y": (1, 5)},
        "y = FULLY_CONNECTED(x, w, -)",
    )


def opened(tmp_path: Path, model: Path | bytes | bytearray) -> tflgpu.Interpreter:
    folder = str(tmp_path / "kept")
    delegate = tflgpu.GpuDelegate(
        backend="cpu_ref", device=1, serialization_dir=folder, model_token="token"
    )
    given = {"model_path": model} if isinstance(model, Path) else {"model_content": model}
    return tflgpu.Interpreter(**given, experimental_delegates=[delegate])


def sums(interpreter: tflgpu.Interpreter, rows: int) -> float:
    interpreter.resize_tensor_input(0, (rows, 6))
    allocate_and_run(interpreter, {0: np.ones((rows, 6), np.float32)})
    return float(interpreter.get_tensor(2)[0, 0])


def later(path: Path) -> None:
    """A clock is coarse: two writes may have one time."""
    time = path.stat().st_mtime_ns + 1_000_000_000
    os.utime(path, ns=(time, time))


@pytest.mark.parametrize("cut", [False, True])
def test_a_file_that_is_written_over_is_not_compiled(tmp_path: Path, cut: bool) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(content(1))
    with opened(tmp_path, path) as interpreter:
        assert sums(interpreter, 1) == 6
        with path.open("r+b") as file:
            if cut:
                file.truncate(0)
            else:
                file.write(content(2))
        later(path)
        with pytest.raises(tflgpu.TflgpuError, match=r"model\.tflite: somebody wrote to the file"):
            sums(interpreter, 3)
    # What has been kept is of the file that was opened.
    path.write_bytes(content(1))
    with opened(tmp_path, path) as interpreter:
        assert sums(interpreter, 3) == 6


@pytest.mark.parametrize("kept", [False, True])
def test_a_file_that_is_written_over_as_weights_are_uploaded_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Large weights are read from the file when they are uploaded."""
    weights = np.ones((300, 300), np.float16)
    model = small_model(
        {
            "x": (1, 300), "h": tensor_of((300, 300), DType.F16, data=weights),
            "w": (300, 300), "y": (1, 300),
        },
        "w = DEQUANTIZE(h)", "y = FULLY_CONNECTED(x, w, -)",
    )  # fmt: skip
    path = tmp_path / "model.tflite"
    path.write_bytes(model)
    if kept:
        with opened(tmp_path, path) as interpreter:
            interpreter.allocate_tensors()
    read = Weights.array

    def overwritten(self: Weights) -> Array:
        path.write_bytes(model.replace(weights.tobytes(), (weights * 2).tobytes()))
        later(path)
        return read(self)

    with opened(tmp_path, path) as interpreter:
        monkeypatch.setattr(Weights, "array", overwritten)
        with pytest.raises(tflgpu.TflgpuError, match=r"model\.tflite: somebody wrote to the file"):
            interpreter.allocate_tensors()


def test_memory_that_is_written_over_is_not_compiled(tmp_path: Path) -> None:
    given = bytearray(content(1))
    with opened(tmp_path, given) as interpreter:
        assert sums(interpreter, 1) == 6
        given[:] = content(2)
        with pytest.raises(tflgpu.TflgpuError, match=r"the memory .* has been changed"):
            sums(interpreter, 3)
    with opened(tmp_path, content(1)) as interpreter:
        assert sums(interpreter, 3) == 6


def test_a_file_that_is_replaced_or_touched_stays_in_use(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(content(1))
    with opened(tmp_path, path) as interpreter:
        assert sums(interpreter, 1) == 6
        later(path)
        assert sums(interpreter, 2) == 6
        other = tmp_path / "other"
        other.write_bytes(content(2))
        other.replace(path)
        assert sums(interpreter, 3) == 6
        path.unlink()
        assert sums(interpreter, 4) == 6
    assert len(entries(tmp_path / "kept" / "token" / "models")) == 4


# A file that was read before is read where somebody asks, and says the same.


MODELS = ["mobilenet_v2_1.0_224_ptq_int8", "movie_review_nl_classifier", "dtln_model_quant_1"]


def told(tensor: TensorInfo) -> tuple[object, ...]:
    data = None if tensor.data is None else (tensor.data.shape, tensor.data.tobytes())
    return (
        tensor.index, tensor.name, tensor.shape, tensor.shape_signature, tensor.dtype, data,
        tensor.quantization, tensor.is_variable, tensor.has_rank, tensor.buffer,
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_it_says_what_the_whole_says(name: str, models_dir: Path) -> None:
    path = models_dir / f"{name}.tflite"
    whole, later = read_model(path), read_model(path, lambda data: True)
    assert isinstance(later, LaterModel)
    assert later._whole._found is None
    assert later.signatures == whole.signatures
    assert len(later.subgraphs) == len(whole.subgraphs)
    for mine, theirs in zip(later.subgraphs, whole.subgraphs, strict=True):
        assert (mine.name, mine.inputs, mine.outputs) == (
            theirs.name,
            theirs.inputs,
            theirs.outputs,
        )
        assert len(mine.tensors) == len(theirs.tensors)
        for index in {*mine.inputs, *mine.outputs, 0, -1}:
            assert told(mine.tensors[index]) == told(theirs.tensors[index])
    assert later._whole._found is None
    assert later.main.operators == whole.main.operators
    assert later._whole._found is not None
    assert list(map(told, later.main.tensors)) == list(map(told, whole.main.tensors))
    assert (later.version, later.description) == (whole.version, whole.description)
    assert later.operator_codes == whole.operator_codes
    assert later.metadata.keys() == whole.metadata.keys()


def test_a_damaged_file_is_refused_where_it_is_read(models_dir: Path) -> None:
    """Nobody vouches for one; should it happen, it is an error like another."""
    data = bytearray((models_dir / "tflm_mnist_lstm_fp32.tflite").read_bytes())
    data[0:4] = b"\xff\xff\xff\x7f"
    with pytest.raises(ModelError):
        read_model(bytes(data), lambda given: True)


def test_there_is_no_tensor_beyond_the_last(models_dir: Path) -> None:
    later = read_model(models_dir / "tflm_mnist_lstm_fp32.tflite", lambda data: True)
    with pytest.raises(IndexError):
        later.main.tensors[len(later.main.tensors)]
