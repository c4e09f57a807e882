"""A graph that a device can run several times over in one run, each time on what the last time made."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tflgpu.compiler.compiled import Compiled
from tflgpu.compiler.parts import Part
from tflgpu.compiler.repeat import as_state, repeated
from tflgpu.errors import DeviceError
from tflgpu.ir.graph import Value
from tflgpu.runtime.session import Session
from tflgpu.values import frozen


@frozen(eq=False)
class Repeating:
    """One, compiled.

    Attributes:
        compiled: Wholly on the device, as one part.
        carries: As `tflgpu.compiler.repeat.carried` gives it.
        load: Opens what is compiled, on the device or not at all.
        load_carrying: As `tflgpu.runtime.loading.Loader.open_carrying`.
    """

    compiled: Compiled
    carries: Mapping[int, int]
    load: Callable[[Compiled], Session]
    load_carrying: Callable[[Compiled, Part, tuple[Value, ...]], Session]

    @property
    def dispatches(self) -> int:
        """Kernels that one time launches."""
        return self.compiled.parts[0].dispatches

    def open(self, count: int) -> Session | None:
        """A session that runs it ``count`` times in a run; None where the device has no room for it.

        Raises:
            PluginError: as `tflgpu.engine.Engine.open_session`.
        """
        (part,) = self.compiled.parts
        assert part.plan is not None
        plan = repeated(part.plan, self.carries, count)
        again = attrs.evolve(self.compiled, parts=(attrs.evolve(part, plan=plan),))
        try:
            return self.load(again)
        except DeviceError:
            return None  # who opens a round by itself is told

    def open_carrying(self) -> Session | None:
        """A session that runs it once in a run, and has what is carried in its variables, by the inputs
        that it is; None where the device has no room for it, or one result is carried twice.

        Raises:
            PluginError: as `open`.
        """
        (part,) = self.compiled.parts
        found = as_state(part, self.carries)
        if found is None or not self.carries:
            return None
        try:
            return self.load_carrying(self.compiled, *found)
        except DeviceError:
            return None  # as above
