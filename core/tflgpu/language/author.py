"""Where a kernel's author is: the file and line that messages about writing kernels name.

It is the innermost line outside of the language and of the views that kernels load and store by.
"""

from __future__ import annotations

import sys
from types import CodeType

from tflgpu.errors import KernelError

#: An instruction of some code: quick to take down, and read only when a message needs it.
Place = tuple[CodeType, int]

_NOT_AUTHORS = ("tflgpu.language.", "tflgpu.lowering.", "contextlib")


class _Modules(dict[str, bool]):
    """By a module's name: whether its lines are no author's."""

    def __missing__(self, name: str) -> bool:
        return self.setdefault(name, name.startswith(_NOT_AUTHORS))


_modules = _Modules()


def here() -> Place:
    """The author's place, now."""
    # A stack's summary takes a hundred times as long. Who calls this is no author either.
    frame = sys._getframe(2)  # noqa: SLF001
    while _modules[frame.f_globals.get("__name__", "")]:
        if frame.f_back is None:
            break
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def shown(place: Place) -> str:
    """A place as ``file:line``."""
    code, at = place
    lines = (line for start, end, line in code.co_lines() if start <= at < end and line)
    return f"{code.co_filename}:{next(lines, code.co_firstlineno)}"


def refused(message: str) -> KernelError:
    """The error for what the author just wrote."""
    return KernelError(f"{message} ({shown(here())})")
