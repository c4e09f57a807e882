"""Equal kernels are one object, so that whatever is done with a kernel is done once.

A network repeats its blocks: MobileNet v2 has 55 dispatches and 33 different kernels. The builder asks
here for each kernel that it has finished; who checks, prints or compiles kernels goes by
identity.
"""

from __future__ import annotations

import threading
import weakref

from tflgpu.language.fingerprint import fingerprint
from tflgpu.language.tree import Kernel

#: All kernels that somebody still has, by their fingerprints.
_kernels: weakref.WeakValueDictionary[str, Kernel] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def unique(kernel: Kernel) -> Kernel:
    """The kernel with this content: an earlier one that is still in use, or this one."""
    key = fingerprint(kernel)
    with _lock:
        return _kernels.setdefault(key, kernel)
