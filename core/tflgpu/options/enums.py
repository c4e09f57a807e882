"""The choices that options offer, with the codes of TensorFlow Lite's headers."""

import enum


class InferencePriority(enum.Enum):
    """TFLite's `TfLiteGpuInferencePriority`."""

    AUTO = 0
    MAX_PRECISION = 1
    MIN_LATENCY = 2
    MIN_MEMORY_USAGE = 3


class InferencePreference(enum.Enum):
    """TFLite's `TfLiteGpuInferenceUsage`: what is prepared before the first run.

    FAST_SINGLE_ANSWER: Nothing but what the first run needs.

    SUSTAINED_SPEED: As BALANCED; and before a model's first run its kernels are tuned, which takes
    seconds and is kept (docs/tuning.md).

    BALANCED: Each part is run once when it is loaded, so that what a driver puts off to the first
    run is done.
    """

    FAST_SINGLE_ANSWER = 0
    SUSTAINED_SPEED = 1
    BALANCED = 2


class ExperimentalFlags(enum.Flag):
    """TFLite's `TfLiteGpuExperimentalFlags`: several options in one number."""

    NONE = 0
    ENABLE_QUANT = 1
    CL_ONLY = 2
    GL_ONLY = 4
    ENABLE_SERIALIZATION = 8


class WaitType(enum.Enum):
    """`TFLGpuDelegateWaitType` of TFLite's Metal delegate: how the end of a run is waited for.

    PASSIVE: The processor is given to others meanwhile, and the thread sleeps in a long run.

    ACTIVE: The device is asked again and again. Takes a whole processor; hears of the end sooner.

    DO_NOT_WAIT and AGGRESSIVE are refused, with the reason.
    """

    PASSIVE = 0
    ACTIVE = 1
    DO_NOT_WAIT = 2
    AGGRESSIVE = 3


class OnError(enum.Enum):
    """What follows when a run fails on the device: its driver refused, memory ran out, the device
    is lost, or the run took longer than ``run_timeout``.

    RAISE: The error is raised. The next run is recorded anew.

    CPU: The run is made again on the CPU, on the same inputs and state, and so are all later ones.

    RETRY: The run is recorded anew and made again, once; on a lost device, that is opened anew. If
    that fails too, the error is raised, or, on a device that tflgpu chose itself, the CPU goes on.
    """

    RAISE = "raise"
    CPU = "cpu"
    RETRY = "retry"


class ForceBackend(enum.Enum):
    """`GpuDelegateFactory.Options.GpuBackend` of TFLite's Java library."""

    UNSET = 0
    OPENCL = 1
    OPENGL = 2


class OpResolverType(enum.Enum):
    """TFLite's choice of CPU kernels, for what runs on the CPU by LiteRT. NumPy has one of each."""

    AUTO = 0
    BUILTIN = 1
    BUILTIN_REF = 2
    BUILTIN_WITHOUT_DEFAULT_DELEGATES = 3
