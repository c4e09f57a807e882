"""Constants that recordings of a device share: one copy for all that read it.

Two interpreters of one model, the copies of a `tflgpu.Pool` and a model at several input shapes
have weights with the same contents. They are known by what they contain, bit for bit, and by
nothing else, so that it does not matter where they came from, and a file that was changed is never
taken for what it was. To compare them costs a start nothing: a digest of small ones, and of large
ones a sample tells what may be equal; only then is what lies on the device read back.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from tflgpu.compiler.constants import ConstantItem, Constants, Key, equal, firsts, flat, key_of
from tflgpu.errors import DeviceError
from tflgpu.values import define

R = TypeVar("R")
#: A region, and what frees it.
Made = tuple[R, Callable[[], None]]


@define(eq=False)
class _Weight(Generic[R]):
    key: Key
    region: R
    free: Callable[[], None]
    users: int = 1


class Holding(Generic[R]):
    """What one recording uses of the shared constants.

    Attributes:
        regions: One per constant of the plan.
    """

    def __init__(
        self, shared: SharedWeights[R], weights: Sequence[_Weight[R]], at: Sequence[int]
    ) -> None:
        self._shared = shared
        self._weights = list(weights)
        self.regions: list[R] = [weights[i].region for i in at]

    def close(self) -> None:
        """Let go of them; the last one to do so frees them. Twice is harmless."""
        weights, self._weights, self.regions = self._weights, [], []
        if weights:
            self._shared.let_go(weights)

    def __del__(self) -> None:
        # Dropped without having been closed, wherever objects are collected: freed later.
        self._shared.left.extend(self._weights)


class SharedWeights(Generic[R]):
    """The constants on one device.

    Attributes:
        left: Constants whose users ended, once for each; the next call here counts them.
    """

    def __init__(self) -> None:
        self.left: deque[_Weight[R]] = deque()
        self._there: dict[Key, list[_Weight[R]]] = {}
        self._lock = threading.Lock()

    def hold(
        self,
        constants: Constants,
        make: Callable[[Sequence[int]], Sequence[Made[R]]],
        read: Callable[[R], Any],
    ) -> Holding[R]:
        """Have every constant on the device. Called by one thread at a time.

        Args:
            constants: A plan's.
            make: Allocates and fills those of some indices; where it fails it leaves nothing.
            read: The bytes of a region.

        Raises:
            What ``make`` and ``read`` raise; nothing is held then.
        """
        self.sweep()
        keys = list(map(key_of, constants.items))
        first = firsts(constants.items, keys)
        own = [i for i, j in enumerate(first) if i == j]
        found: dict[int, _Weight[R]] = {}
        try:
            for i in own:
                weight = self._found(constants.items[i], keys[i], read)
                if weight is not None:
                    found[i] = weight
            new = [i for i in own if i not in found]
            for i, (region, free) in zip(new, make(new), strict=True):
                found[i] = weight = _Weight(keys[i], region, free)
                with self._lock:
                    self._there.setdefault(weight.key, []).append(weight)
        except BaseException:
            self.let_go(list(found.values()))
            raise
        places = {i: n for n, i in enumerate(found)}
        return Holding(self, list(found.values()), [places[j] for j in first])

    def lacking(self, constants: Constants) -> list[int]:
        """The constants that would have to be made, as far as that shows without reading any."""
        self.sweep()
        keys = list(map(key_of, constants.items))
        first = firsts(constants.items, keys)
        with self._lock:
            return [i for i, j in enumerate(first) if i == j and keys[i] not in self._there]

    def let_go(self, weights: Sequence[_Weight[R]]) -> None:
        """A user needs them no more."""
        self.left.extend(weights)
        self.sweep()

    def sweep(self) -> None:
        """Free the constants without users."""
        # Whoever has the lock may be this very thread, interrupted by the end of some object. It
        # looks again when it is done.
        while self.left and self._lock.acquire(blocking=False):
            try:
                unused = self._unused()
            finally:
                self._lock.release()
            for weight in unused:
                # A device that is lost cannot free what it held, which is no news; and whoever
                # comes by here has nothing to do with it.
                with contextlib.suppress(DeviceError):
                    weight.free()

    def _unused(self) -> list[_Weight[R]]:
        unused = []
        while self.left:
            weight = self.left.popleft()
            weight.users -= 1
            if not weight.users:
                those = self._there[weight.key]
                those.remove(weight)
                if not those:
                    del self._there[weight.key]
                unused.append(weight)
        return unused

    def _found(
        self, numbers: ConstantItem, key: Key, read: Callable[[R], Any]
    ) -> _Weight[R] | None:
        with self._lock:
            candidates = list(self._there.get(key, ()))
            for weight in candidates:
                weight.users += 1
        self.sweep()
        same: _Weight[R] | None = None
        try:
            same = next(
                (w for w in candidates if key[2] or equal(read(w.region), flat(numbers))), None
            )
        finally:
            self.let_go([w for w in candidates if w is not same])
        return same
