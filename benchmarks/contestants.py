"""Who takes part: tflgpu on each backend, LiteRT on the CPU, LiteRT on a GPU.

All do the same work in a round: from NumPy inputs to NumPy outputs of their own.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np
from tflgpu import DelegateOptions, GpuDelegate, Interpreter, Precision
from tflgpu.ir.dtypes import Array

_ROOT = Path(__file__).resolve().parents[1]
_PROBE_SECONDS = 300


class Opened(Protocol):
    """A model that is ready to run."""

    @property
    def note(self) -> str:
        """What a reader should know of it."""
        ...

    def run(self, inputs: Mapping[int, Array]) -> list[Array]:
        """Inputs by tensor index; outputs in the model's order."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


@attrs.frozen
class Contestant:
    """A way to run a model.

    Attributes:
        name: Runtime and backend.
        precision: "f32", "f16" or "f32_f16".
        open: From a model's file to something that runs; raises whatever is wrong.
    """

    name: str
    precision: str
    open: Callable[[Path], Opened]

    def __str__(self) -> str:
        return f"{self.name} {self.precision}"


class _Tflgpu:
    def __init__(self, path: Path, options: DelegateOptions) -> None:
        self._delegate = GpuDelegate(options)
        try:
            self._interpreter = Interpreter(str(path), experimental_delegates=[self._delegate])
            self._interpreter.allocate_tensors()
        except BaseException:
            self._delegate.close()
            raise
        self._outputs = [int(d["index"]) for d in self._interpreter.get_output_details()]

    @property
    def note(self) -> str:
        report = self._interpreter.report
        text = f"{report.delegated_nodes} of {report.total_nodes} operators on {report.device}"
        if report.partitions != 1:
            text += f", {report.partitions} parts"
        if report.dispatches:
            text += f", {report.dispatches} dispatches"
        if report.precision != self._delegate.options.wanted_precision.value:
            text += f", in {report.precision}"
        return text

    def run(self, inputs: Mapping[int, Array]) -> list[Array]:
        for index, array in inputs.items():
            self._interpreter.set_tensor(index, array)
        self._interpreter.invoke()
        return [self._interpreter.get_tensor(i) for i in self._outputs]

    def close(self) -> None:
        self._interpreter.close()
        self._delegate.close()


def tflgpu_on(backend: str, precision: str, device: str | None = None) -> Contestant:
    """This project, on one of its backends."""
    where: int | str | None = int(device) if device is not None and device.isdigit() else device

    def open_(path: Path) -> Opened:
        options = DelegateOptions(backend=backend, device=where, precision=Precision(precision))
        return _Tflgpu(path, options)

    return Contestant(f"tflgpu {backend}", precision, open_)


class LiteRTCpu:
    """LiteRT's interpreter with its default delegate, XNNPACK."""

    def __init__(self, path: Path, threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter as LiteRT

        self.interpreter = LiteRT(str(path), num_threads=threads)
        self.interpreter.allocate_tensors()
        self._outputs = [int(d["index"]) for d in self.interpreter.get_output_details()]
        self.note = f"{threads} threads"

    def run(self, inputs: Mapping[int, Array]) -> list[Array]:
        """As `Opened.run`."""
        for index, array in inputs.items():
            self.interpreter.set_tensor(index, array)
        self.interpreter.invoke()
        return [self.interpreter.get_tensor(i) for i in self._outputs]

    def close(self) -> None:
        """It is released with its last reference."""
        del self.interpreter


def litert_cpu(threads: int) -> Contestant:
    """LiteRT on the CPU: the yardstick for speed and accuracy."""
    return Contestant("LiteRT CPU", "f32", lambda path: LiteRTCpu(path, threads))


class LiteRTGpu:
    """LiteRT's `CompiledModel` on its GPU accelerator, where need be with its CPU for the rest."""

    def __init__(self, path: Path, *, half: bool) -> None:
        from ai_edge_litert.compiled_model import CompiledModel
        from ai_edge_litert.hardware_accelerator import HardwareAccelerator
        from ai_edge_litert.options import GpuOptions, Options

        def compiled(accelerators: HardwareAccelerator) -> Any:
            gpu = GpuOptions(enforce_f32=not half)
            options = Options(hardware_accelerators=accelerators, gpu_options=gpu)
            return CompiledModel.from_file(str(path), options=options)

        try:
            self._model = compiled(HardwareAccelerator.GPU)
        except RuntimeError:
            self._model = compiled(HardwareAccelerator.GPU | HardwareAccelerator.CPU)
        whole = self._model.is_fully_accelerated()
        self.note = "whole model on the GPU" if whole else "part of the model on the CPU"
        signature = self._model.get_signature_by_index(0)
        key = signature["key"]
        inputs = self._model.get_input_tensor_details(key)
        outputs = self._model.get_output_tensor_details(key)
        self._inputs = self._model.create_input_buffers(0)
        self._outputs = self._model.create_output_buffers(0)
        self._positions = {int(inputs[n]["index"]): i for i, n in enumerate(signature["inputs"])}
        details = [outputs[n] for n in signature["outputs"]]
        self._specs = [(tuple(d["shape"]), np.dtype(d["dtype"])) for d in details]
        # Signatures may name outputs in another order than the graph.
        self._order = _output_order(path, [int(d["index"]) for d in details])

    def run(self, inputs: Mapping[int, Array]) -> list[Array]:
        """As `Opened.run`."""
        for index, array in inputs.items():
            self._inputs[self._positions[index]].write(array)
        self._model.run_by_index(0, self._inputs, self._outputs)
        read = [
            buffer.read(int(np.prod(shape, dtype=np.int64)), dtype).reshape(shape)
            for buffer, (shape, dtype) in zip(self._outputs, self._specs, strict=True)
        ]
        return [read[i] for i in self._order]

    def close(self) -> None:
        """Release buffers before the model they belong to."""
        for buffer in (*self._inputs, *self._outputs):
            buffer.destroy()
        self._model.close()


def _output_order(path: Path, indices: Sequence[int]) -> list[int]:
    """Positions in ``indices`` of the graph's outputs, in the graph's order."""
    from tflgpu.tflite.read import read_model

    return [indices.index(i) for i in read_model(str(path)).main.outputs]


def litert_gpu(precision: str) -> Contestant:
    """LiteRT on its GPU; opened in a process of its own first, which it may take down."""
    half = precision != "f32"

    def open_(path: Path) -> Opened:
        command = [sys.executable, "-m", "benchmarks.probe_litert_gpu", str(path), precision]
        try:
            done = subprocess.run(
                command, cwd=_ROOT, capture_output=True, text=True, timeout=_PROBE_SECONDS,
                check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"hung for {_PROBE_SECONDS} s in a probe") from None
        if done.returncode:
            lines = [n for n in done.stderr.splitlines() if "Error" in n or "ERROR" in n]
            said = lines[-1].strip() if lines else "it said nothing"
            raise RuntimeError(f"a probe ended with code {done.returncode}: {said}")
        return LiteRTGpu(path, half=half)

    return Contestant("LiteRT GPU", "f16" if half else "f32", open_)
