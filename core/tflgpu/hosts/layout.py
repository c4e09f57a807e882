"""Checks once a process that this LiteRT's structs lie in memory as `cdef` declares them.

A small model goes through LiteRT's interpreter with a delegate that believes nothing. First only
numbers are read, at their places; pointers are followed once these are right; then all that was
written into the model must come back, and what a kernel computes must be what LiteRT gives out.
A version that tflgpu was not tested with is checked in a process of its own first, since a wrong
pointer would end this one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from tflgpu.backend_kit.forks import free_in_child
from tflgpu.errors import StateError, TflgpuError, UnsupportedError
from tflgpu.errors.blame import LOG
from tflgpu.hosts.callbacks import Native, Nodes, Preview, Runs
from tflgpu.hosts.cdef import MMAP_RO, ffi, resize
from tflgpu.hosts.reading import read_context
from tflgpu.hosts.runtimes import Runtime, runtime_of
from tflgpu.ir.dtypes import DType, Quantization
from tflgpu.tflite.model_file import ModelFile
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

#: Versions that were tried, from the first to the first after the last.
_TRIED = {"ai_edge_litert": ((1, 2), (2, 4))}
_PATIENCE = 120.0  # seconds for a process that imports TensorFlow
_RESULT = np.array([[3.0, -1.0, 4.0, -1.5, 5.25]], np.float32)

_verdicts: dict[str, str | None] = {}
_lock = free_in_child()


def check_layout(runtime: Runtime) -> None:
    """Check that a runtime's structs are as declared here; done once, then remembered.

    Raises:
        UnsupportedError: they are not.
    """
    with _lock:
        if runtime.module not in _verdicts:
            _verdicts[runtime.module] = _try(runtime)
        verdict = _verdicts[runtime.module]
    if verdict is not None:
        raise UnsupportedError(
            f"{runtime} keeps its data in a way that is not known here, so tflgpu cannot run "
            f"inside of it ({verdict}); use tflgpu.Interpreter, or another version of "
            f"{runtime.package}"
        )


def _try(runtime: Runtime) -> str | None:
    """What is wrong with a runtime's structs; None where they are as declared."""
    if not was_tried(runtime):
        wrong = _try_elsewhere(runtime)
        if wrong is not None:
            return wrong
    try:
        self_test(runtime)
    except (TflgpuError, RuntimeError, ValueError, TypeError, AttributeError) as error:
        return " ".join(str(error).split())
    return None


def was_tried(runtime: Runtime) -> bool:
    """Whether this version is among those that were tried."""
    found = re.match(r"(\d+)\.(\d+)", runtime.version)
    first, after = _TRIED.get(runtime.package, ((1, 0), (0, 0)))
    return found is not None and first <= (int(found[1]), int(found[2])) < after


def _try_elsewhere(runtime: Runtime) -> str | None:
    program = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"import {runtime.package}, {runtime.module}\n"
        "from tflgpu.hosts.layout import self_test\n"
        "from tflgpu.hosts.runtimes import runtime_of\n"
        f"self_test(runtime_of({runtime.module!r}))\n"
    )
    if not sys.executable:
        return "this version was never tried, and Python does not say how to start another"
    try:
        done = subprocess.run(  # noqa: S603  (this Python, with a program of our own)
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"this version was never tried, and a process to try it in failed: {error}"
    if done.returncode == 0:
        LOG.info("tflgpu: %s was never tried; what could be tried of it is right", runtime)
        return None
    last = next(reversed(done.stderr.strip().splitlines()), "")
    how = f"signal {-done.returncode}" if done.returncode < 0 else last
    return f"this version was never tried, and a trial in another process ended in: {how}"


def self_test(runtime: Runtime) -> None:
    """Run a model of one operator through the interpreter, with a delegate that takes it.

    Raises:
        TflgpuError, RuntimeError: something is not where it should be.
    """
    content = probe_model()
    probe = _Probe(read_model(content))
    module = runtime.interpreter
    interpreter = module.Interpreter(
        model_content=content,
        experimental_delegates=[probe],
        experimental_op_resolver_type=module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    if probe.wrong:
        raise StateError(probe.wrong)
    interpreter.allocate_tensors()
    image = np.linspace(-2, 2, 60, dtype=np.float32).reshape(1, 5, 4, 3)
    interpreter.set_tensor(0, image)
    interpreter.invoke()
    result = interpreter.get_tensor(3)
    kernel = probe.kernel
    if kernel.seen is None or not np.array_equal(kernel.seen, image):
        raise StateError("a kernel does not see what was given to the interpreter")
    if result.shape != _RESULT.shape or not np.array_equal(result, _RESULT):
        raise StateError("the interpreter does not give what a kernel computed")
    del interpreter
    if not kernel.closed:
        raise StateError("a kernel is not released with its interpreter")


def probe_model() -> bytes:
    """CONV_2D with numbers that no other field has, and a quantized tensor beside it."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((2, 3, 2, 3)).astype(np.float32)
    scales = Quantization((0.5, 0.25), (3, 4), 1)
    return write_model(
        ModelSpec(
            [
                TensorSpec("x", (1, 5, 4, 3), shape_signature=(-1, 5, 4, 3)),
                TensorSpec("w", (2, 3, 2, 3), data=weights),
                TensorSpec("b", (2,), data=[0.5, -0.5]),
                TensorSpec("y", (1, 2, 2, 2)),
                TensorSpec("q", (3, 2), DType.I8, np.ones((3, 2), np.int8), scales),
            ],
            [
                OperatorSpec(
                    "CONV_2D",
                    {
                        "padding": 0,
                        "stride_h": 3,
                        "stride_w": 2,
                        "fused_activation_function": 3,
                        "dilation_h_factor": 1,
                        "dilation_w_factor": 1,
                    },
                    (0, 1, 2),
                    (3,),
                    version=1,
                )
            ],
            (0,),
            (3,),
        )
    )


class _Probe:
    """A delegate that takes the one node of `probe_model`, if all is where it should be.

    Attributes:
        wrong: What is not. Kept here and not told to LiteRT, since the function to tell it may be
            in another place as well.
    """

    def __init__(self, model: ModelFile) -> None:
        self._model = model
        self.wrong = ""
        self.kernel = _ProbeKernel()
        self._native = Native(self)

    def _get_native_delegate_pointer(self) -> int:
        return self._native.pointer

    def choose(self, context: Any, preview: Preview) -> Mapping[Nodes, Runs]:
        """Take the node, or nothing where something is wrong."""
        try:
            self._look(context, preview)
        except (TflgpuError, TypeError, ValueError) as error:
            self.wrong = str(error) or type(error).__name__
            return {}
        return {(0,): self.kernel}

    def _look(self, context: Any, preview: Preview) -> None:
        """At everything, numbers before pointers."""
        wanted = self._model.main
        tensors = wanted.tensors
        if context.tensors_size != len(tensors):
            raise StateError(f"{context.tensors_size} tensors, not {len(tensors)}")
        for name in (
            "GetExecutionPlan",
            "ReportError",
            "GetNodeAndRegistration",
            "ResizeTensor",
            "ReplaceNodeSubsetsWithDelegateKernels",
            "PreviewDelegatePartitioning",
            "tensors",
        ):
            if not getattr(context, name):
                raise StateError(f"no {name} in the context")
        for info in tensors:
            tensor = context.tensors[info.index]
            codes = {DType.F32: 1, DType.I8: 9}
            mapped = tensor.allocation_type == MMAP_RO
            nbytes = int(np.prod(info.shape)) * info.dtype.itemsize
            if (
                tensor.type != codes[info.dtype]
                or mapped != info.is_constant
                # LiteRT has not yet placed what is no constant, but knows how large it is.
                or tensor.bytes != nbytes
                or tensor.buffer_handle != -1
                or tensor.quantization.type != (info.quantization is not None)
            ):
                raise StateError(f"tensor {info.index} is not what the model says")
        found = read_context(context)
        for info, tensor in zip(tensors, found.tensors, strict=True):
            same = info.data is None or np.array_equal(info.data, np.asarray(tensor.data))
            for name in ("name", "shape", "shape_signature", "dtype", "quantization"):
                same = same and getattr(info, name) == getattr(tensor, name)
            if not same:
                raise StateError(f"tensor {info.index} is {tensor}, not {info}")
        (operator,) = wanted.operators
        (read,) = found.operators.values()
        for name in ("index", "name", "version", "inputs", "outputs", "fields"):
            if getattr(operator, name) != getattr(read, name):
                raise StateError(f"the operator has {name} {getattr(read, name)}")
        if found.unreadable or list(preview((0,))) != [((0,), (3,))]:
            raise StateError("the graph is divided in another way than it can be")


class _ProbeKernel:
    """Notes its input and gives `_RESULT`, whose shape is not the file's."""

    def __init__(self) -> None:
        self.seen: Any = None
        self.closed = False

    def prepare(self, context: Any) -> None:
        if not resize(context, context.tensors[3], _RESULT.shape):
            raise StateError("no tensor can be resized")

    def invoke(self, context: Any) -> None:
        given, made = context.tensors[0], context.tensors[3]
        if made.bytes != _RESULT.nbytes:
            raise StateError(f"{made.bytes} bytes for the result, not {_RESULT.nbytes}")
        self.seen = np.frombuffer(bytes(ffi().buffer(given.data, given.bytes)), np.float32)
        self.seen = self.seen.reshape(1, 5, 4, 3)
        ffi().memmove(made.data, _RESULT.tobytes(), _RESULT.nbytes)

    def close(self) -> None:
        self.closed = True


__all__ = ["check_layout", "probe_model", "runtime_of", "self_test", "was_tried"]
