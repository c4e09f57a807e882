"""Recordings whose run took longer than the timeout. The device may still write to their memory, so
they are kept without waiting, and closed with other recordings once the device is done."""

from __future__ import annotations

from tflgpu.backend_kit.forks import call_in_child, immortal
from tflgpu.contract.device import Recording
from tflgpu.contract.pending import Pending
from tflgpu.errors.blame import attempt

#: Each with the run that it did not end in time. Changed in single steps, which need no lock.
_held: list[tuple[Recording, Pending]] = []


def give_up(recording: Recording, pending: Pending) -> None:
    """Wait for it no longer; from now on it is this module's to close."""
    _held.append((recording, pending))


def is_given_up(recording: Recording) -> bool:
    """Whether closing it would wait for a run that took too long already."""
    return any(held is recording for held, _ in _held)


def close_what_ended() -> None:
    """Close those that the device is done with. Asks it; does not wait."""
    for entry in tuple(_held):
        recording, pending = entry
        # A driver that cannot even say has nothing more to write, or has crashed.
        if attempt(pending.done) is not False:
            attempt(recording.close)
            if entry in _held:
                _held.remove(entry)


def _leave_to_parent() -> None:
    for recording, _ in _held:
        immortal(recording)
    _held.clear()


call_in_child(_leave_to_parent)
