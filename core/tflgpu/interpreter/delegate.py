"""`load_delegate`: a delegate by its name, as scripts for TensorFlow Lite load it."""

from __future__ import annotations

from collections.abc import Mapping

from tflgpu.errors import DelegateError, DeviceError, OptionError
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.options import DelegateOptions


class Delegate(GpuDelegate):
    """A `GpuDelegate` made by name and with text for options, as TFLite makes its delegates.

    Args:
        library: "tflgpu". Delegates of others are shared libraries, which only LiteRT's own
            ``load_delegate`` loads.
        options: Names of `DelegateOptions`; values may be text.

    Raises:
        OptionError: another library, or as `GpuDelegate`.
        DelegateError: the backend or device asked for is not there or cannot be opened.
    """

    def __init__(
        self, library: str = "tflgpu", options: Mapping[str, object] | None = None
    ) -> None:
        if library != "tflgpu":
            raise OptionError(
                f"Failed to load delegate from {library}: this load_delegate gives the delegate "
                f"'tflgpu', not {library!r}; shared libraries are loaded by "
                "ai_edge_litert.interpreter.load_delegate, and run in LiteRT's interpreter"
            )
        try:
            super().__init__(DelegateOptions.gathered(options or {}, text=True))
        except OptionError as error:
            raise OptionError(f"Failed to load delegate from tflgpu: {error}") from error
        except DeviceError as error:
            raise DelegateError(
                f"Failed to load delegate from tflgpu: it cannot be loaded: {error}"
            ) from error


def load_delegate(library: str = "tflgpu", options: Mapping[str, object] | None = None) -> Delegate:
    """A `GpuDelegate` by the call that scripts make of TensorFlow Lite's, with text for options.

        delegate = tflgpu.load_delegate("tflgpu", {"backend": "opencl", "precision": "f16"})

    Every failure is a ``ValueError``, as there; scripts take it for "no such delegate".

    Raises:
        OptionError, DelegateError: as `Delegate`.
    """
    return Delegate(library, options)


def delegate_library() -> str:
    """The path of a library for LiteRT's own ``load_delegate``, valid in this process only.

        from ai_edge_litert.interpreter import Interpreter, load_delegate

        delegate = load_delegate(tflgpu.delegate_library(), {"precision": "f16"})

    Options are those of `tflgpu.load_delegate`.

    Raises:
        UnsupportedError: this system has no such library.
    """
    from tflgpu.hosts.library import library_path

    return library_path(_for_library)


def _for_library(options: Mapping[str, str]) -> tuple[int, object]:
    delegate = load_delegate("tflgpu", options)
    return delegate._get_native_delegate_pointer(), delegate  # noqa: SLF001  (as LiteRT calls it)
