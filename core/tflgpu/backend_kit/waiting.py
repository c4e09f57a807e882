"""Waiting for a device without blocking signals such as Ctrl-C.

Python handles a signal between two of its own steps, and a driver's blocking wait is a single one,
however long the device computes. So a device is asked whether it is done. At first other threads
get the processor in between, among them those of a device that is one: this hears of the end as
soon as a blocking wait does. Later the thread sleeps, for times that grow with the run, so that the
delay stays a small part of it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

#: Seconds without sleep.
_AWAKE = 2e-3
#: The part of the time waited so far that a nap takes, and the shortest and longest nap in seconds.
_PART, _SHORTEST, _LONGEST = 1 / 64, 2e-5, 0.02


class Manner(threading.local):
    """How this thread waits for a device.

    Attributes:
        asleep: Whether it leaves the interpreter lock to others, who have more use for it than for
            hearing of the end at once: it asks seldom, or has the driver wait.
        by_driver: Whether it has the driver wait for a run that was submitted. No signal comes
            meanwhile, so that it is for threads other than the main one.
        awake: Whether it never sleeps, however long the device computes.
    """

    asleep = by_driver = awake = False


manner = Manner()

_pass_on: Callable[[], object] = getattr(os, "sched_yield", lambda: time.sleep(0))


def wait_until(done: Callable[[], bool], timeout: float = math.inf) -> bool:
    """Return once ``done()`` is true: True; or after ``timeout`` seconds: False. ``done`` asks the
    device; an exception of it ends the wait."""
    start = time.perf_counter()
    while not done():
        waited = time.perf_counter() - start
        if waited >= timeout:
            return False
        if manner.awake or (waited < _AWAKE and not manner.asleep):
            _pass_on()
        else:
            time.sleep(min(max(waited * _PART, _SHORTEST), _LONGEST, timeout - waited))
    return True
