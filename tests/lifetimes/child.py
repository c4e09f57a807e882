"""What the tests of lifetimes have children do: `python child.py WHAT BACKEND ...`.

Each prints lines of JSON for the test to look at. Everything here must end by itself.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tflgpu
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

FACTORS = np.array([1, -2, 3], np.float32)
X = np.array([[0.5, 1, -0.25]], np.float32)
#: Seconds after which a forked child counts as hanging.
PATIENCE = 20
#: Seconds that a long run takes, and after which a signal comes.
_LONG, SENT = 1.8, 0.3
#: How many signals are sent in runs and while models are prepared, some of them too late. With
#: TFLGPU_SIGNALS=20 they are sent until 20 came in time in each, or ten times as many were sent.
_RUNS, _COMPILES = 14, 12
WANTED = int(os.environ.get("TFLGPU_SIGNALS", "0"))


def say(**facts: Any) -> None:
    """One line of JSON."""
    print(json.dumps(facts), flush=True)


def model(layers: int = 1) -> bytes:
    """``layers`` times: times the factors, then tanh; of several kernels where there are more."""
    tensors = [TensorSpec("x", (1, 3)), TensorSpec("f", (3,), data=FACTORS)]
    operators = []
    for _ in range(layers):
        before = len(tensors) - 1 if operators else 0
        tensors += [TensorSpec(f"t{len(tensors) + i}", (1, 3)) for i in range(3)]
        n = len(tensors)
        operators += [
            OperatorSpec("MUL", {}, (before, 1), (n - 3,)),
            OperatorSpec("SOFTMAX", {"beta": 1.0}, (n - 3,), (n - 2,)),
            OperatorSpec("TANH", {}, (n - 2,), (n - 1,)),
        ]
    return write_model(ModelSpec(tensors, operators, (0,), (len(tensors) - 1,)))


def expected(x: Any, layers: int = 1) -> Any:
    """What `model` computes."""
    for _ in range(layers):
        e = np.exp(x * FACTORS - (x * FACTORS).max())
        x = np.tanh(e / e.sum())
    return x


def opened(backend: str, layers: int = 1) -> tuple[Any, Any]:
    """A delegate and an interpreter that is ready."""
    delegate = tflgpu.GpuDelegate(backend=backend, allow_fallback=False)
    interpreter = tflgpu.Interpreter(model_content=model(layers), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    return delegate, interpreter


def check(interpreter: Any, layers: int = 1, scale: float = 1.0) -> None:
    """That a run with new inputs gives their result."""
    x = (X * scale).astype(np.float32)
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    np.testing.assert_allclose(got, expected(x, layers), atol=1e-5)


# Forks


def forked(action: Callable[[], None], status: int = 3) -> dict[str, Any]:
    """What a forked child that does ``action`` and exits with ``status`` ends in."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        answer = "done"
        try:
            action()
        except Exception as error:  # noqa: BLE001
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode()[:4000])
        os.close(writing)
        sys.exit(status)  # the whole way: atexit, finalizers, modules, the C library
    os.close(writing)
    end = time.monotonic() + PATIENCE
    found = 0, 0
    while not found[0] and time.monotonic() < end:
        found = os.waitpid(child, os.WNOHANG)
        time.sleep(0.02)
    if not found[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    return {
        "status": os.waitstatus_to_exitcode(found[1]) if found[0] else "hangs",
        "said": said,
    }


def forks(backend: str) -> None:
    """Children that use what is inherited, that just exit, and that open their own."""
    import multiprocessing

    delegate, interpreter = opened(backend)
    check(interpreter)
    output = interpreter.get_output_details()[0]["index"]
    recording = interpreter._main._memory.session.parts[0].recording
    device = delegate.device
    uses: dict[str, Callable[[], Any]] = {
        "invoke": interpreter.invoke,
        "set_tensor": lambda: interpreter.set_tensor(0, X),
        "get_tensor": lambda: interpreter.get_tensor(output),
        "tensor": interpreter.tensor(0),
        "allocate": lambda: (interpreter.resize_tensor_input(0, [2, 3]),
                             interpreter.allocate_tensors()),
        "delegate": lambda: tflgpu.Interpreter(
            model_content=model(), experimental_delegates=[delegate]).allocate_tensors(),
        "recording": recording.run,
        "device": lambda: device.load(None),
    }  # fmt: skip
    answers: dict[str, str] = {}

    def use_all() -> None:
        for name, use in uses.items():
            try:
                use()
                answers[name] = "nothing"
            except Exception as error:  # noqa: BLE001
                answers[name] = f"{type(error).__name__}: {error}"
        raise ValueError(json.dumps(answers))

    def close_all() -> None:
        recording.close()
        interpreter.close()
        delegate.close()
        device.close()
        interpreter.close()

    def own() -> None:
        check(opened(backend)[1])

    def any_own() -> None:
        os.environ.pop("TFLGPU_BACKEND", None)
        made = tflgpu.GpuDelegate()
        mine = tflgpu.Interpreter(model_content=model(), experimental_delegates=[made])
        mine.allocate_tensors()
        check(mine)

    say(pattern="use", **forked(use_all))
    say(pattern="exit", **forked(lambda: None))
    say(pattern="close", **forked(close_all))
    say(pattern="own", **forked(own))
    say(pattern="any", **forked(any_own))
    process = multiprocessing.get_context("fork").Process(target=sys.exit, args=(5,))
    process.start()
    process.join(PATIENCE)
    say(pattern="multiprocessing", status=process.exitcode)
    # While another thread is in the middle of a run, with locks held.
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            interpreter.invoke()

    thread = threading.Thread(target=run)
    thread.start()
    ends = [forked(lambda: None) for _ in range(3)]
    stop.set()
    thread.join()
    say(pattern="threads", ends=[e["status"] for e in ends])
    check(interpreter)
    delegate2, interpreter2 = opened(backend)
    check(interpreter2)
    interpreter2.close()
    delegate2.close()
    say(pattern="parent", device=device.info.name)


# Signals


class Stop(BaseException):
    """What a handler raises that is no KeyboardInterrupt."""


def raiser(kind: type[BaseException]) -> Callable[..., None]:
    """A handler."""

    def handle(*_: object) -> None:
        raise kind

    return handle


def interrupted(action: Callable[[], object], after: float) -> BaseException | None:
    """What ended an action that is sent SIGINT ``after`` seconds; None where it was too late."""
    timer = threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        timer.start()
        action()
        timer.join()  # a signal that comes now is handled here
        time.sleep(0)
    except (KeyboardInterrupt, Stop) as error:
        return error
    finally:
        timer.join()
    return None


def go_on(turn: int, came: int, turns: int) -> bool:
    """Whether to send another signal, where ``turns`` were to be sent."""
    return (came < WANTED and turn < 10 * WANTED) if WANTED else turn < turns


def closing(backend: str) -> None:
    """What is closed or dropped while it is in use."""
    close_beside_a_run(backend)
    drop_in_flight(backend)


def close_beside_a_run(backend: str) -> None:
    """Interpreters and delegates are closed while another thread runs a model: what each of the
    threads is told. Nothing may crash or wait for ever."""
    for which in ("interpreter", "delegate"):
        told: set[str] = set()
        for _ in range(2):
            delegate, interpreter = opened(backend, 2)
            running, stop = threading.Event(), threading.Event()

            def run(
                interpreter: Any = interpreter, running: Any = running, told: Any = told,
                stop: Any = stop,
            ) -> None:  # fmt: skip
                try:
                    while not stop.is_set():
                        interpreter.invoke()
                        running.set()
                except Exception as error:  # noqa: BLE001
                    told.add(f"{type(error).__name__}: {error}")

            thread = threading.Thread(target=run)
            thread.start()
            running.wait(PATIENCE)
            first = interpreter if which == "interpreter" else delegate
            for _ in range(20):  # an interpreter refuses where the other thread is in it
                try:
                    first.close()
                    break  # and the other thread is told
                except tflgpu.errors.StateError as error:
                    told.add(f"close: {error}")
                    time.sleep(0.001)
            else:
                stop.set()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            for each in (interpreter, delegate, delegate, interpreter):
                each.close()
        say(pattern=f"close {which}", told=sorted(told))


def drop_in_flight(backend: str) -> None:
    """Recordings that were interrupted and are dropped, not closed, while their run goes on."""
    from tflgpu.plugins.registry import registry

    device = registry().open_device(backend, 0, tflgpu.DelegateOptions())
    groups, seconds = 4, 0.0
    while seconds < 0.1 and groups < 4096:
        groups *= 4
        recording = device.load(slow_plan(device, groups))
        seconds = _seconds(recording.run)
        recording.close()
    signal.signal(signal.SIGINT, raiser(KeyboardInterrupt))
    came = 0
    for _ in range(3):
        recording = device.load(slow_plan(device, groups, 2))
        came += interrupted(recording.run, seconds / 4) is not None
        del recording
        gc.collect()
        again = device.load(slow_plan(device, 4))
        again.run()
        again.close()
    device.close()
    device.close()
    say(pattern="drop", came=came)


def signals(backend: str) -> None:
    """In runs, while models are prepared, and in a run of seconds."""
    closing(backend)
    signal_in_runs(backend)
    signals_while_compiling(backend)
    signal_in_a_long_run(backend)


def signal_in_runs(backend: str) -> None:
    """Signals at random times in invoke, and the right result after each of them."""
    layers = 4
    delegate, interpreter = opened(backend, layers)
    check(interpreter, layers)
    took = min(_seconds(interpreter.invoke) for _ in range(5))
    rng = random.Random(7)
    came, turn = 0, 0
    while go_on(turn, came, _RUNS):
        signal.signal(signal.SIGINT, raiser(Stop if turn % 4 == 3 else KeyboardInterrupt))
        after = rng.uniform(0, 8 * took)
        end = time.monotonic() + after + 1

        def some_runs(end: float = end) -> None:
            for scale in itertools.cycle((1, 2, 3)):
                check(interpreter, layers, scale)
                if time.monotonic() > end:  # the signal is lost
                    break

        error = interrupted(some_runs, after)
        came += error is not None
        check(interpreter, layers, turn)
        turn += 1
    interpreter.close()
    delegate.close()
    say(pattern="runs", came=came, turns=turn)


def signals_while_compiling(backend: str) -> None:
    """Signals at random times while a model is being prepared, which works right after."""
    delegate = tflgpu.GpuDelegate(backend=backend, allow_fallback=False)
    start = time.perf_counter()
    first = tflgpu.Interpreter(model_content=model(6), experimental_delegates=[delegate])
    first.allocate_tensors()
    took = time.perf_counter() - start
    rng = random.Random(11)
    signal.signal(signal.SIGINT, raiser(KeyboardInterrupt))
    came, turn = 0, 0
    while go_on(turn, came, _COMPILES):
        # Other layers are other plans, and most of their kernels are in no cache.
        layers = 1 + turn % 5
        interpreter = tflgpu.Interpreter(
            model_content=model(layers), experimental_delegates=[delegate]
        )
        came += interrupted(interpreter.allocate_tensors, rng.uniform(0, took / 2)) is not None
        interpreter.allocate_tensors()
        check(interpreter, layers)
        interpreter.close()
        turn += 1
    check(first, 6)
    first.close()
    delegate.close()
    say(pattern="compiling", came=came, turns=turn)


def _seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def signal_in_a_long_run(backend: str) -> None:
    """Ctrl-C in a run of seconds, sized by measuring: how soon it surfaces."""
    from tflgpu.plugins.registry import registry

    device = registry().open_device(backend, 0, tflgpu.DelegateOptions())
    # Long enough that a wait which cannot be interrupted is told from one that can. More
    # workgroups first, which a GPU runs at once; then more dispatches, which it does not.
    groups, seconds = 4, 0.0
    while seconds < _LONG / 16 and groups < 4096:
        groups *= 4
        recording = device.load(slow_plan(device, groups))
        seconds = _seconds(recording.run)
        recording.close()
    times = min(int(_LONG / seconds) + 1, 4000)
    recording = device.load(slow_plan(device, groups, times))
    signal.signal(signal.SIGINT, raiser(KeyboardInterrupt))
    sent: list[float] = []

    def send() -> None:
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(SENT, send)
    start = time.perf_counter()
    said: dict[str, Any] = {}
    try:
        timer.start()
        recording.run()
        said["seconds"] = time.perf_counter() - start  # over before the signal came
        timer.join()
        time.sleep(0.1)  # where it is handled, at the latest
        said["error"] = "none"
    except KeyboardInterrupt:
        said.update(error="KeyboardInterrupt", late=time.perf_counter() - sent[0])
    recording.close()
    device.close()
    whole = time.perf_counter() - start
    say(pattern="long", **{"seconds": whole, **said}, groups=groups, times=times)


def slow_plan(device: Any, groups: int, times: int = 1) -> Any:
    """A long chain of dependent steps for each of ``groups`` workgroups, ``times`` over."""
    import attrs
    from tflgpu.compiler.plan import InputRef, OutputRef, PlannedDispatch
    from tflgpu.conformance.plans import io, plan
    from tflgpu.language.builder import Builder
    from tflgpu.language.types import Scalar

    k = Builder("slow", (1, 1, 1))
    src = k.buffer("src", Scalar.F32, 1, "read")
    dst = k.buffer("dst", Scalar.F32, 1, "write")
    total = k.var(k.load(src, 0), "total")
    with k.loop(0, 50_000):  # llvmpipe leaves a loop after 65,535 turns
        k.set(total, k.call("sin", total) + 1.0)
    k.store(dst, k.group_id(0), total)
    slow = PlannedDispatch(k.build(), (groups, 1, 1), (InputRef(0), OutputRef(0)), "slow")
    made = plan([slow] * times, [io("x", (1,))], [io("y", (groups,))])
    return attrs.evolve(made, alignment=device.alignment)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
