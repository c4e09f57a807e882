"""A third party's backend with one fault, and models to meet it with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import tflgpu
from tflgpu.compiler.references import reference_support
from tflgpu.contract.device import API_VERSION, BackendInfo, DeviceInfo, Probe
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.rule import Unsupported
from tflgpu.plugins import registry as plugins
from tflgpu.plugins.hookspecs import hookimpl
from tflgpu.plugins.registry import Registry
from tflgpu.plugins.sources import Plugin
from tflgpu.runtime.reference import ReferenceRecording
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.running import allocated

#: How errors name whoever is to blame.
WHO = r"backend toy \(plugin toy-plugin from toy-package\)"

INFO = DeviceInfo("toy", 0, "Toy", is_gpu=True)


class NodeRecording:
    """A good recording that runs nodes."""

    def __init__(self, run: Any) -> None:
        self._inner = ReferenceRecording(run)
        self.inputs, self.outputs = list(self._inner.inputs), list(self._inner.outputs)

    def run(self) -> None:
        self._inner.run()

    def submit(self) -> Any:
        return self._inner.submit()

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        return Unsupported("the toy has no buffers")

    def profile(self) -> Any:
        self._inner.run()
        return ()

    def close(self) -> None:
        self._inner.close()


class NodeToy:
    """A good `NodeDevice`."""

    recording: Any = NodeRecording

    def __init__(self) -> None:
        self.info, self.caps = INFO, DeviceCaps()
        self.closed = 0

    def supports(self, node: Any, ops: Any) -> Any:
        return reference_support(node, ops)

    def load_nodes(self, run: Any) -> Any:
        return self.recording(run)

    def close(self) -> None:
        self.closed += 1


class PlanRecording:
    """A good recording of a plan."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.inputs, self.outputs = list(inner.inputs), list(inner.outputs)

    def run(self) -> None:
        self._inner.run()

    def submit(self) -> Any:
        return self._inner.submit()

    def bind(self, inputs: Any = None, outputs: Any = None) -> Any:
        return self._inner.bind(inputs, outputs)

    def profile(self) -> Any:
        return self._inner.profile()

    def close(self) -> None:
        self._inner.close()


class PlanToy:
    """A good `Device`: the kernel interpreter's."""

    recording: Any = PlanRecording

    def __init__(self) -> None:
        from tflgpu_cpu_ref.device import CpuRefDevice

        self._inner = CpuRefDevice()
        self.info, self.caps, self.alignment = INFO, self._inner.caps, 64

    def load(self, plan: Any, *, guard_bands: bool = False) -> Any:
        return self.recording(self._inner.load(plan, guard_bands=guard_bands))

    def allocate(self, nbytes: int) -> Any:
        return self._inner.allocate(nbytes)

    def import_buffer(self, source: object) -> Any:
        return self._inner.import_buffer(source)

    def source(self, kernel: Any) -> str:
        return self._inner.source(kernel)

    def close(self) -> None:
        self._inner.close()


def hooks(device: Callable[[], Any], **others: Any) -> Any:
    """The plugin of a backend whose device ``device`` makes; ``others`` are more hooks."""
    made: dict[str, Any] = {
        "register_backends": lambda: [BackendInfo("toy", API_VERSION, rank=50)],
        "probe": lambda backend: Probe(True, devices=(INFO,)) if backend == "toy" else None,
        "open_device": lambda backend, index, options: device() if backend == "toy" else None,
        **others,
    }
    return plugin_of(**made)


class _Module(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def plugin_of(**made: Any) -> Any:
    """A plugin of some hooks."""
    return _Module(**{f"tflgpu_{name}": hookimpl(function) for name, function in made.items()})


def registry_of(target: Any, *, broken: bool = False) -> Registry:
    """The plugin beside the reference backend."""
    from tflgpu_cpu_ref import plugin as cpu_ref

    found = Registry(
        [Plugin("toy-plugin", "toy-package", target), Plugin("cpu_ref", "tflgpu", cpu_ref)]
    )
    assert bool(found.failures) == broken, found.failures
    return found


def install(monkeypatch: Any, target: Any) -> None:
    """As if the plugin were installed."""
    for name in ("TFLGPU_BACKEND", "TFLGPU_DEVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(plugins, "_registry", registry_of(target))


X = np.array([[0.5, -1, 2], [0, 1, -3]], np.float32)
WANTED = np.tanh(np.maximum(X, 0))


def model(ops: tuple[str, ...] = ("RELU", "TANH"), *, custom: str | None = None) -> bytes:
    """A chain of ops on a tensor of 2 x 3."""
    names = [*ops, *([custom] if custom else [])]
    tensors = [TensorSpec(f"t{i}", (2, 3)) for i in range(len(names) + 1)]
    operators = [OperatorSpec(name, {}, (i,), (i + 1,)) for i, name in enumerate(names)]
    return write_model(ModelSpec(tensors, operators, (0,), (len(names),)))


def run(content: bytes | None = None, runs: int = 2, **options: Any) -> tuple[Any, Any]:
    """The result for X, and the report."""
    content = model() if content is None else content
    with (
        tflgpu.GpuDelegate(**options) as delegate,
        allocated(
            tflgpu.Interpreter(model_content=content, experimental_delegates=[delegate])
        ) as opened,
    ):
        opened.set_tensor(opened.get_input_details()[0]["index"], X)
        for _ in range(runs):
            opened.invoke()
        y = opened.get_tensor(opened.get_output_details()[0]["index"])
        return y, opened.report


def with_methods(base: type, **changes: Any) -> type:
    """A class of which some methods or attributes are others."""
    return type(base.__name__, (base,), dict(changes))


#: Whatever code may raise.
ERRORS: Mapping[str, BaseException] = {
    "key": KeyError("x"),
    "value": ValueError("no such thing"),
    "attribute": AttributeError("gone"),
    "memory": MemoryError(),
    "ours": tflgpu.errors.KernelError("ill-typed"),
    "device": tflgpu.errors.DeviceError("lost"),
}


def raising_hook(error: BaseException) -> Callable[[str], Any]:
    """The same as a hook of a backend: pluggy reads the names of its arguments."""

    def fail(backend: str) -> Any:
        raise error

    return fail


KINDS = {"nodes": NodeToy, "plans": PlanToy}
#: The method by which each takes its part of a model.
LOAD = {"nodes": "load_nodes", "plans": "load"}


def device(kind: str, **changes: Any) -> Callable[[], Any]:
    """What makes a device with a fault."""
    return with_methods(KINDS[kind], **changes)


def with_recording(kind: str, **changes: Any) -> Callable[[], Any]:
    """What makes a device whose recordings have a fault."""
    return device(kind, recording=with_methods(KINDS[kind].recording, **changes))


def read_only(arrays: Any) -> Any:
    """The arrays, which cannot be written any more."""
    for array in arrays:
        array.flags.writeable = False
    return arrays
