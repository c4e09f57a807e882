"""The exceptions: every failure of tflgpu on bad input is a `TflgpuError`.

Each message says what failed, where (tensor, operator, file, option), why, and what to do.
Errors that stand in for one that `tf.lite.Interpreter` would raise also derive from that
built-in type (``ValueError`` or ``RuntimeError``), so scripts written for it keep working.
"""


class TflgpuError(Exception):
    """Base of every error raised on purpose by tflgpu."""


class ModelError(TflgpuError, ValueError):
    """A `.tflite` model is malformed, truncated, or uses what the format does not define."""


class UnsupportedError(TflgpuError, RuntimeError):
    """A well-formed model needs something that no available backend (nor the CPU) can run."""


class DynamicError(ModelError, UnsupportedError):
    """An operator must know something before the model runs that is only computed then."""


class BudgetError(ModelError, UnsupportedError):
    """A file asks for more work or memory before a run than any model needs."""


class GraphError(TflgpuError):
    """A graph broke one of its own rules: a defect in a pass or in a plugin."""


class KernelError(TflgpuError):
    """A kernel tree is ill-typed or broke a rule of the kernel language."""


class PluginError(TflgpuError):
    """A plugin failed to import, clashes with another, or broke the hook contract."""


class DeviceError(TflgpuError, RuntimeError):
    """A backend or device is missing, could not be opened, or failed while running."""


class DeviceLostError(DeviceError):
    """A device is gone: it crashed, was reset or taken out. What was loaded on it is lost; only
    opening it anew helps."""


class MemoryLimitError(DeviceError):
    """Something would take more of a device's memory than the option ``memory_limit`` allows."""


class RunTimeoutError(DeviceError):
    """A run took longer on the device than the option ``run_timeout`` allows."""


class DelegateError(DeviceError, ValueError):
    """A delegate that was asked for by name has no device. A `ValueError` too, as in `tf.lite`."""


class CompileError(DeviceError):
    """A driver refused a generated program; carries the source and the driver's log."""


class SavedModelError(TflgpuError, RuntimeError):
    """A saved model is damaged, is for another model, device or version, or cannot be made."""


class OptionError(TflgpuError, ValueError):
    """An option is unknown, has a value outside its range, or clashes with another."""


class InputError(TflgpuError, ValueError):
    """A tensor given to, or asked from, an interpreter has the wrong index, shape or dtype."""


class SignatureError(TflgpuError, ValueError):
    """A model does not have the inputs and outputs that the one had whose place it is to take."""


class StateError(TflgpuError, RuntimeError):
    """A call came in the wrong order: before allocation, after close, while running."""


class BusyError(StateError):
    """Nothing of a pool was free in the time that the caller had."""


class QueueFullError(BusyError):
    """As many requests wait for a pool as may: the option ``queue_limit`` of `Pool`."""


class ArgumentError(InputError, TypeError):
    """An argument is of a kind that can never be right: a name where an index goes, say."""


class ResizeError(InputError, RuntimeError):
    """A tensor cannot get the shape asked for. A `RuntimeError` too, as in `tf.lite`."""


class NotAllocatedError(StateError, ValueError):
    """Tensors have no memory yet, or no longer. A `ValueError` too, as in `tf.lite`."""


class AllocationError(ModelError, RuntimeError):
    """The model does not work out at the shapes that its inputs have now."""
