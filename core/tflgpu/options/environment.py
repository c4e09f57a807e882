"""Options from environment variables, and all other variables that begin with TFLGPU_.

A variable of the name of no option and of nothing else is a mistake that would go unnoticed, so it
is warned of, once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from tflgpu.errors.blame import did_you_mean
from tflgpu.options.definition import variable
from tflgpu.options.option_list import OPTIONS
from tflgpu.options.other_names import OTHER_NAMES, REFUSED, canonical

_LOG = logging.getLogger("tflgpu")
PREFIX = "TFLGPU_"
#: A TOML file of options.
OPTIONS_FILE = "TFLGPU_OPTIONS_FILE"

#: What else is read, and by whom. Everything that the project reads is here or is an option's.
OTHER_VARIABLES: Mapping[str, str] = {
    OPTIONS_FILE: "a TOML file of options, which come after variables and before defaults",
    "TFLGPU_CACHE_DIR": "the folder for compiled programs and measured times, in the place of the "
    "user's cache folder",
    "TFLGPU_DEFAULT_DELEGATE": "0 lets models without a delegate run on the CPU",
    "TFLGPU_VULKAN_QUEUES": "how many of a Vulkan device's queues recordings take in turn; 3 where "
    "nothing is said, fewer where the device has fewer that are at work at the same time",
    "TFLGPU_VULKAN_VALIDATION": "1 loads Vulkan's validation layer",
    "TFLGPU_MODELS": "the tests' and benchmarks' folder of models",
    "TFLGPU_REQUIRE_BACKENDS": "backends whose tests may not be skipped",
    "TFLGPU_TEST_EVERYTHING": "1 lets tests leave no model, precision or sample out",
    "TFLGPU_SIGNALS": "the tests' own, for a process that they start",
}

#: Options that are looked up in the environment where they are used, so that they also count
#: beside a given `DelegateOptions`.
LATE = {
    "backend": "TFLGPU_BACKEND",
    "device": "TFLGPU_DEVICE",
    "cpu_backend": "TFLGPU_CPU_BACKEND",
}

_NAMES = (*OPTIONS, *OTHER_NAMES, *REFUSED)
_warned: set[str] = set()


def environment_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that environment variables set, by name: ``TFLGPU_PRECISION`` is `precision`.
    Empty variables say nothing. A variable that nothing reads is warned of, once in a process.

    Raises:
        OptionError: a value that its option does not take, or two that contradict each other; names
            the variable.
    """
    texts: dict[str, str] = {}
    for key, text in environ.items():
        name = key.removeprefix(PREFIX).lower()
        if not key.startswith(PREFIX) or key in OTHER_VARIABLES:
            continue
        if name not in _NAMES or key != key.upper():
            _warn_of_unknown(key)
        elif text.strip():
            texts[name] = text
    given = {name: texts[name] for name in _NAMES if name in texts}
    return canonical(given, text=True, called=variable)


def _warn_of_unknown(key: str) -> None:
    if key not in _warned:
        _warned.add(key)
        there = sorted({*map(variable, _NAMES), *OTHER_VARIABLES})
        _LOG.warning(
            "tflgpu: the environment variable %s is unknown%s; docs/options.md lists what there is",
            key,
            did_you_mean(key, there),
        )
