"""C functions that LiteRT calls and Python answers, one of each for the whole process.

LiteRT hands back two pointers that a delegate has put there: a delegate's ``data_`` and a kernel's
``user_data``. Here they are numbers of Python objects and never addresses, so that a mistake finds
nothing instead of anything. The functions themselves live as long as the process: an interpreter
may be destroyed while Python ends, and then calls `free`.

No exception gets out of a callback: it is given to LiteRT's error reporter, whose text becomes the
RuntimeError of the call that was made.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

from tflgpu.backend_kit.forks import free_in_child, immortal
from tflgpu.errors import StateError, TflgpuError
from tflgpu.errors.blame import LOG, describe
from tflgpu.hosts.cdef import ALLOW_DYNAMIC_TENSORS, ERROR, OK, ffi, int_array, ints

#: LiteRT formats a report into 1,024 bytes.
_LONGEST_REPORT = 900
_AFTER_THE_CALL = 0.02  # seconds

Nodes = tuple[int, ...]
#: From nodes to the subsets that LiteRT makes of them: nodes, and the tensors that others read.
Preview = Callable[[Nodes], Sequence[tuple[Nodes, tuple[int, ...]]]]


class Runs(Protocol):
    """A subset of nodes that LiteRT runs as one."""

    def prepare(self, context: Any) -> None:
        """Called whenever shapes may have changed."""

    def invoke(self, context: Any) -> None:
        """Called for each run."""

    def close(self) -> None:
        """LiteRT lets go of it."""


class Chooses(Protocol):
    """A delegate, as LiteRT's callbacks use it."""

    def choose(self, context: Any, preview: Preview) -> Mapping[Nodes, Runs]:
        """The subsets of nodes, as ``preview`` gave them, that are replaced, with what runs
        each."""


class Native:
    """A `TfLiteDelegate` of LiteRT's. Its memory lives as long as this object.

    LiteRT keeps the pointer without saying until when. As long as there are kernels they keep this
    object; where there are none, nothing tells when the interpreter is gone, so it stays for ever.
    """

    def __init__(self, chooser: Chooses) -> None:
        self._chooser = weakref.ref(chooser)  # which owns this object
        self.number = next(_numbers)
        self.struct = ffi().new("TfLiteDelegate*")
        self.struct.data_ = ffi().cast("void*", self.number)
        self.struct.Prepare = _functions()["Prepare"]
        self.struct.flags = ALLOW_DYNAMIC_TENSORS
        _natives[self.number] = self

    @property
    def pointer(self) -> int:
        """The address that LiteRT takes."""
        return int(ffi().cast("uintptr_t", self.struct))

    def choose(self, context: Any, preview: Preview) -> Mapping[Nodes, Runs]:
        """As `Chooses.choose`; nothing where the delegate is gone."""
        chooser = self._chooser()
        return {} if chooser is None else chooser.choose(context, preview)


_making = free_in_child()
_numbers = itertools.count(1)
_natives: weakref.WeakValueDictionary[int, Native] = weakref.WeakValueDictionary()
_kept: set[Native] = set()
#: What `Prepare` has chosen for a context, until LiteRT asks for it by `init`.
_chosen: dict[int, dict[Nodes, Runs]] = {}
_kernels: dict[int, tuple[Runs, Native]] = {}


def live_kernels() -> int:
    """How many kernels LiteRT holds in this process."""
    return len(_kernels)


def report(context: Any, text: str) -> None:
    """Give an error to LiteRT, whose message it becomes."""
    said = text.encode("utf-8", "replace")
    if len(said) > _LONGEST_REPORT:
        said = said[:_LONGEST_REPORT].decode("utf-8", "ignore").encode() + b"..."
    # It is a format, without anything to be put into it. LiteRT's own sentence comes after it.
    context.ReportError(context, said.replace(b"%", b"%%") + b"\n")


def _address(pointer: Any) -> int:
    return int(ffi().cast("uintptr_t", pointer))


def _functions() -> dict[str, Any]:
    """The C functions, made once and never released."""
    with _making:
        return _made_functions()


@cache
def _made_functions() -> dict[str, Any]:
    made = ffi()
    finalizing = sys.is_finalizing  # a cell, which is there to the end, unlike a module's names

    def failed(context: Any, what: str, error: BaseException) -> int:
        told = str(error) if isinstance(error, TflgpuError) else describe(error)
        LOG.debug("tflgpu: %s failed in LiteRT", what, exc_info=error)
        with contextlib.suppress(Exception):
            report(context, f"tflgpu: {told}")
        if isinstance(error, KeyboardInterrupt):
            # LiteRT makes a RuntimeError of it. It is asked again when this function is over.
            timer = threading.Timer(_AFTER_THE_CALL, _thread.interrupt_main)
            timer.daemon = True
            timer.start()
        return ERROR

    def answered(context: Any, what: str, action: Callable[[], None]) -> int:
        try:
            action()
        except BaseException as error:  # noqa: BLE001  (C calls this: nothing may get out)
            return failed(context, what, error)
        return OK

    def prepare_delegate(context: Any, delegate: Any) -> int:
        return answered(context, "Prepare", lambda: _prepare(context, delegate))

    def init(context: Any, buffer: Any, _size: int) -> Any:
        made_number = [0]

        def start() -> None:
            params = made.cast("TfLiteDelegateParams*", buffer)
            native = _natives.get(_address(made.cast("TfLiteDelegate*", params.delegate).data_))
            kernel = _chosen.get(_address(context), {}).pop(ints(params.nodes_to_replace), None)
            if kernel is None or native is None:
                raise StateError("LiteRT made a subset of nodes that it had not announced")
            number = next(_numbers)
            _kernels[number] = (kernel, native)
            made_number[0] = number

        answered(context, "init", start)
        return made.cast("void*", made_number[0])

    def free(_context: Any, user_data: Any) -> None:
        # While Python ends, modules are gone that closing needs, cffi's and this one among them,
        # and all ends with the process.
        if finalizing():
            return
        kernel, _ = _kernels.pop(_address(user_data), (None, None))
        if kernel is not None:
            try:
                kernel.close()
            except Exception:  # noqa: BLE001  (as above)
                LOG.exception("tflgpu: a part of a model could not be released")

    def prepare(context: Any, node: Any) -> int:
        return answered(context, "prepare", lambda: _kernel(node).prepare(context))

    def invoke(context: Any, node: Any) -> int:
        # As `answered`, without a function for each run.
        try:
            _kernels[int(made.cast("uintptr_t", node.user_data))][0].invoke(context)
        except BaseException as error:  # noqa: BLE001
            return failed(context, "invoke", error)
        return OK

    table = {
        "Prepare": made.callback("int(TfLiteContext*, TfLiteDelegate*)", prepare_delegate, ERROR),
        "init": made.callback("void*(TfLiteContext*, char*, size_t)", init),
        "free": made.callback("void(TfLiteContext*, void*)", free),
        "prepare": made.callback("int(TfLiteContext*, TfLiteNode*)", prepare, ERROR),
        "invoke": made.callback("int(TfLiteContext*, TfLiteNode*)", invoke, ERROR),
        "name": made.new("char[]", b"tflgpu"),
    }
    for function in table.values():
        immortal(function)
    return table


def _kernel(node: Any) -> Runs:
    found = _kernels.get(_address(node.user_data))
    if found is None:
        raise StateError("this part of the model could not be made ready")
    return found[0]


def _prepare(context: Any, delegate: Any) -> None:
    native = _natives.get(_address(delegate.data_))
    if native is None:
        raise StateError("this delegate is gone")
    chosen = dict(native.choose(context, lambda nodes: _preview(context, nodes)))
    if not chosen:
        _kept.add(native)
        return
    registration = ffi().new("TfLiteRegistration*")
    functions = _functions()
    for member in ("init", "free", "prepare", "invoke"):
        setattr(registration, member, functions[member])
    registration.custom_name = functions["name"]
    registration.version = 1
    key = _address(context)
    _chosen[key] = chosen
    try:
        nodes = int_array(tuple(sorted(n for subset in chosen for n in subset)))
        replace = context.ReplaceNodeSubsetsWithDelegateKernels
        if replace(context, registration[0], nodes, delegate) != OK:
            raise StateError("LiteRT could not replace the nodes that the delegate takes")
    finally:
        for left in _chosen.pop(key).values():
            left.close()


def _preview(context: Any, nodes: Nodes) -> list[tuple[Nodes, tuple[int, ...]]]:
    """The subsets that LiteRT will make of ``nodes``."""
    params, count = ffi().new("TfLiteDelegateParams**"), ffi().new("int*")
    if context.PreviewDelegatePartitioning(context, int_array(nodes), params, count) != OK:
        raise StateError("LiteRT could not divide the graph")
    subsets = (params[0][i] for i in range(count[0]))
    return [(ints(s.nodes_to_replace), ints(s.output_tensors)) for s in subsets]
