"""The session of a bucket: a plan at one size that computes smaller ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import chain

import attrs
import numpy as np

from tflgpu.contract.device import Fitting
from tflgpu.contract.offers import offers
from tflgpu.ir.dtypes import Array
from tflgpu.ir.graph import Shape
from tflgpu.lowering.reason import Unsupported
from tflgpu.runtime.loaded_part import Traffic
from tflgpu.runtime.places import Place
from tflgpu.runtime.session import Session

_NOT_BOUND = Unsupported(
    "the model runs by a plan for several sizes, whose tensors are larger; leave shape_buckets out "
    "to bind tensors"
)


class BucketSession(Session):
    """Runs what another session has loaded, which is spent. Its arrays are the beginnings of larger
    ones: what is behind them is 0 in inputs, and not shown of outputs.

    Args:
        loaded: A session of the bucket's graph.
        keep: Takes the session when it is closed, to be fitted to another size later; False where
            it does not.
    """

    def __init__(self, loaded: Session, keep: Callable[[BucketSession], bool]) -> None:
        self._open, self.traffic, self._watcher = [], Traffic(), None
        self.take_over(loaded)
        self.belongs_to_process()
        self._keep = keep
        self._loaded_report = self.report
        self._shown: Mapping[int, Array] = {}

    def fit(
        self,
        shapes: Mapping[int, Shape],
        contents: Mapping[int, Array],
        absent: int,
        said: str,
    ) -> None:
        """Compute another size from now on.

        Args:
            shapes: Of inputs and outputs, by value id.
            contents: Of the inputs that the bucket has besides.
            absent: How many positions do not count.
            said: What the report says of it.

        Raises:
            DeviceError: a recording could not be made anew.
        """
        inside = {value.id for part in self.parts for value in part.inputs}
        for part in self.parts:
            if offers(part.recording, Fitting):
                made = zip(part.outputs, part.recording.outputs, strict=True)
                part.recording.fit(
                    absent,
                    [
                        a.nbytes if v.id in inside else _begun(a, shapes.get(v.id, a.shape))
                        for v, a in made
                    ],
                )
        for value in self._graph_inputs:
            array = self._arrays[value.id]
            array[...] = contents.get(value.id, 0)
        for _, array, source in chain.from_iterable(self._own_moves):
            np.copyto(array, source, casting="unsafe")
        self._replaced(unchanged=contents)  # a run copies no masks
        self._shown = {
            i: array[tuple(map(slice, shapes[i])) or ...] if i in shapes else array
            for i, array in self._arrays.items()
        }
        self.complete = True
        choice = (*self._loaded_report.choice, said)
        self.report = attrs.evolve(self._loaded_report, choice=choice)

    @property
    def arrays(self) -> Mapping[int, Array]:
        """Host arrays by value id, at the same address until `close` or `fit`."""
        return self._shown

    def put(self, value_id: int, place: Place | None) -> Unsupported | None:
        """Refuses: what is bound has the size of the moment."""
        return None if place is None else _NOT_BOUND

    def refusal(self, value_id: int) -> Unsupported:
        """The reason, which is the same for all tensors."""
        return _NOT_BOUND

    def lend(self, value_id: int) -> Array | None:
        """Nothing: its arrays are parts of others."""
        return None

    def close(self) -> None:
        """Be kept for another size; released where it is broken, or too many are kept."""
        if self.is_closed or self.inherited or not self._keep(self):
            super().close()


def _begun(array: Array, shape: Shape) -> int:
    """Bytes of an array up to its last element that lies in the corner of a shape."""
    if 0 in shape:
        return 0
    last = sum((n - 1) * step for n, step in zip(shape, array.strides, strict=True))
    return last + array.itemsize
