"""One thing that a backend must get right, and what may come of asking."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Union

import attrs

from tflgpu.lowering.reason import Unsupported

if TYPE_CHECKING:
    from tflgpu.conformance.target import DeviceUnderTest

#: What the levels are about, by number.
LEVELS = ("device", "nodes", "ops", "generated", "graphs", "guards")


@attrs.frozen
class NotApplicable:
    """The question does not arise on a device: it has no 16-bit arithmetic, say."""

    reason: str


#: None is a pass; `Unsupported` is the device's refusal, with its reason. A failure is raised.
Outcome = Union[Unsupported, NotApplicable, None]


@attrs.frozen
class Check:
    """One case of the suite.

    Attributes:
        id: Level and name, "2/CONV_2D/plain/f32/edge"; what expectations are written for.
        run: Asks a target. Raises `AssertionError` where it is wrong, and lets the target's own
            errors through; both are failures.
        op: The op it is about, "" where it is about none.
    """

    id: str
    run: Callable[[DeviceUnderTest], Outcome] = attrs.field(eq=False, repr=False)
    op: str = ""

    @property
    def level(self) -> int:
        """Which of `LEVELS` it belongs to."""
        return int(self.id[0])
