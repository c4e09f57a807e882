"""TFLite's interpreter with custom operators in native code, which LiteRT's kernels run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.errors import OptionError
from tflgpu.errors.blame import shown
from tflgpu.interpreter.api import Interpreter


class InterpreterWithCustomOps(Interpreter):
    """An `Interpreter` that takes registerers of custom operators, as TFLite's does.

    A registerer is C++: the name of an exported function of a library that this process has loaded,
    or a function that is called with the address of a ``tflite::MutableOpResolver``
    (``ai_edge_litert.pywrap_genai_ops.GenAIOpsRegisterer`` is one). They are handed to LiteRT,
    which runs these operators on the CPU, beside the parts of the model that are on the device; so
    ``ai-edge-litert`` is needed, of the version that they were built for. A custom operator in
    Python, with a kernel for any GPU, is a plugin (docs/tutorial-op.md), and then every
    `Interpreter` runs it.
    """

    def __init__(self, custom_op_registerers: Sequence[Any] | None = None, **kwargs: Any) -> None:
        """Read a model, as `Interpreter` does with ``kwargs``, and call each registerer. (LiteRT
        calls them again for each part of a model that it runs.)

        Raises:
            OptionError: what was given is no list of names and functions, no library has a function
                of a name, or a function raises.
            DeviceError: what runs operators on the CPU takes none in native code.
        """
        given = custom_op_registerers
        if isinstance(given, str) or (given is not None and not isinstance(given, Sequence)):
            raise OptionError(f"custom_op_registerers is a list, not {shown(given)}")
        for each in given or ():
            if not isinstance(each, str) and not callable(each):
                raise OptionError(
                    f"custom_op_registerers has {shown(each)}: a registerer is the name of a "
                    "function, or a function"
                )
        self._registerers = tuple(given or ())
        super().__init__(**kwargs)
        if self._registerers:
            try:
                self._cpu.device  # noqa: B018  (which is given them when it is opened)
            except BaseException:
                self.close()
                raise
