"""Ways to run a model that are timed against each other: tflgpu with some options, LiteRT on the
CPU, LiteRT on a GPU.

All do the same work: from NumPy inputs to NumPy outputs of their own, in three steps.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
import numpy as np

from tflgpu.compiler.report import DelegationReport
from tflgpu.contract.memory_use import CountsMemory, MemoryUse
from tflgpu.contract.offers import offers
from tflgpu.errors import DeviceError, UnsupportedError
from tflgpu.interpreter import Interpreter
from tflgpu.interpreter.callers import Pool
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.ir.dtypes import Array
from tflgpu.options import DelegateOptions
from tflgpu.runtime.provider import shared_provider
from tflgpu.tflite.read import read_model
from tflgpu.tools.load import TimedCalls, by_threads, in_flight, one_by_one
from tflgpu.tools.runs import Runner, random_inputs, run_once

#: Seconds that a process which tries LiteRT's GPU accelerator may take.
_PROBE_SECONDS = 300

#: Inputs by tensor index.
Inputs = Mapping[int, Array]


class OpenedRuntime(Protocol):
    """A model that is ready to run."""

    @property
    def note(self) -> str:
        """What a reader of its times should know."""

    def put(self, inputs: Inputs) -> None:
        """Copy the inputs to where the next `invoke` reads them."""

    def invoke(self) -> None:
        """Run the model."""

    def take(self) -> list[Array]:
        """Copies of the outputs, in the model's order."""

    def close(self) -> None:
        """Release everything."""


@attrs.frozen
class Contestant:
    """A way to run a model.

    Attributes:
        name: Runtime and backend.
        precision: "f32", "f16" or "f32_f16"; "" where the options do not say.
        open: From a model's file and the number of items in a run to something that runs. Raises
            what the runtime raises.
        options: Of tflgpu's; None for another runtime.
    """

    name: str
    precision: str
    open: Callable[[Path, int], OpenedRuntime]
    options: DelegateOptions | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.precision}".strip()


class OnTflgpu:
    """tflgpu's interpreter. Where the options name no device it has the default delegate, as
    `tflgpu.Interpreter` without a delegate has.

    Attributes:
        delegate: Its device; None where that is the default one.
        interpreter: Allocated.
    """

    def __init__(
        self,
        path: Path,
        options: DelegateOptions,
        batch: int = 1,
        in_flight: int = 1,
        delegate: GpuDelegate | None = None,
    ) -> None:
        self._path, self._options = path, options
        self.delegate = own_delegate(options) if delegate is None else delegate
        delegates: Any = options if self.delegate is None else [self.delegate]
        try:
            self.interpreter = Interpreter(
                str(path), experimental_delegates=delegates, batch=batch, max_in_flight=in_flight
            )
            self.interpreter.allocate_tensors()
        except BaseException:
            self._close_delegate()
            raise
        self._outputs = [int(d["index"]) for d in self.interpreter.get_output_details()]
        self._pool: Pool | None = None

    @property
    def report(self) -> DelegationReport:
        """Where the model's operators run."""
        return self.interpreter.report

    @property
    def memory(self) -> MemoryUse | None:
        """What is allocated on its device; None where the device does not tell, or there is
        none."""
        if self.delegate is not None:
            device = self.delegate.device
        elif not self.report.backend:
            return None
        else:
            device = shared_provider(self._options).device  # the interpreter's own
        return device.memory if offers(device, CountsMemory) else None

    @property
    def note(self) -> str:
        """Where the operators run."""
        report = self.report
        if not report.backend:
            return report.summary
        text = f"{report.delegated_nodes} of {report.total_nodes} operators on {report.device}"
        if report.partitions != 1:
            text += f", {report.partitions} parts"
        if report.precision != self._options.wanted_precision.value:
            text += f", in {report.precision}, since it lacks the other"
        return text

    def put(self, inputs: Inputs) -> None:
        """Copy arrays into the inputs, by position."""
        for index, array in inputs.items():
            self.interpreter.set_tensor(index, array)

    def invoke(self) -> None:
        """Run the model."""
        self.interpreter.invoke()

    def take(self) -> list[Array]:
        """Copies of the outputs, by position."""
        return [self.interpreter.get_tensor(i) for i in self._outputs]

    def in_flight(self, depth: int, sets: Sequence[Inputs], least: int) -> TimedCalls:
        """Calls of one thread that has so many runs under way."""
        return in_flight(self.interpreter, depth, sets, least=least)

    def by_threads(
        self, threads: int, copies: int, batch: int, sets: Sequence[Inputs], least: int
    ) -> TimedCalls:
        """Calls of so many threads, each with one item, to a pool of copies of the model."""
        if self._pool is None:
            given: dict[str, Any] = {"delegates": [self.delegate]}
            if self.delegate is None:
                every = attrs.asdict(self._options, recurse=False)
                given = {name: value for name, value in every.items() if value is not None}
            sizes = sorted({1, batch})
            self._pool = Pool(str(self._path), size=copies, batch=batch, sizes=sizes, **given)
        caller = one_by_one(self._pool, [list(inputs.values()) for inputs in sets])
        return by_threads(caller, threads, least=-(-least // threads))

    def close(self) -> None:
        """Release everything that this object opened."""
        if self._pool is not None:
            self._pool.close()
        self.interpreter.close()
        self._close_delegate()

    def _close_delegate(self) -> None:
        if self.delegate is not None:
            self.delegate.close()


def own_delegate(options: DelegateOptions) -> GpuDelegate | None:
    """A delegate, where the options name a backend or device; None stands for the default one."""
    named = options.backend is not None or options.device is not None
    return GpuDelegate(options) if named else None


def on_tflgpu(options: DelegateOptions, in_flight: int = 1) -> Contestant:
    """A way to run a model by tflgpu; ``in_flight`` is what `OnTflgpu.in_flight` takes at most."""
    name = f"tflgpu {options.backend}" if options.backend else "tflgpu"
    precision = options.wanted_precision.value

    def open_(path: Path, batch: int) -> OnTflgpu:
        return OnTflgpu(path, options, batch, in_flight)

    return Contestant(name, precision, open_, options)


class LiteRTCpu:
    """LiteRT's interpreter with its default delegate, XNNPACK. It runs the items of a batch one
    after another."""

    def __init__(self, path: Path, threads: int, batch: int = 1) -> None:
        from ai_edge_litert.interpreter import Interpreter as LiteRT

        self.interpreter: Runner = LiteRT(model_content=path.read_bytes(), num_threads=threads)
        self.interpreter.allocate_tensors()
        self._outputs = [int(d["index"]) for d in self.interpreter.get_output_details()]
        self._batch = batch
        self._items: list[Inputs] = []
        self._results: list[list[Array]] = []
        self.note = f"{threads} threads" + (", item by item" if batch > 1 else "")

    def put(self, inputs: Inputs) -> None:
        """Copy arrays into the inputs, by position."""
        if self._batch > 1:
            counted = range(self._batch)
            self._items = [{i: a[n : n + 1] for i, a in inputs.items()} for n in counted]
            return
        for index, array in inputs.items():
            self.interpreter.set_tensor(index, array)

    def invoke(self) -> None:
        """Run the model."""
        if self._batch > 1:
            self._results = [run_once(self.interpreter, item) for item in self._items]
        else:
            self.interpreter.invoke()

    def take(self) -> list[Array]:
        """Copies of the outputs, by position."""
        if self._batch > 1:
            return [np.concatenate(parts) for parts in zip(*self._results, strict=True)]
        return [self.interpreter.get_tensor(i) for i in self._outputs]

    def close(self) -> None:
        """Let go of LiteRT's interpreter, which is released with its last reference."""
        del self.interpreter


def litert_cpu(threads: int) -> Contestant:
    """LiteRT on the CPU, by which speed and accuracy are measured."""
    return Contestant("LiteRT CPU", "f32", lambda path, batch: LiteRTCpu(path, threads, batch))


class LiteRTGpu:
    """LiteRT's `CompiledModel` on its GPU accelerator, where need be with its CPU for the rest."""

    def __init__(self, path: Path, *, half: bool) -> None:
        from ai_edge_litert import compiled_model, hardware_accelerator, options

        kinds = hardware_accelerator.HardwareAccelerator

        def compiled(accelerators: hardware_accelerator.HardwareAccelerator) -> Any:
            gpu = options.GpuOptions(enforce_f32=not half)
            given = options.Options(hardware_accelerators=accelerators, gpu_options=gpu)
            return compiled_model.CompiledModel.from_file(str(path), options=given)

        try:
            self._model = compiled(kinds.GPU)
        except RuntimeError:
            self._model = compiled(kinds.GPU | kinds.CPU)
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
        indices = [int(d["index"]) for d in details]
        self._order = [indices.index(i) for i in read_model(str(path)).main.outputs]

    def put(self, inputs: Inputs) -> None:
        """Copy arrays into the inputs, by position."""
        for index, array in inputs.items():
            self._inputs[self._positions[index]].write(array)

    def invoke(self) -> None:
        """Run the model; what the device has not finished, `take` waits for."""
        self._model.run_by_index(0, self._inputs, self._outputs)

    def take(self) -> list[Array]:
        """Copies of the outputs, by position."""
        read = [
            buffer.read(int(np.prod(shape, dtype=np.int64)), dtype).reshape(shape)
            for buffer, (shape, dtype) in zip(self._outputs, self._specs, strict=True)
        ]
        return [read[i] for i in self._order]

    def close(self) -> None:
        """Release buffers, then the model they belong to."""
        for buffer in (*self._inputs, *self._outputs):
            buffer.destroy()
        self._model.close()


def litert_gpu(precision: str) -> Contestant:
    """LiteRT on its GPU, "f32" or "f16"; opened in a process of its own first, since it may end the
    process."""
    return Contestant("LiteRT GPU", precision, partial(_open_litert_gpu, precision))


def _open_litert_gpu(precision: str, path: Path, batch: int) -> LiteRTGpu:
    if batch > 1:
        raise UnsupportedError("LiteRT's GPU accelerator runs the batch that the file has")
    done = probe_litert_gpu(path, precision)
    if done.returncode:
        lines = [n.strip() for n in done.stderr.splitlines() if n.startswith("ERROR")]
        said = lines[0] if lines else "it said nothing"
        raise DeviceError(f"a process that tried it ended with code {done.returncode}: {said}")
    return LiteRTGpu(path, half=precision == "f16")


def probe_litert_gpu(path: Path, precision: str) -> subprocess.CompletedProcess[str]:
    """Run a model once on LiteRT's GPU in a process of its own: exit code 0 where it works, and its
    log.

    Raises:
        RuntimeError: it took too long.
    """
    command = [sys.executable, "-m", "tflgpu.tools.contestants", str(path), precision]
    try:
        return subprocess.run(  # noqa: S603  (our own program)
            command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it hung for {_PROBE_SECONDS} s") from None


def _probe() -> None:
    path, precision = Path(sys.argv[1]), sys.argv[2]
    inputs = random_inputs(LiteRTCpu(path, 1).interpreter, np.random.default_rng(0))
    opened = LiteRTGpu(path, half=precision == "f16")
    opened.put(inputs)
    opened.invoke()
    opened.take()
    print(opened.note)  # noqa: T201
    opened.close()


if __name__ == "__main__":
    _probe()
