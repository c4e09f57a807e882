"""Facts for a key about a delegate's options and the registered plugins.

With a graph at hand the key asks the target that it is compiled for. Making that takes importing
every op, pass and rule. What decides it is less: options, the device, versions of code, and what
plugins have registered, which may depend on more than their code.
"""

from __future__ import annotations

import attrs

from tflgpu.options import DelegateOptions
from tflgpu.plugins.registry import Registry
from tflgpu.saved.key import op_text, pass_text, rule_text
from tflgpu.saved.source import Facts

#: Options that only say where files lie, and which of several devices is meant: what the device is
#: stands in the key by itself, so that workers with equal GPUs compile once.
_PLACES = frozenset({"serialization_dir", "model_token", "enable_serialization", "device"})


def facts_of_options(options: DelegateOptions) -> Facts:
    """Every option but those of places counts, so that a new option is part of the key without an
    edit here."""
    return tuple(
        (f"option {field.name}", repr(getattr(options, field.name)))
        for field in attrs.fields(DelegateOptions)
        if field.name not in _PLACES
    )


def facts_of_registry(known: Registry, backend: str) -> Facts:
    """Facts about a backend's ops, passes and rules of plugins, in the order in which they
    apply."""
    said = {
        "ops": sorted(map(op_text, known.own_ops.values())),
        "passes": [pass_text(each) for each in known.passes()],
        "rules": [rule_text(rule) for rule in known.rules(backend)],
    }
    return tuple((f"plugins' {what}", ", ".join(texts)) for what, texts in said.items())
