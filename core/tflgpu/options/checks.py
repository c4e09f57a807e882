"""Refuses options that contradict each other and values that are impossible, and says what to
do."""

from __future__ import annotations

from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.errors import OptionError
from tflgpu.lowering.precision import Precision
from tflgpu.options.enums import OnError, WaitType
from tflgpu.options.option_list import OptionList

_NO_WAITS = {
    WaitType.DO_NOT_WAIT: "an interpreter's results are read from host arrays, which hold them "
    "only once the run is over; use PASSIVE, or invoke_async, whose runs have results of their own",
    WaitType.AGGRESSIVE: "it would keep the GPU from saving power between two runs, which no API "
    "that is used here can; ACTIVE is the nearest",
}


#: The backend's name for no device: the CPU runs everything.
CPU = "cpu"
_HALF = (Precision.F16, Precision.F32_F16)


def check_options(options: OptionList) -> None:
    """Refuse options that clash, and a wait type that tflgpu does not have.

    Raises:
        OptionError: says why, naming the options that clash, and what to use.
    """
    backend, device, on_cpu = options.backend, options.device, options.allow_fallback
    if backend == CPU and device is not None:
        raise OptionError(
            f"backend={CPU} uses no device, and device={device} asks for one; drop one of the two"
        )
    if backend == CPU and not on_cpu:
        raise OptionError(
            f"backend={CPU} runs everything on the CPU, which allow_fallback=False forbids; drop "
            "one of the two"
        )
    precision = options.precision
    if options.is_precision_loss_allowed is False and precision in _HALF:
        raise OptionError(
            f"precision={precision.name} needs 16-bit floats, which "
            "is_precision_loss_allowed=False forbids; drop one of the two"
        )
    first, last = options.first_delegate_node_index, options.last_delegate_node_index
    if last is not None and last < first:
        raise OptionError(
            f"last_delegate_node_index={last} is before first_delegate_node_index={first}, so that "
            "nothing would be delegated; for that, give no delegate"
        )
    _check_serialization(options)
    if options.wait_type in _NO_WAITS:
        raise OptionError(
            f"wait_type={options.wait_type.name} cannot be had: {_NO_WAITS[options.wait_type]}"
        )
    if options.partitioning is PartitionBy.GAIN and not on_cpu:
        raise OptionError(
            "partitioning=GAIN leaves to the CPU what is faster there, which allow_fallback=False "
            "forbids; drop one of the two"
        )
    if options.on_error is OnError.CPU and not on_cpu:
        raise OptionError(
            "on_error=CPU lets the CPU go on where the device fails, which allow_fallback=False "
            "forbids; drop one of the two"
        )


def _check_serialization(options: OptionList) -> None:
    folder, enabled = options.serialization_dir, options.enable_serialization
    given = {"serialization_dir": folder, "model_token": options.model_token}
    lacking = [name for name, value in given.items() if value is None]
    if enabled and lacking:
        raise OptionError(
            f"enable_serialization (the flag ENABLE_SERIALIZATION) needs {' and '.join(lacking)}; "
            "without it, models are kept in the user's cache folder anyway"
        )
    if len(lacking) == 1:
        (there,) = set(given) - set(lacking)
        raise OptionError(
            f"{there} is given without {lacking[0]}; what is kept is in a folder that both name"
        )
    if enabled is False and not lacking:
        raise OptionError(
            f"serialization_dir={folder} is given, and enable_serialization is False "
            "(experimental_flags without ENABLE_SERIALIZATION says so too); drop one of the two"
        )
