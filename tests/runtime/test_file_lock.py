"""Locks between processes are let go of, whatever ends who held them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tflgpu.cache import file_lock
from tflgpu.cache.file_lock import FileLock, exclusive
from tflgpu.conformance.contract.signals import handled, interrupted, steps


def is_free(path: Path) -> bool:
    lock = FileLock(path)
    try:
        return lock.acquire()
    finally:
        lock.close()


# A handler that is called in `__del__` raises in vain.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"

    def action() -> None:
        with exclusive(path, 1.0):
            assert not is_free(path)

    within = str(Path(file_lock.__file__).parent)
    total = steps(action, within=within, event="opcode")
    assert total > 100
    came = 0
    with handled():
        for at in range(total):
            error = interrupted(action, at, within=within, event="opcode").error
            came += error is not None
            while error is not None:  # tracebacks hold the frames, and they the lock
                error.__traceback__, error = None, error.__context__
            assert is_free(path), f"after a signal at step {at + 1} of {total}"
    assert came > total // 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_closes_no_file_of_its_own_for_it(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "a.lock")
    assert lock.acquire()
    child = os.fork()
    if not child:
        try:
            opened = os.open(tmp_path / "b", os.O_RDWR | os.O_CREAT)
            os._exit(0 if opened == lock.handle and _outlives(lock, opened) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not is_free(tmp_path / "a.lock")
    lock.close()
    lock.close()
    assert is_free(tmp_path / "a.lock")


def _outlives(lock: FileLock, opened: int) -> bool:
    lock.close()
    return os.write(opened, b"x") == 1
