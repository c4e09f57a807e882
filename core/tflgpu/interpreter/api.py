"""`Interpreter`: a model, ready to run, with the methods of `tf.lite.Interpreter`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from tflgpu.blame import shown
from tflgpu.compiler.report import DelegationReport
from tflgpu.devices.cpu_side import CpuSide
from tflgpu.errors import ArgumentError, InputError, OptionError, StateError
from tflgpu.interpreter.busy import Busy
from tflgpu.interpreter.details import operator_details
from tflgpu.interpreter.signatures import SignatureRunner
from tflgpu.interpreter.subgraph import Subgraph
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Graph
from tflgpu.options import DelegateOptions, OpResolverType, truth
from tflgpu.plugins import registry
from tflgpu.runtime.cpu_session import open_cpu_session
from tflgpu.runtime.session import Session
from tflgpu.tflite.model_file import ModelFile
from tflgpu.tflite.read import read_model

if TYPE_CHECKING:
    from typing_extensions import Self

    from tflgpu.delegate import GpuDelegate


class Interpreter:
    """Runs a `.tflite` model, on a GPU where a `GpuDelegate` is given.

        interpreter = tflgpu.Interpreter("model.tflite",
                                         experimental_delegates=[tflgpu.GpuDelegate()])
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], image)
        interpreter.invoke()
        scores = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    Methods, arguments, results and types of exceptions are those of `tf.lite.Interpreter`, so a
    program changes by one import. Beyond it: `delegation_report`, `close`, and use in a ``with``
    statement. Stricter than it: constants cannot be set, only inputs can be resized, and sizes
    must be whole numbers.

    Any values are allowed as inputs, NaN and infinities too. One thread at a time may use an
    interpreter; a call that comes while another thread's is running raises `StateError`.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None = None,
        model_content: bytes | bytearray | memoryview | None = None,
        experimental_delegates: Iterable[GpuDelegate] | None = None,
        num_threads: int | None = None,
        experimental_op_resolver_type: Any = OpResolverType.AUTO,
        experimental_preserve_all_tensors: bool = False,
        experimental_disable_delegate_clustering: bool = False,
        experimental_default_delegate_latest_features: bool = False,
        *,
        cpu_backend: str | None = None,
    ) -> None:
        """Read a model.

        Args:
            model_path: Path of a `.tflite` file; it is mapped, and must not be changed in use.
            model_content: Or its bytes.
            experimental_delegates: At most one `GpuDelegate`. It stays the caller's, may serve
                several interpreters, and must be closed after them.
            num_threads: Threads of LiteRT's kernels, for what runs on the CPU; None is the
                delegate's option. Without effect where NumPy runs it, which has threads of its own.
            experimental_op_resolver_type: Which of LiteRT's kernels run what runs on the CPU:
                BUILTIN_REF are its reference kernels, AUTO and BUILTIN use XNNPACK where that
                takes a model. AUTO is the delegate's option. Without effect where NumPy runs it.
            experimental_preserve_all_tensors: Keep intermediate tensors readable. Everything
                then runs on the CPU.
            experimental_disable_delegate_clustering: Without effect: operators keep the file's
                order.
            experimental_default_delegate_latest_features: Without effect: there is no default
                delegate.
            cpu_backend: What runs what the delegate does not, or everything without one: "litert"
                (LiteRT's kernels, from ai-edge-litert) or "cpu_ref" (NumPy). None is the
                delegate's option, then the environment variable TFLGPU_CPU_BACKEND, then LiteRT
                where it is installed and NumPy, with a warning, where it is not.

        Raises:
            ModelError: no such file, or not a well-formed model.
            OptionError: both or neither of path and content, or an argument out of its range.
            ArgumentError: a path that is not one, or content that is not bytes.
            PluginError: plugins that clash.
        """
        threads = _threads(num_threads)
        for name, value in (
            ("experimental_disable_delegate_clustering", experimental_disable_delegate_clustering),
            (
                "experimental_default_delegate_latest_features",
                experimental_default_delegate_latest_features,
            ),
        ):
            truth(name, value)
        resolver = _resolver(experimental_op_resolver_type)
        self._busy = Busy()
        self._preserve_all = truth(
            "experimental_preserve_all_tensors", experimental_preserve_all_tensors
        )
        self._model = _load(model_path, model_content)
        self._delegate = _one_delegate(experimental_delegates)
        self._cpu = CpuSide(
            registry(), _cpu_options(self._delegate, cpu_backend, threads, resolver)
        )
        self._ops = registry().ops()
        self._subgraphs: dict[int, Subgraph] = {}
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
            self._check_views()
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
        with self._busy:
            if self._main.has_views:
                self._check_views()
            self._main.run()

    def reset_all_variables(self) -> None:
        """Set the model's state, if it has any, to zero."""
        with self._busy:
            for subgraph in self._subgraphs.values():
                subgraph.reset_variables()

    def resize_tensor_input(self, input_index: int, tensor_size: Any, strict: bool = False) -> None:
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
            self._check_views()
            self._main.resize(input_index, tensor_size, strict=truth("strict", strict))

    # Tensors

    def set_tensor(self, tensor_index: int, value: Any) -> None:
        """Copy ``value`` into an input. Its type and shape must be the input's.

        Raises:
            InputError: no such tensor, or another type or shape.
            StateError: not allocated, closed or in use.
        """
        with self._busy:
            self._main.set(tensor_index, value)

    def get_tensor(self, tensor_index: int, subgraph_index: int = 0) -> Any:
        """An output, an input, a constant, or (if preserved) any tensor, for the caller to keep
        and change: a copy, or the memory that the device wrote it to, which it gives up.

        Raises:
            InputError: no such tensor or subgraph, or a tensor that is not kept.
            StateError: not allocated, closed or in use.
        """
        with self._busy:
            return self._subgraph(subgraph_index).get(tensor_index)

    def tensor(self, tensor_index: int) -> Callable[[], Array]:
        """A function that gives a view of a tensor's memory, to read and write without copies.

        Keep the function, not the view: while a view (or a slice of one) is held,
        `allocate_tensors`, `resize_tensor_input` and `invoke` raise `StateError`. A view that is
        still held after `close` stays valid. The function raises as `get_tensor`.
        """

        def view() -> Array:
            with self._busy:
                return self._main.view(tensor_index)

        return view

    # Details

    def get_input_details(self) -> list[dict[str, Any]]:
        """A dictionary per input: name, index, shape, shape_signature, dtype, quantization,
        quantization_parameters, sparsity_parameters."""
        with self._busy:
            return [self._main.details(i) for i in self._main.info.inputs]

    def get_output_details(self) -> list[dict[str, Any]]:
        """A dictionary per output, as `get_input_details`."""
        with self._busy:
            return [self._main.details(i) for i in self._main.info.outputs]

    def get_tensor_details(self, subgraph_index: int = 0) -> list[dict[str, Any]]:
        """A dictionary per tensor of the file that NumPy has a type for.

        Raises:
            InputError: no such subgraph.
        """
        with self._busy:
            subgraph = self._subgraph(subgraph_index)
            found = []
            for info in subgraph.info.tensors:
                try:
                    found.append(subgraph.details(info.index))
                except InputError:
                    continue
            return found

    def _get_ops_details(self) -> list[dict[str, Any]]:
        """A dictionary per operator of the file: index, op_name, inputs, outputs, types."""
        with self._busy:
            info = self._main.info
            return [operator_details(o, info.tensors) for o in info.operators]

    def num_subgraphs(self) -> int:
        """How many subgraphs the model has."""
        with self._busy:
            return len(self._model.subgraphs)

    # Signatures

    def get_signature_list(self) -> dict[str, dict[str, list[str]]]:
        """Names of inputs and outputs of each signature, by its key."""
        with self._busy:
            return {
                s.key: {"inputs": sorted(s.inputs), "outputs": sorted(s.outputs)}
                for s in self._model.signatures
            }

    def get_signature_runner(self, signature_key: str | None = None) -> SignatureRunner:
        """A function that runs a signature; without a key, the only one.

        Raises:
            InputError: no signature of that key, or no key and not exactly one signature.
        """
        with self._busy:
            known = {s.key: s for s in self._model.signatures}
            listed = ", ".join(map(repr, known)) or "none"
            if signature_key is None:
                if len(known) != 1:
                    raise InputError(
                        f"signature_key is only left out where a model has one signature; "
                        f"this one has {listed}"
                    )
                (signature_key,) = known
            if signature_key not in known:
                raise InputError(f"no signature {shown(signature_key)}; the model has {listed}")
            signature = known[signature_key]
            return SignatureRunner(signature, self._subgraph(signature.subgraph), self._busy)

    # Beyond tf.lite

    @property
    def keeps_state(self) -> bool:
        """Whether results depend on earlier runs: the file has variables.

        Raises:
            StateError: closed, or in use.
        """
        with self._busy:
            return any(t.is_variable for s in self._model.subgraphs for t in s.tensors)

    def delegation_report(self) -> DelegationReport:
        """Which operators run on the device, and why the others do not.

        Raises:
            StateError: not allocated, closed or in use.
        """
        with self._busy:
            return self._main.report

    def close(self) -> None:
        """Release memory and what is on the device; twice is harmless. The delegate stays open.

        Raises:
            StateError: another thread is using the interpreter.
        """
        if self._busy.closed:
            return
        with self._busy:
            # In this order, so that a call that was interrupted can be made again.
            for subgraph in self._subgraphs.values():
                subgraph.release()
            self._cpu.close()
            self._busy.close()

    def __enter__(self) -> Self:
        with self._busy:
            return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Inside

    def _subgraph(self, index: int) -> Subgraph:
        found = self._subgraphs.get(index)
        if found is not None:
            return found
        count = len(self._model.subgraphs)
        if not isinstance(index, int) or not 0 <= index < count:
            raise InputError(f"there is no subgraph {shown(index)}; the model has {count}, from 0")
        made = Subgraph(
            self._model, index, self._ops, self._open_session, self._cpu.infer,
            preserve_all=self._preserve_all,
        )  # fmt: skip
        self._subgraphs[index] = made
        return made

    def _open_session(self, graph: Graph) -> Session:
        if self._delegate is None:
            return open_cpu_session(
                graph, self._ops, preserve_all=self._preserve_all, side=self._cpu
            )
        return self._delegate.open_session(graph, preserve_all=self._preserve_all, cpu=self._cpu)

    def _check_views(self) -> None:
        if self._main.has_views:
            raise StateError(
                "a NumPy view of a tensor is still held; keep the function that tensor() "
                "returned instead, and call it each time"
            )


def _load(path: Any, content: Any) -> ModelFile:
    # An empty string or no bytes are what a variable holds that was not set. Other objects are not
    # asked for their truth: an array has none.
    has_path = path is not None and not (isinstance(path, (str, bytes)) and not path)
    has_content = content is not None and not (isinstance(content, (str, bytes)) and not content)
    if has_path == has_content:
        given = "both" if has_path else "neither"
        raise OptionError(f"give either model_path or model_content; {given} was given")
    if has_content:
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise ArgumentError(f"model_content is bytes, not {type(content).__name__}")
        return read_model(content)
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise ArgumentError(f"model_path is a path, not {type(path).__name__}")
    return read_model(os.fsdecode(path))


def _one_delegate(delegates: Any) -> GpuDelegate | None:
    if delegates is None:
        return None
    # Whoever runs on the CPU only does not pay for importing all kernels.
    from tflgpu.delegate import GpuDelegate

    if isinstance(delegates, GpuDelegate):
        raise OptionError("experimental_delegates is a list; write [delegate]")
    try:
        given = list(delegates)
    except TypeError:
        raise OptionError(
            f"experimental_delegates is a list of GpuDelegate, not {type(delegates).__name__}"
        ) from None
    for delegate in given:
        if not isinstance(delegate, GpuDelegate):
            raise OptionError(
                f"experimental_delegates takes tflgpu.GpuDelegate, not {type(delegate).__name__}: "
                "delegates in shared libraries need the native runtime, ai_edge_litert"
            )
    if len(given) > 1:
        raise OptionError(
            f"{len(given)} delegates were given; one GpuDelegate serves the whole model"
        )
    return given[0] if given else None


def _cpu_options(
    delegate: GpuDelegate | None, backend: str | None, threads: int | None, resolver: OpResolverType
) -> DelegateOptions:
    """The options that the CPU side goes by: those given to the interpreter, then its delegate's."""
    options = DelegateOptions() if delegate is None else delegate.options
    if backend is not None:
        options = options.changed(cpu_backend=backend)
    if threads is not None:
        options = options.changed(num_threads=threads)
    if resolver is not OpResolverType.AUTO:
        options = options.changed(op_resolver=resolver)
    return options


def _threads(count: Any) -> int | None:
    if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
        raise OptionError(
            f"num_threads is a whole number, not {type(count).__name__} {shown(count)}"
        )
    if count is not None and count < 1:
        raise OptionError(f"num_threads is {shown(count)}; the least is 1")
    return count


def _resolver(kind: Any) -> OpResolverType:
    # TFLite's own enum is another class with the same members.
    if kind is None:
        return OpResolverType.AUTO
    name = str(getattr(kind, "name", None))
    if name not in OpResolverType.__members__:
        names = ", ".join(OpResolverType.__members__)
        raise OptionError(f"experimental_op_resolver_type is one of {names}, not {shown(kind)}")
    return OpResolverType[name]
