"""`Environment`: the devices that compiled models share."""

from __future__ import annotations

import dataclasses
import weakref
from types import TracebackType
from typing import Any

from tflgpu.backend_kit.run_guard import RunGuard
from tflgpu.compiled_model.options import HardwareAccelerator, Options
from tflgpu.errors import OptionError, StateError
from tflgpu.errors.blame import shown
from tflgpu.interpreter.gpu_delegate import GpuDelegate
from tflgpu.options import DelegateOptions, OpResolverType


@dataclasses.dataclass(frozen=True)
class EnvironmentOptions:
    """Where LiteRT looks for its libraries. tflgpu looks for none, so that they have no effect."""

    runtime_path: str | None = None
    compiler_plugin_path: str = ""
    dispatch_library_path: str = ""


class Environment:
    """Devices that models share. It opens one for the models that run on the GPU alone, when the
    first of them is compiled; others use the process's default one. `with_delegate` names one."""

    def __init__(self, capsule: GpuDelegate | None, options: EnvironmentOptions) -> None:
        """With a delegate of the caller's, or none."""
        self._options = options
        self._given = capsule
        self._opened: dict[DelegateOptions, GpuDelegate] = {}
        self._guard = RunGuard("this environment")
        self._end = weakref.finalize(self, _close, self._opened)

    @classmethod
    def create(
        cls,
        *,
        options: EnvironmentOptions | str | None = None,
        runtime_path: str | None = None,
        compiler_plugin_path: str = "",
        dispatch_library_path: str = "",
    ) -> Environment:
        """An environment; the arguments have no effect.

        Raises:
            OptionError: options and paths, or a path twice.
        """
        if isinstance(options, str):
            if runtime_path is not None:
                raise OptionError("runtime_path was provided twice; give it once")
            options, runtime_path = None, options
        if options is None:
            options = EnvironmentOptions(runtime_path, compiler_plugin_path, dispatch_library_path)
        elif runtime_path is not None or compiler_plugin_path or dispatch_library_path:
            raise OptionError("Pass either options or environment path shortcuts, not both")
        return cls(None, options)

    @classmethod
    def with_delegate(cls, delegate: GpuDelegate) -> Environment:
        """An environment whose models run on a delegate's device, with its options. The delegate
        stays the caller's, and must be closed after the models. (LiteRT has no such.)

        Raises:
            OptionError: no `GpuDelegate`.
        """
        if not isinstance(delegate, GpuDelegate):
            raise OptionError(f"a tflgpu.GpuDelegate is needed, not {shown(delegate)}")
        return cls(delegate, EnvironmentOptions())

    @property
    def options(self) -> EnvironmentOptions:
        """The paths of LiteRT's libraries, which have no effect here."""
        return self._options

    @property
    def capsule(self) -> GpuDelegate | None:
        """The delegate of `with_delegate`.

        Raises:
            StateError: the environment is closed.
        """
        self._check_open()
        return self._given

    def delegate(self, options: DelegateOptions) -> GpuDelegate:
        """A delegate with options: one that models share.

        Raises:
            StateError: the environment is closed.
            DeviceError, OptionError: as `GpuDelegate`.
        """
        self._check_open()
        with self._guard:
            if options not in self._opened:
                self._opened[options] = GpuDelegate(options)
            return self._opened[options]

    def close(self) -> None:
        """Close the devices that it opened; twice is harmless. Models must be closed before."""
        self._guard.close(self._end)

    def __enter__(self) -> Environment:
        self._check_open()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _check_open(self) -> None:
        if self._guard.closed:
            raise StateError("Environment is no longer valid: it is closed; create another one")


def _close(opened: dict[DelegateOptions, GpuDelegate]) -> None:
    while opened:
        opened.popitem()[1].close()


def interpreter_arguments(
    where: HardwareAccelerator, environment: Environment, options: Options
) -> dict[str, Any]:
    """What the interpreter of a model is made with.

    Raises:
        OptionError: an option that is refused.
        StateError: the environment is closed.
        DeviceError: the GPU alone, and there is none.
    """
    of_cpu, of_gpu = options.cpu_options.delegate_options(), options.gpu_options.delegate_options()
    given = environment.capsule
    if not where & HardwareAccelerator.GPU or given is not None:
        if given is not None and of_gpu:
            raise OptionError(
                f"{', '.join(of_gpu)}: the environment's delegate has options of its own; give "
                "them to tflgpu.GpuDelegate, and no gpu_options"
            )
        return {
            "experimental_delegates": [given] if where & HardwareAccelerator.GPU else [],
            "num_threads": of_cpu.get("num_threads"),
            "experimental_op_resolver_type": of_cpu.get("op_resolver", OpResolverType.AUTO),
        }
    if where & HardwareAccelerator.CPU:
        return {"experimental_delegates": DelegateOptions.gathered({**of_cpu, **of_gpu})}
    alone = DelegateOptions.gathered({**of_cpu, **of_gpu, "allow_fallback": False})
    return {"experimental_delegates": [environment.delegate(alone)]}
