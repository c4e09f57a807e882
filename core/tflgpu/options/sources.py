"""Where options come from besides keywords."""

from __future__ import annotations

from collections.abc import Mapping

from tflgpu.options.delegate_options import DelegateOptions, known_options
from tflgpu.options.other_names import canonical


def options_from_text(options: Mapping[str, object]) -> DelegateOptions:
    """Options whose values are text, as TFLite's `load_delegate` takes them: numbers in digits, truth
    values as words, lists between commas, and "none" for what picks by itself. Other values are
    taken as they are.

    Raises:
        OptionError: as `DelegateOptions`.
    """
    return DelegateOptions(**canonical(options, known_options(), text=True))
