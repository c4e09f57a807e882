"""What is closed or called from inside a call of the same thread:
`python -m tests.interpreter.closing_child BACKEND [CASE]`.

A line for each case that came to its end. What waits for ever ends the process, and says where it
waits.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import tflgpu
from tflgpu.runtime.session import Session

from tests.interpreter import interpreter_models as models
from tests.small_models import small_model

#: Seconds for a case, far more than it takes on a busy machine.
LIMIT = 60

X = np.array([[1.0, 2.0, 3.0]], np.float32)
Y = (X + models.C) * models.C
LARGE = np.full((70, 1024), 3, np.float32)
Made = tuple[Callable[[], Any], Callable[[], None]]


class Lab:
    """Makes what a case is about on one backend."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.shared = self.delegate()

    def delegate(self, **options: Any) -> Any:
        index = 1 if self.backend == "cpu_ref" else 0
        return tflgpu.GpuDelegate(backend=self.backend, device=index, **options)

    def model(self) -> Any:
        return tflgpu.Model(models.chain(), delegate=self.shared)

    def pool(self, **options: Any) -> Any:
        return tflgpu.Pool(models.chain(), delegates=[self.shared], size=1, **options)

    def interpreter(self, delegate: Any = None) -> Any:
        given = [self.shared if delegate is None else delegate]
        made = tflgpu.Interpreter(model_content=models.chain(), experimental_delegates=given)
        made.allocate_tensors()
        return made


def runs(interpreter: Any, x: Any = X) -> Any:
    interpreter.set_tensor(0, x)
    interpreter.invoke()
    return interpreter.get_tensor(3)


# What is called, and what closes it; `a_signal` has a handler close it within a run.


def model(lab: Lab) -> Made:
    made = lab.model()
    return lambda: made(X)[0], made.close


def interpreter(lab: Lab) -> Made:
    made = lab.interpreter()
    return lambda: runs(made), made.close


def signature(lab: Lab) -> Made:
    made = lab.interpreter()
    runner = made.get_signature_runner("serve")
    return lambda: runner(image=X)["scores"], made.close


def lent(lab: Lab) -> Made:
    """A result so large that the device hands over its memory."""
    content = small_model({"x": LARGE.shape, "y": LARGE.shape}, "y = ADD(x, x)")
    made = tflgpu.Model(content, delegate=lab.shared)

    def action() -> Any:
        (found,) = made(LARGE)
        made(-LARGE)
        return Y if np.array_equal(found, 2 * LARGE) else found

    return action, made.close


def delegate(lab: Lab) -> Made:
    own = lab.delegate()
    made = lab.interpreter(own)
    return lambda: runs(made), own.close


def own_delegate(lab: Lab) -> Made:
    index = 1 if lab.backend == "cpu_ref" else 0
    made = tflgpu.Model(models.chain(), backend=lab.backend, device=index)
    return lambda: made(X)[0], made.close


def pool(lab: Lab) -> Made:
    made = lab.pool()
    return lambda: made(X)[0], made.close


def pool_of_futures(lab: Lab) -> Made:
    made = lab.pool()
    return lambda: made.submit(X).result(LIMIT)[0], made.close


def pool_that_gathers(lab: Lab) -> Made:
    made = lab.pool(batch=2, deadline=0.0)
    return lambda: made(X)[0], made.close


def in_flight(lab: Lab) -> Made:
    made = lab.interpreter()
    return lambda: made.invoke_async({0: X}).results()[0], made.close


def in_flight_delegate(lab: Lab) -> Made:
    own = lab.delegate()
    made = lab.interpreter(own)
    return lambda: made.invoke_async({0: X}).results()[0], own.close


def in_litert(lab: Lab) -> Made:
    from ai_edge_litert.interpreter import Interpreter

    own = lab.delegate()
    made = Interpreter(model_content=models.chain(), experimental_delegates=[own])
    made.allocate_tensors()

    def action() -> Any:
        try:
            return runs(made)
        except RuntimeError as error:
            raise tflgpu.StateError(str(error)) from error

    return action, own.close


MAKERS: list[Callable[[Lab], Made]] = [
    model, interpreter, signature, lent, delegate, own_delegate, pool, pool_of_futures,
    pool_that_gathers, in_flight, in_flight_delegate, in_litert,
]  # fmt: skip


@contextmanager
def within_a_run(event: Callable[[], object]) -> Iterator[None]:
    """Inside, something happens in the next run, once, when the device is done with it."""
    original, left = Session.finish, [event]

    def finish(self: Any) -> None:
        original(self)
        if left:
            left.pop()()

    Session.finish = finish  # type: ignore[method-assign]
    try:
        yield
    finally:
        Session.finish = original  # type: ignore[method-assign]


def a_signal(lab: Lab, maker: Callable[[Lab], Made], *, closes: bool) -> None:
    """Its handler closes what is running, or runs it again."""
    action, close = maker(lab)
    told: list[str] = []

    def handle(*_: Any) -> None:
        try:
            close() if closes else action()
            told.append("ended")
        except tflgpu.StateError as error:
            told.append(f"{error}")

    signal.signal(signal.SIGINT, handle)
    main = threading.main_thread().ident
    assert main is not None
    with within_a_run(lambda: signal.pthread_kill(main, signal.SIGINT)):
        try:
            np.testing.assert_allclose(action(), Y, rtol=1e-5)
        except (tflgpu.StateError, tflgpu.DeviceError):  # closed between two runs
            assert closes
    for _ in range(3):  # a signal to a thread that waits may be handled here
        pass
    assert len(told) == 1, told
    if maker is not in_litert or closes:  # LiteRT refuses by itself, in its own words
        assert told[0] == "ended" or (not closes and "inside its own call" in told[0]), told
    close()
    check_closed(action)


def check_closed(action: Callable[[], Any], where: str = "") -> None:
    try:
        action()
    except (tflgpu.StateError, tflgpu.DeviceError):
        return
    raise AssertionError(f"it is not closed: {where}")


# Inputs that do something when they are made arrays


class Input:
    """`X`, which calls something first."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.told: list[str] = []
        self._action = action

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        try:
            self._action()
            self.told.append("ended")
        except tflgpu.StateError as error:
            self.told.append(f"{error}")
        return X if dtype is None else X.astype(dtype)


def by_input(lab: Lab) -> Iterator[tuple[str, Callable[[Any], Any], Any]]:
    """Calls of one input, and what has them."""
    one, several, many, others = lab.interpreter(), lab.model(), lab.pool(), lab.pool()
    batches = lab.pool(batch=2)
    runner = lab.interpreter()
    asynchronous = lab.interpreter()
    yield "model", lambda x: several(x)[0], several
    yield "interpreter", lambda x: runs(one, x), one
    yield "signature", lambda x: runner.get_signature_runner("serve")(image=x)["scores"], runner
    yield "in flight", lambda x: asynchronous.invoke_async({0: x}).results()[0], asynchronous
    yield "pool", lambda x: many(x)[0], many
    yield "pool of futures", lambda x: others.submit(x).result(LIMIT)[0], others
    yield "pool that gathers", lambda x: batches(x)[0], batches


def inputs_that_close(lab: Lab) -> None:
    for what, call, held in by_input(lab):
        given = Input(held.close)
        try:
            np.testing.assert_allclose(call(given), Y, rtol=1e-5, err_msg=what)
        except tflgpu.StateError as error:
            assert "is closed" in str(error), what
        assert set(given.told) <= {"ended"}, (what, given.told)
        check_closed(lambda c=call: c(X), what)  # type: ignore[misc]


def inputs_that_call(lab: Lab) -> None:
    for what, call, held in by_input(lab):
        given = Input(lambda c=call: c(X))  # type: ignore[misc]
        np.testing.assert_allclose(call(given), Y, rtol=1e-5, err_msg=what)
        # `set_tensor` is no run: it takes what the other call left.
        wanted = "ended" if what == "interpreter" else "inside its own call"
        assert all(wanted in said for said in given.told), (what, given.told)
        np.testing.assert_allclose(call(X), Y, rtol=1e-5, err_msg=what)
        held.close()


def inputs_that_wait_for_another_thread(lab: Lab) -> None:
    """Which makes the same call: no lock is held while an input is made an array."""
    for what, call, held in by_input(lab):
        if what.startswith("pool"):
            continue  # of one copy, which the first call has
        others: list[Any] = []

        def wait(call: Any = call, others: list[Any] = others) -> None:
            thread = threading.Thread(target=lambda: others.append(call(X)), daemon=True)
            thread.start()
            thread.join(LIMIT / 2)

        np.testing.assert_allclose(call(Input(wait)), Y, rtol=1e-5, err_msg=what)
        assert others, what
        np.testing.assert_allclose(others[0], Y, rtol=1e-5, err_msg=what)
        held.close()


# Callbacks


def a_futures_callback(lab: Lab) -> None:
    for options in ({}, {"batch": 2, "deadline": 0.0}):
        made, closed, begin = lab.pool(**options), threading.Event(), threading.Event()

        def close(_: Any, made: Any = made, closed: Any = closed) -> None:
            made.close()
            closed.set()

        # Added while it is converted, so that a thread of the pool's calls it.
        given = Input(lambda b=begin: b.wait(LIMIT / 2))  # type: ignore[misc]
        if options:
            begin.set()
        future = made.submit(given)
        future.add_done_callback(close)
        begin.set()
        np.testing.assert_allclose(future.result(LIMIT)[0], Y, rtol=1e-5)
        assert closed.wait(LIMIT / 2)
        check_closed(lambda m=made: m(X))  # type: ignore[misc]


def a_futures_lock(lab: Lab) -> None:
    """A handler may come in the middle of a future's method. Threads of the pool wait for its lock:
    before its run, after it, or where it is refused."""
    for options in ({}, {"batch": 2, "deadline": 0.0}, {"batch": 2, "deadline": 30.0}):
        made, begin = lab.pool(**options), threading.Event()

        def wait(begin: Any = begin) -> None:
            begin.wait(LIMIT / 2)

        first = made.submit(X if options else Input(wait))
        futures = [first, made.submit(X)]
        for future in futures:
            future._condition.acquire()
        begin.set()
        made.close()
        for future in futures:
            future._condition.release()
        for future in futures:
            with suppress(tflgpu.StateError):  # it had not begun
                np.testing.assert_allclose(future.result(LIMIT)[0], Y, rtol=1e-5)
        made.close()
        check_closed(lambda m=made: m(X))  # type: ignore[misc]


def callbacks_at_once(lab: Lab) -> None:
    """Of several futures, beside a thread that closes the pool as well."""
    for options in ({}, {"batch": 2, "deadline": 0.0}):
        made = tflgpu.Pool(models.chain(), delegates=[lab.shared], size=2, **options)
        futures = [made.submit(X) for _ in range(6)]
        for future in futures:
            future.add_done_callback(lambda _, m=made: m.close())  # type: ignore[misc]
        made.close()
        for future in futures:
            with suppress(tflgpu.StateError):  # it had not begun
                np.testing.assert_allclose(future.result(LIMIT)[0], Y, rtol=1e-5)
        check_closed(lambda m=made: m(X))  # type: ignore[misc]


def progress(lab: Lab) -> None:
    """The threads that compile call it while the one that loads waits for them."""
    told: list[int] = []
    own: list[Any] = []

    def close(ready: int, whole: int) -> None:
        if ready and not told:
            told.append(whole)
            own[0].close()

    own.append(lab.delegate(progress=close, enable_serialization=False))
    made = tflgpu.Interpreter(model_content=models.two_subgraphs(), experimental_delegates=own)
    made.allocate_tensors()
    if lab.backend == "cpu_ref":  # which compiles nothing
        own[0].close()
    check_closed(made.invoke)


CASES: dict[str, Callable[[Lab], None]] = {
    **{f"{m.__name__} closed": lambda lab, m=m: a_signal(lab, m, closes=True) for m in MAKERS},  # type: ignore[misc]
    **{f"{m.__name__} called": lambda lab, m=m: a_signal(lab, m, closes=False) for m in MAKERS},  # type: ignore[misc]
    **{f.__name__: f for f in (
        inputs_that_close, inputs_that_call, inputs_that_wait_for_another_thread,
        a_futures_callback, a_futures_lock, callbacks_at_once, progress,
    )},
}  # fmt: skip


def cases_of(backend: str) -> list[str]:
    """All on one; on the others what a signal closes in the middle of their drivers' calls."""
    return [name for name in CASES if backend == "opencl" or name.endswith("closed")]


def main(backend: str, only: str = "") -> None:
    lab = Lab(backend)
    lab.interpreter().close()
    for name in cases_of(backend):
        if only in name:
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            CASES[name](lab)
            faulthandler.cancel_dump_traceback_later()
            print(f"case {name}", flush=True)
    lab.shared.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
