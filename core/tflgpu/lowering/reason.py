"""Reasons why an operator does not run on the device: a sentence, and a code for programs.

Code that refuses a node imports this and nothing else of the kernels' machinery.
"""

from __future__ import annotations

import enum

import attrs

from tflgpu.values import frozen


class ReasonCode(enum.Enum):
    """The kind of a reason. The values are what `DelegationReport.to_json` writes; they stay
    as they are, and new kinds get new ones."""

    #: No kernel and no plugin knows this operator.
    UNSUPPORTED_OP = "unsupported_op"
    #: The operator is known, but not with these shapes, types, attributes or kinds of tensors.
    UNSUPPORTED_FORM = "unsupported_form"
    #: The device is too small for it: buffers, workgroups, bindings.
    DEVICE_LIMIT = "device_limit"
    #: A plugin knows of a defect of the driver that it would meet.
    DRIVER_FAULT = "driver_fault"
    #: It would be slower there than on the CPU, by the estimates.
    NOT_WORTH_IT = "not_worth_it"
    #: It is quantized, and quantized_models_allowed is off.
    QUANTIZED_OFF = "quantized_off"
    #: The options leave this operator out.
    EXCLUDED = "excluded"
    #: Its part has fewer nodes than min_nodes_per_partition.
    MIN_NODES = "min_nodes"
    #: Other parts gain more, and max_delegated_partitions has no room for it.
    MAX_PARTITIONS = "max_partitions"
    #: The device refused or failed to load its part.
    DEVICE_FAILED = "device_failed"
    #: Results of the device were wrong, and the accuracy guard moved the whole to the CPU.
    INACCURATE = "inaccurate"
    #: A plugin that was asked about it failed, or gave an answer that is none.
    PLUGIN_FAULT = "plugin_fault"
    #: There is no device.
    NO_DEVICE = "no_device"
    #: Nobody gave a delegate.
    NO_DELEGATE = "no_delegate"
    #: Inside LiteRT: what it has for this operator cannot be read, or another delegate has it.
    HOST = "host"
    #: It runs other subgraphs, or reads or changes the model's state: the host runs it between the
    #: parts of the device.
    CONTROL_FLOW = "control_flow"


@frozen
class Unsupported:
    """A "no", with the reason: what, why, and where possible what to do; and, for programs, what
    kind of reason that is. Two with one sentence are equal."""

    reason: str
    code: ReasonCode = attrs.field(
        default=ReasonCode.UNSUPPORTED_FORM,
        eq=False,
        validator=attrs.validators.instance_of(ReasonCode),
    )


@frozen
class NeedsConstant(Unsupported):
    """A "no" because an operand is no constant: the shapes of the results follow from its
    contents."""


class PluginFault(str):
    """A reason that says what a plugin did wrong when it was asked."""

    __slots__ = ()
