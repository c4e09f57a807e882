"""`Interpreter`: a model, ready to run, with the methods of `tf.lite.Interpreter`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from tflgpu.backend_kit.forks import OfProcess
from tflgpu.backend_kit.run_guard import Closable, RunGuard
from tflgpu.compiler.report import DelegationReport
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import InputError, UnsupportedError
from tflgpu.errors.blame import shown
from tflgpu.interpreter.arguments import as_index, cpu_options, load, resolver_of, threads_of
from tflgpu.interpreter.bound_runs import BoundRuns
from tflgpu.interpreter.buffer_methods import BufferMethods
from tflgpu.interpreter.copies import TensorCache
from tflgpu.interpreter.delegate_methods import DelegateMethods
from tflgpu.interpreter.details import ModelDetails
from tflgpu.interpreter.gpu_delegate import GpuDelegate, provider_of
from tflgpu.interpreter.invocation import Invocation, Lanes
from tflgpu.interpreter.session_opener import SessionOpener, is_kept
from tflgpu.interpreter.signatures import SignatureMethods
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.interpreter.tensor_memory import TensorMemory
from tflgpu.ir.dtypes import Array
from tflgpu.options import OpResolverType, truth
from tflgpu.options.kinds import WholeNumber
from tflgpu.plugins.registry import registry

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self


_MAIN = 0


class Interpreter(
    Closable,
    OfProcess,
    SignatureMethods,
    DelegateMethods,
    BufferMethods,
    ModelDetails,
):
    """Runs a `.tflite` model, on the best GPU there is where no delegate is named.

        interpreter = tflgpu.Interpreter("model.tflite")
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
        interpreter.invoke()
        scores = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    Methods, arguments, results and types of exceptions are those of `tf.lite.Interpreter`, so a
    program changes by one import. Beyond it: `report`, `close`, use in a ``with``
    statement, and inputs and outputs in memory of the caller's (`bind_input`, `bind_output`).
    Stricter than it: constants cannot be set, only inputs can be resized, and sizes must be whole
    numbers.

    Any values are allowed as inputs, NaN and infinities too. One thread at a time may use an
    interpreter; a call that comes while another thread's is running raises `StateError`, and so
    does one from inside a call of the same thread (by a signal's handler, say).
    """

    #: Of custom operators in native code: see `InterpreterWithCustomOps`.
    _registerers: Sequence[Any] = ()

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        model_content: bytes | bytearray | memoryview | None = None,
        experimental_delegates: Iterable[GpuDelegate] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: OpResolverType = OpResolverType.AUTO,
        experimental_preserve_all_tensors: bool = False,
        experimental_disable_delegate_clustering: bool = False,
        experimental_default_delegate_latest_features: bool = False,
        experimental_compress_quantization_zero_points: bool = False,
        experimental_disable_delegate_node_fusion: bool = False,
        experimental_force_delegate_node_profiling: bool = False,
        *,
        cpu_backend: str | None = None,
        max_in_flight: int = 2,
        batch: int = 1,
    ) -> None:
        """Read a model.

        Args:
            model_path: Path of a `.tflite` file; it is mapped, and must not be changed in use.
            model_content: Or its bytes.
            experimental_delegates: At most one `GpuDelegate`. It stays the caller's, may serve
                several interpreters, and must be closed after them. None is the default delegate:
                the best GPU there is (not a device that computes on the CPU), opened when tensors
                are allocated, shared by the interpreters of a process, and closed with the last of
                them. What it cannot do runs on the CPU. ``[]`` is no delegate; so is None where
                the environment variable TFLGPU_DEFAULT_DELEGATE is 0.
            num_threads: Threads of LiteRT's kernels, for what runs on the CPU; None is the
                delegate's option. Without effect where NumPy runs it, which has threads of its own.
            experimental_op_resolver_type: Which of LiteRT's kernels run what runs on the CPU:
                BUILTIN_REF are its reference kernels, AUTO and BUILTIN use XNNPACK where that
                takes a model. AUTO is the delegate's option. Without effect where NumPy runs it.
                BUILTIN_REF and BUILTIN_WITHOUT_DEFAULT_DELEGATES bring no default delegate.
            experimental_preserve_all_tensors: Keep intermediate tensors readable. The delegate
                takes what it takes otherwise, but merges no operators, and every result goes to
                host memory: slower, and more memory.
            experimental_disable_delegate_clustering: Without effect: operators only change places
                where neither sees the other's results or state.
            experimental_default_delegate_latest_features: Without effect: the default delegate has
                no features behind a flag.
            experimental_compress_quantization_zero_points: Details give one zero point for a
                tensor whose channels all have the same. No memory is saved.
            experimental_disable_delegate_node_fusion: Each operator has kernels of its own on the
                device, and no operators are merged; only what no input has a say in is computed
                beforehand. For finding out which operator is wrong or slow.
            experimental_force_delegate_node_profiling: Without effect: it is about TFLite's
                profiler, which its Python interpreter does not give access to. `profile` has the
                device's times by kernel.
            cpu_backend: What runs what the delegate does not, or everything without one: "litert"
                (LiteRT's kernels, from ai-edge-litert) or "cpu_ref" (NumPy). None is the
                delegate's option, then the environment variable TFLGPU_CPU_BACKEND, then LiteRT
                where it is installed and NumPy, with a warning, where it is not.
            max_in_flight: Most runs of `invoke_async` at a time. Each takes the model's memory once
                more, on the device too; none is taken before it is called.
            batch: Items that a run computes at once, of a model for one: inputs and outputs whose
                leading dimension is 1 have this many there (docs/async.md). 1 is the file as it is.

        Raises:
            ModelError: no such file, or not a well-formed model.
            OptionError: both or neither of path and content, or an argument out of its range.
            ArgumentError: a path that is not one, or content that is not bytes.
            UnsupportedError: a batch of a model that does not compute items apart from one another.
            PluginError: plugins that clash.
        """
        threads = threads_of(num_threads)
        for name, value in (
            ("experimental_disable_delegate_clustering", experimental_disable_delegate_clustering),
            (
                "experimental_default_delegate_latest_features",
                experimental_default_delegate_latest_features,
            ),
            (
                "experimental_force_delegate_node_profiling",
                experimental_force_delegate_node_profiling,
            ),
        ):
            truth(name, value)
        resolver = resolver_of(experimental_op_resolver_type)
        self._busy = RunGuard("this interpreter", waits=False)
        preserve_all = truth("experimental_preserve_all_tensors", experimental_preserve_all_tensors)
        fuse = not truth(
            "experimental_disable_delegate_node_fusion", experimental_disable_delegate_node_fusion
        )
        self._compress = truth(
            "experimental_compress_quantization_zero_points",
            experimental_compress_quantization_zero_points,
        )
        self._most = WholeNumber().read("max_in_flight", max_in_flight)
        self._lanes: Lanes | None = None
        options, provider = provider_of(experimental_delegates, resolver)
        digest: list[str] = []
        self._model = load(model_path, model_content, partial(is_kept, provider, options, digest))
        asked = cpu_options(options, cpu_backend, threads, resolver)
        self._cpu = CpuSide(registry(), asked, registerers=self._registerers)
        self._opener = SessionOpener(
            self._model,
            registry().ops(),
            options,
            provider,
            self._cpu,
            preserve_all,
            fuse,
            "".join(digest),
        )
        if WholeNumber().read("batch", batch) > 1:
            from tflgpu.interpreter.batching import Batching  # few models are for several items

            batching = Batching(self._model, registry().ops(), self._cpu.infer, batch)
            self._opener.batching, self._model = batching, batching.view()
        self._subgraphs: dict[int, Subgraph] = {}
        self._bound: dict[int, BoundRuns] = {}
        self._caches: dict[str, TensorMemory] = {}
        self._main = self._subgraph(0)

    # Running

    def allocate_tensors(self) -> None:
        """Prepare the model for running at the shapes its inputs have now.

        Raises:
            AllocationError: the operators do not work out at these shapes.
            UnsupportedError: an operator that neither the device nor the CPU can run.
            DeviceError: the device could not take its part.
            StateError: closed, in use, or a view made by `tensor` is still held.
        """
        with self._busy:
            self._main.check_views()
            self._main.allocate()

    def invoke(self) -> None:
        """Run the model on what its inputs hold.

        A run that fails or is interrupted (Ctrl-C) leaves no results, and the inputs as they are.
        Where it leaves the device's part unusable, the next call prepares that anew by itself,
        as `allocate_tensors` does. State tensors may or may not have seen the run.

        Raises:
            StateError: not allocated, closed, in use, a view made by `tensor` is still held, or
                the process was forked since the delegate opened its device.
            DeviceError: the device failed.
        """
        busy = self._busy
        known: TensorCache | None = busy.enter()
        try:
            session = known.session if known else None
            if session is None:
                self._main.check_views()
                self._settle()
                self._main.run()
                if self._lanes is None:
                    busy.shortcut = self._main.shortcut
            else:
                self._main.run(session)
                busy.shortcut = known
        finally:
            busy.leave()

    def invoke_async(self, inputs: Mapping[int, npt.ArrayLike] | None = None) -> Invocation:
        """Begin a run and return; what it gives tells of its end, can be awaited, and has results
        of its own. `get_tensor` knows nothing of it.

        Several may be in flight, up to ``max_in_flight``; a further call first waits for the
        oldest, whose results stay with its `Invocation`. A model that keeps state has one at a
        time: they see each other's state in the order of the calls, and `invoke` the state after
        all of them.

        Args:
            inputs: Values by tensor index, copied before this returns. Inputs that are not named
                are as `set_tensor` left them.

        Raises:
            InputError: an index of no input, or another type or shape than it has.
            StateError, DeviceError: as `invoke`; the latter also from `Invocation.wait`.
        """
        with self._busy.call:
            if inputs is not None and not isinstance(inputs, Mapping):
                raise InputError(
                    f"inputs are values by tensor index, {{0: image}}, not {shown(inputs)}"
                )
            given = {}
            for key, value in (inputs or {}).items():
                index = as_index(key)
                if index not in self._main.info.inputs:
                    raise InputError(f"tensor {index} is no input of the model")
                given[index] = self._main.as_array(index, value)
            with self._busy:
                if not self._main.allocated:
                    self._main.run()  # says what lacks
                self._check_outputs_free()
                if self._lanes is None or not self._lanes.fits:
                    self._close_lanes()
                    self._lanes = Lanes(self._main, self._most, self._opener)
                return self._lanes.begin(given, self._make_lane)

    def reset_all_variables(self) -> None:
        """Set the model's state, if it has any, to what it was before the first run: zero, or the
        stored number that stands for it. Resource variables are as in a model just loaded:
        unassigned, and what CALL_ONCE runs is run again. (LiteRT leaves these as they are.)"""
        with self._busy:
            self._settle()
            self._opener.store.reset()
            for subgraph in self._subgraphs.values():
                subgraph.reset_variables()

    def resize_tensor_input(
        self, input_index: int, tensor_size: Sequence[int] | Array, strict: bool = False
    ) -> None:
        """Give an input another shape; `allocate_tensors` must follow where it differs.

        Args:
            input_index: ``index`` in the input's details.
            tensor_size: The new shape.
            strict: Allow changes only of sizes that are -1 in the input's shape signature.

        Raises:
            ResizeError: not an input, a negative size, or one that ``strict`` forbids.
            InputError: ``tensor_size`` is not a list of whole numbers.
            OptionError: ``strict`` is no truth value.
            StateError: closed, in use, or a view made by `tensor` is still held.
        """
        with self._busy:
            self._main.check_views()
            self._settle()
            self._main.resize(input_index, tensor_size, strict=truth("strict", strict))

    # Tensors

    def set_tensor(self, tensor_index: int, value: npt.ArrayLike) -> None:
        """Copy ``value`` into an input. Its type and shape must be the input's.

        Raises:
            InputError: no such tensor, or another type or shape.
            StateError: not allocated, closed or in use.
        """
        known: TensorCache | None = self._busy.shortcut
        if known and known.put(tensor_index, value, False):
            return
        if type(value) is not np.ndarray:
            value = self._main.as_array(tensor_index, value)
        with self._busy as known:
            if self._lanes is not None and as_index(tensor_index) not in self._main.info.inputs:
                self._settle()  # state comes after the runs in flight
            self._main.set(tensor_index, value)
            self._busy.shortcut = known

    def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Array:
        """An output, an input, a constant, or (if preserved) any tensor, for the caller to keep
        and change (a NumPy scalar where it has no dimensions): a copy, or the memory that the
        device wrote it to, which it gives up.

        Raises:
            InputError: no such tensor or subgraph, or a tensor that is not kept.
            StateError: not allocated, closed or in use.
        """
        known: TensorCache | None = self._busy.shortcut
        is_main = subgraph_index is _MAIN  # and neither False nor 0.0
        if known and is_main:
            found = known.copied(tensor_index, False)
            if found is not None:
                return found
        with self._busy as known:
            self._settle()
            subgraph = self._main if is_main else self._subgraph(subgraph_index)
            found = subgraph.get(tensor_index)
            self._busy.shortcut = known
        return found

    def tensor(self, tensor_index: int) -> Callable[[], Array]:
        """A function that gives a view of a tensor's memory, to read and write without copies.

        Keep the function, not the view: while a view (or a slice of one) is held,
        `allocate_tensors`, `resize_tensor_input` and `invoke` raise `StateError`. A view that is
        still held after `close` stays valid. The function raises as `get_tensor`.
        """

        def view() -> Array:
            with self._busy:
                self._settle()
                return self._main.view(tensor_index)

        return view

    # Beyond tf.lite

    @property
    def report(self) -> DelegationReport:
        """Which operators run on the device, and why the others do not.

        Raises:
            StateError: not allocated, closed or in use.
        """
        with self._busy:
            return self._main.report

    def _safe_to_run(self) -> bool:
        """Whether no view of a tensor is held."""
        with self._busy:
            return not self._main.has_views

    def _ensure_safe(self) -> None:
        """Raise `StateError`, as `invoke` does, where a view made by `tensor` is still held."""
        with self._busy:
            self._main.check_views()

    def _native_handle(self) -> int:
        """In TFLite, the address of a C++ interpreter.

        Raises:
            UnsupportedError: always, as there is none.
        """
        raise UnsupportedError(
            "tflgpu's interpreter is no tflite::Interpreter; code that needs the address of one "
            "runs with ai_edge_litert.interpreter.Interpreter, which takes a GpuDelegate too"
        )

    def __enter__(self) -> Self:
        with self._busy:
            return self

    # Inside

    def _close(self) -> None:
        self._busy.close(self._release)

    def _release(self) -> None:
        # In this order, so that a call that was interrupted can be made again.
        self._close_lanes()
        for subgraph in self._subgraphs.values():
            subgraph.release()
            if subgraph.bound:
                subgraph.bindings.close()
        for runs in self._bound.values():
            runs.close()
        for cache in self._caches.values():
            cache.close()
        self._opener.close()
        self._cpu.close()

    def _subgraph(self, index: int) -> Subgraph:
        index = as_index(index, "a subgraph index")
        found = self._subgraphs.get(index)
        if found is not None:
            return found
        count = len(self._model.subgraphs)
        if not 0 <= index < count:
            raise InputError(
                f"Invalid subgraph index {index} exceeds max subgraph index {count}: there is no "
                f"subgraph {index}. subgraph_index is out of range: {index} for the model, "
                f"which has {count} subgraphs."
            )
        made = self._subgraphs[index] = self._make(index)
        return made

    def _make(self, index: int) -> Subgraph:
        return Subgraph(self._model, index, self._opener)

    def _make_lane(self) -> Subgraph:
        made = self._make(0)
        for index, shape in self._main.resized.items():
            made.resize(index, shape)
        made.allocate()
        return made

    def _settle(self) -> None:
        """State is as after the runs in flight."""
        if self._lanes is not None:
            self._lanes.settle_state()

    def _close_lanes(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
        self._lanes = None
