"""Which provider an interpreter has: its delegate's, the CPU alone, or the shared default one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tflgpu.errors import OptionError
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.options import DelegateOptions, OpResolverType, truth
from tflgpu.runtime.provider import Provider, cpu_only

#: Switches the default delegate off where it says so: "0", "no", "off", "false".
VARIABLE = "TFLGPU_DEFAULT_DELEGATE"

#: TFLite's op resolvers that bring no default delegate.
_WITHOUT_DEFAULT = (OpResolverType.BUILTIN_REF, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)


def provider_of(
    delegates: Any, resolver: OpResolverType, environ: Mapping[str, str] = os.environ
) -> tuple[DelegateOptions, Provider | None]:
    """Options, and the provider that follows from them; None for the shared default one, which is
    opened when it is needed.

    Args:
        delegates: What the interpreter was given: at most one delegate; None lets the default one
            have its turn, as TFLite's interpreter applies XNNPACK. `DelegateOptions` are for the
            default one.
        resolver: The interpreter's; those that bring no default delegate in TFLite bring none here.
        environ: May switch the default delegate off.

    Raises:
        OptionError: no list of at most one `GpuDelegate`, or an environment variable that says
            neither yes nor no.
    """
    if isinstance(delegates, DelegateOptions):
        options = delegates
    else:
        given = None if delegates is None else _one_delegate(delegates)
        if given is not None:
            return given.options, given.provider
        options = DelegateOptions.gathered({}, environ=environ)
        if delegates is not None:
            return options, cpu_only(options)
    if resolver in _WITHOUT_DEFAULT:
        return options, cpu_only(options, f"op resolver {resolver.name} brings no default delegate")
    if not is_switched_on(environ):
        why = f"no delegate was given, and {VARIABLE} switches the default one off"
        return options, cpu_only(options, why)
    return options, None


def is_switched_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment lets models have a default delegate.

    Raises:
        OptionError: the variable says something else than yes or no.
    """
    text = environ.get(VARIABLE, "").strip()
    return truth(VARIABLE, text) if text else True


def _one_delegate(delegates: Any) -> GpuDelegate | None:
    try:
        given = list(delegates)
    except TypeError:
        kind = type(delegates).__name__
        raise OptionError(
            f"experimental_delegates is a list of GpuDelegate, not {kind}; write [delegate]"
        ) from None
    if not given:
        return None
    for delegate in given:
        if not isinstance(delegate, GpuDelegate):
            raise OptionError(
                f"experimental_delegates takes tflgpu.GpuDelegate, not {type(delegate).__name__}: "
                "delegates in shared libraries need the native runtime, ai_edge_litert"
            )
    if len(given) > 1:
        raise OptionError(
            f"{len(given)} delegates were given; one GpuDelegate serves the whole model"
        )
    only: GpuDelegate = given[0]
    return only
