"""Where options come from besides keywords: dictionaries, text, TOML files, the environment.

What says the same option in several places is settled by this order:

    keyword > environment variable > file > default

All variables that begin with TFLGPU_ are listed here. One of the name of no option and of nothing
else is a mistake that would go unnoticed, so it is warned of, once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tflgpu.errors import OptionError
from tflgpu.errors.blame import did_you_mean, shown
from tflgpu.options.definition import variable
from tflgpu.options.option_list import OPTIONS
from tflgpu.options.other_names import OTHER_NAMES, REFUSED, canonical
from tflgpu.values import frozen

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

#: Bytes of a file of options, which is a page of text.
_MOST = 1 << 20
#: Dots in a line of it: the time that a key of many parts takes grows with their square.
_MOST_DOTS = 100


def from_dict(options: Mapping[str, object]) -> dict[str, Any]:
    """The values of options by name, as keywords have them.

    Raises:
        OptionError: it is no mapping of names, or as `canonical`.
    """
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise OptionError(f"options are a mapping by name, not {shown(options)}")
    return canonical(options)


def from_toml(path: str | os.PathLike[str], table: str = "", who: str = "") -> dict[str, Any]:
    """The values that a TOML file has, in the table of that name ("tool.tflgpu") or at its top.

    Raises:
        OptionError: the file cannot be read, or as `canonical`; begins with ``who``, by default the
            file's name.
    """
    who = who or f"{os.fspath(path)}: "
    # Not at the top: few have such a file.
    tomllib = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        # A pipe could be waited for for ever, and a device has no end.
        if Path(path).exists() and not (
            Path(path).is_file() and Path(path).stat().st_size <= _MOST
        ):
            raise OptionError(f"it is no regular file of at most {_MOST >> 20} MiB")
        text = Path(path).read_text(encoding="utf-8")
        if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
            raise OptionError(f"a line has more than {_MOST_DOTS} dots")
        content: Any = tomllib.loads(text)
    except OSError as error:
        raise OptionError(f"{who}{error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or nested too deep
        raise OptionError(f"{who}it is no TOML file: {error}") from error
    for name in table.split(".") if table else ():
        if not isinstance(content, Mapping) or name not in content:
            raise OptionError(f"{who}it has no table [{table}]")
        content = content[name]
    if not isinstance(content, Mapping):
        raise OptionError(f"{who}[{table}] is no table")
    return canonical(content, who=who)


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


@frozen
class OptionValues:
    """Values from all sources, and for errors where those came from that the caller did not
    give."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    def explain(self, error: OptionError) -> OptionError:
        """The error with the sources of values that the caller did not give."""
        listed = ", ".join(f"{name} is from {source}" for name, source in self.sources.items())
        return OptionError(f"{error} ({listed})") if listed else error


def gathered(given: Mapping[str, Any], environ: Mapping[str, str]) -> OptionValues:
    """Merge the caller's options, then those of the environment, then those of the file that
    ``TFLGPU_OPTIONS_FILE`` names.

    ``backend``, ``device`` and ``cpu_backend`` are left out where a variable has them: it is looked
    up where they are used, and reports say so.

    Args:
        given: As `canonical` gives it.
        environ: Variables.

    Raises:
        OptionError: as `environment_options` and `from_toml`.
    """
    around = environment_options(environ)
    path = environ.get(OPTIONS_FILE, "").strip()
    below = from_toml(path, who=f"{OPTIONS_FILE}={path}: ") if path else {}
    for name, key in LATE.items():
        if environ.get(key, "").strip():
            around.pop(name, None)
            below.pop(name, None)
    sources = {**dict.fromkeys(below, path), **{name: variable(name) for name in around}}
    others = {name: source for name, source in sources.items() if name not in given}
    return OptionValues({**below, **around, **given}, others)
