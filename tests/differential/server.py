"""A child process that runs one side of a case: a crash, a hang or a leak ends it, not the fuzzer.

``python -m tests.differential.server litert`` or ``... ours BACKEND DEVICE``. Requests and answers
are pickles, each after its length in eight bytes; nothing else is written to stdout.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tflgpu.ir.dtypes import Array

from tests.differential.case import Outcome, Script, draw

#: Elements of all outputs together beyond which a run tells nothing more, and pickles get large.
_LARGEST = 1 << 22


class TooLarge(Exception):
    """The case would only measure memory."""


class _Stage:
    """Where a case is, for the outcome of an exception."""

    def __init__(self) -> None:
        self.name = "read"
        self.outputs: list[list[Array]] = []


def follow(script: Script, interpreter: Any, stage: _Stage) -> None:
    """Do with an interpreter what the script says; outputs gather in ``stage``."""
    resized = False
    stage.name = "allocate"
    if script.resize and not script.resize_after:
        _resize(script, interpreter, stage)
        resized = True
    interpreter.allocate_tensors()
    for run in range(len(script.runs)):
        if script.resize and run and not resized:
            _resize(script, interpreter, stage)
            resized = True
            interpreter.allocate_tensors()
        stage.name = "set"
        _feed(script, run, interpreter)
        stage.name = "invoke"
        interpreter.invoke()
        stage.name = "get"
        # Each is asked for by its own index: one tensor may be several outputs.
        details = interpreter.get_output_details()
        if sum(int(np.prod(d["shape"])) for d in details) > _LARGEST:
            raise TooLarge("the outputs are too large to be compared")
        stage.outputs.append([np.array(interpreter.get_tensor(d["index"])) for d in details])
    stage.name = "done"


def _resize(script: Script, interpreter: Any, stage: _Stage) -> None:
    stage.name = "resize"
    known = {d["index"] for d in interpreter.get_input_details()}
    for index, shape in script.resize.items():
        if index in known:
            interpreter.resize_tensor_input(index, list(shape))
    stage.name = "allocate"


def _feed(script: Script, run: int, interpreter: Any) -> None:
    for position, detail in enumerate(interpreter.get_input_details()):
        shape = tuple(int(d) for d in detail["shape"])
        if int(np.prod(shape, dtype=object)) > _LARGEST:
            raise TooLarge("an input is too large to be drawn")
        dtype = np.dtype(detail["dtype"])
        data = draw(script, run, position, detail["index"], shape, dtype)
        interpreter.set_tensor(detail["index"], data)


def _outcome(run: Callable[[_Stage], tuple[str, ...]], ours: bool) -> Outcome:
    from tflgpu.errors import TflgpuError

    stage = _Stage()
    start = time.perf_counter()
    refusals: tuple[str, ...] = ()
    state, error, message = "ok", "", ""
    try:
        refusals = run(stage)
    except TooLarge as problem:
        state, error, message = "skipped", type(problem).__name__, str(problem)
    except TflgpuError as problem:
        state, error, message = "refused", type(problem).__name__, str(problem)
    except Exception as problem:  # noqa: BLE001 (what it is, is what is looked for)
        state = "raw" if ours else "refused"
        error, message = type(problem).__name__, str(problem)
        if ours:
            message = f"{message} [{_place(problem)}]"
    return Outcome(
        state=state,
        stage=stage.name,
        error=error,
        message=message[:2000],
        outputs=stage.outputs,
        refusals=refusals,
        seconds=time.perf_counter() - start,
    )


def _place(problem: BaseException) -> str:
    """File and function where an exception was raised, innermost of ours first."""
    import traceback

    frames = traceback.extract_tb(problem.__traceback__)
    inside = [f for f in frames if "tflgpu" in f.filename and "differential" not in f.filename]
    return " < ".join(f"{Path(f.filename).name}:{f.name}:{f.lineno}" for f in reversed(inside[-3:]))


class Litert:
    """LiteRT, with its optimized kernels, its reference kernels, or XNNPACK."""

    def __init__(self) -> None:
        from ai_edge_litert import interpreter

        self._module = interpreter
        kinds = interpreter.OpResolverType
        self._resolvers = {
            "builtin": kinds.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            "reference": kinds.BUILTIN_REF,
            "xnnpack": kinds.AUTO,
        }

    def __call__(self, content: bytes, script: Script, kernels: str) -> Any:
        """Run a case, or (kernels "spread", "quirks:...") answer about it with the references."""
        if kernels == "spread":
            from tests.differential.spread import spread

            return spread(content, script)
        if kernels.startswith("quirks:"):
            from tests.differential.quirks import imitate

            return imitate(content, script, frozenset(kernels[7:].split("+")))

        def run(stage: _Stage) -> tuple[str, ...]:
            interpreter = self._module.Interpreter(
                model_content=content,
                experimental_op_resolver_type=self._resolvers[kernels],
                num_threads=1,
            )
            follow(script, interpreter, stage)
            return ()

        return _outcome(run, ours=False)


class Ours:
    """tflgpu; a delegate of each kind of options is opened once."""

    def __init__(self, backend: str, device: int) -> None:
        self._backend, self._device = backend, device
        self._delegates: dict[tuple[bool, str], Any] = {}
        self._delegate(Script())

    def _delegate(self, script: Script) -> Any:
        import tflgpu

        key = (script.allow_fallback, script.precision)
        if key not in self._delegates:
            self._delegates[key] = tflgpu.GpuDelegate(
                backend=self._backend,
                device=self._device,
                allow_fallback=script.allow_fallback,
                precision=script.precision,
                cpu_backend="cpu_ref",
            )
        return self._delegates[key]

    def __call__(self, content: bytes, script: Script, _: str) -> Outcome:
        """Run a case."""
        import tflgpu

        delegates = [self._delegate(script)] if script.delegate else []

        def run(stage: _Stage) -> tuple[str, ...]:
            with tflgpu.Interpreter(
                model_content=content,
                experimental_delegates=delegates,
                cpu_backend="cpu_ref",  # with LiteRT's kernels there would be one side alone
            ) as interpreter:
                follow(script, interpreter, stage)
                report = interpreter.report
                return tuple(f"{r.op}: {r.reason}" for r in report.refusals)

        return _outcome(run, ours=True)


@contextlib.contextmanager
def _own_stdout() -> Iterator[BinaryIO]:
    """Stdout for the answers alone: what a library prints goes to stderr."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with channel:
        yield channel


def send(channel: BinaryIO, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    channel.write(struct.pack("<q", len(data)) + data)
    channel.flush()


def main(arguments: list[str]) -> None:
    """Serve until stdin ends."""
    requests = sys.stdin.buffer
    with _own_stdout() as answers:
        np.seterr(all="ignore")
        logging.getLogger("tflgpu").setLevel(logging.ERROR)  # mutants give it much to say
        side: Any = Litert() if arguments[0] == "litert" else Ours(arguments[1], int(arguments[2]))
        send(answers, "ready")
        while head := requests.read(8):
            request = pickle.loads(requests.read(struct.unpack("<q", head)[0]))
            send(answers, side(*request))


if __name__ == "__main__":
    main(sys.argv[1:])
