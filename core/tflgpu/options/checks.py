"""Refuses options that contradict each other and values that are impossible, and says what to
do."""

from __future__ import annotations

from tflgpu.compiler.partition_by import PartitionBy
from tflgpu.errors import OptionError
from tflgpu.lowering.precision import Precision
from tflgpu.options.enums import OnError, WaitType

_NO_WAITS = {
    WaitType.DO_NOT_WAIT: "an interpreter's results are read from host arrays, which hold them "
    "only once the run is over; use PASSIVE, or invoke_async, whose runs have results of their own",
    WaitType.AGGRESSIVE: "it would keep the GPU from saving power between two runs, which no API "
    "that is used here can; ACTIVE is the nearest",
}


#: The backend's name for no device: the CPU runs everything.
CPU = "cpu"


def check_backend(backend: str | None, device: int | str | None, allow_fallback: bool) -> None:
    """Refuse a device together with a request for the CPU alone.

    Raises:
        OptionError: names both options.
    """
    if backend == CPU and device is not None:
        raise OptionError(
            f"backend={CPU} uses no device, and device={device} asks for one; drop one of the two"
        )
    if backend == CPU and not allow_fallback:
        raise OptionError(
            f"backend={CPU} runs everything on the CPU, which allow_fallback=False forbids; drop "
            "one of the two"
        )


def check_precision(precision: Precision | None, loss: bool | None) -> None:
    """Refuse a 16-bit precision where no loss of precision is allowed.

    Raises:
        OptionError: names both options.
    """
    if loss is False and precision in (Precision.F16, Precision.F32_F16):
        raise OptionError(
            f"precision={precision.name} needs 16-bit floats, which "
            "is_precision_loss_allowed=False forbids; drop one of the two"
        )


def check_partitioning(partitioning: PartitionBy | None, allow_fallback: bool) -> None:
    """Refuse partitioning=GAIN where nothing may run on the CPU.

    Raises:
        OptionError: names both options.
    """
    if partitioning is PartitionBy.GAIN and not allow_fallback:
        raise OptionError(
            "partitioning=GAIN leaves to the CPU what is faster there, which allow_fallback=False "
            "forbids; drop one of the two"
        )


def check_on_error(on_error: OnError | None, allow_fallback: bool) -> None:
    """Refuse on_error=CPU where nothing may run on the CPU.

    Raises:
        OptionError: names both options.
    """
    if on_error is OnError.CPU and not allow_fallback:
        raise OptionError(
            "on_error=CPU lets the CPU go on where the device fails, which allow_fallback=False "
            "forbids; drop one of the two"
        )


def check_nodes(first: int, last: int | None) -> None:
    """Refuse a range of nodes that is empty.

    Raises:
        OptionError: names both options.
    """
    if last is not None and last < first:
        raise OptionError(
            f"last_delegate_node_index={last} is before first_delegate_node_index={first}, so that "
            "nothing would be delegated; for that, give no delegate"
        )


def check_serialization(folder: str | None, token: str | None, enabled: bool | None) -> None:
    """Refuse serialization options without the others that they need.

    Raises:
        OptionError: names what is there and what lacks.
    """
    given = {"serialization_dir": folder, "model_token": token}
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


def check_wait(wait: WaitType) -> None:
    """Refuse a wait type that tflgpu does not have.

    Raises:
        OptionError: it cannot; says why, and what to use.
    """
    if wait in _NO_WAITS:
        raise OptionError(f"wait_type={wait.name} cannot be had: {_NO_WAITS[wait]}")
