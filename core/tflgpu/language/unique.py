"""Equal kernels are one object, so that each is checked, printed and compiled once.

A network repeats its blocks: MobileNet v2 has 55 dispatches and 33 different kernels. The builder
asks here for each kernel that it has finished; who checks, prints or compiles kernels goes by
identity.
"""

from __future__ import annotations

import threading
import weakref

from tflgpu.language.kernel import Kernel
from tflgpu.language.same import same, sketch


class _Content:
    """A kernel by what is in it. It does not keep the kernel."""

    __slots__ = ("_kernel", "_sketch")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = weakref.ref(kernel)
        self._sketch = sketch(kernel)

    def __hash__(self) -> int:
        return self._sketch

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Content):
            return NotImplemented
        mine, theirs = self._kernel(), other._kernel()
        if mine is None or theirs is None:
            return self is other
        return mine is theirs or same(mine, theirs)


#: All kernels that somebody still has.
_kernels: weakref.WeakValueDictionary[_Content, Kernel] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def unique(kernel: Kernel) -> Kernel:
    """The kernel with this content: an earlier one that is still in use, or this one."""
    content = _Content(kernel)
    with _lock:
        return _kernels.setdefault(content, kernel)
