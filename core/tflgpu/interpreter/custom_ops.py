"""TFLite's interpreter with custom operators, as far as that can be without its C++ runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tflgpu.blame import shown
from tflgpu.errors import OptionError
from tflgpu.interpreter.api import Interpreter


class InterpreterWithCustomOps(Interpreter):
    """An `Interpreter`, by the name under which TFLite's takes registerers of custom operators.

    A registerer is C++: the name of a function, or a function that takes the address of a
    ``tflite::MutableOpResolver``. There is none here for it to register with. A custom operator
    comes as a plugin instead (docs/tutorial-op.md), in Python and with a kernel for any GPU, and
    then every `Interpreter` runs it.
    """

    def __init__(self, custom_op_registerers: Sequence[Any] | None = None, **kwargs: Any) -> None:
        """Read a model, as `Interpreter` does with ``kwargs``.

        Raises:
            OptionError: registerers were given.
        """
        given = list(custom_op_registerers or ())
        if given:
            raise OptionError(
                f"custom_op_registerers {shown(given)}: they fill a C++ op resolver, which tflgpu "
                "does not have. Bring the operator as a plugin (docs/tutorial-op.md), or run the "
                "model by ai_edge_litert.interpreter.InterpreterWithCustomOps, which takes a "
                "GpuDelegate for the other operators"
            )
        super().__init__(**kwargs)
