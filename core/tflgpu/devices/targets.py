"""The `Target` of a device, with the additions of plugins and options."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs

from tflgpu.compiler.target import Target
from tflgpu.contract.device import CompilesAhead, Device, NodeDevice
from tflgpu.contract.offers import offers
from tflgpu.devices.device_options import node_choice, precision_on
from tflgpu.errors.blame import attempt
from tflgpu.ir.graph import Node
from tflgpu.language.caps import DeviceCaps
from tflgpu.lowering.reason import Unsupported
from tflgpu.lowering.storage import IntegerStorage
from tflgpu.options import DelegateOptions
from tflgpu.passes.registry import default_passes
from tflgpu.plugins.registry import Registry

if TYPE_CHECKING:
    from tflgpu.lowering.rule import Site


def smallest(site: Site) -> Site:
    """A copy that stores everything in as few bits as the precision allows, as on a device without
    a cache, with 8-bit numbers in a byte."""
    caps = attrs.evolve(site.caps, cache_bytes=0)
    return attrs.evolve(site, caps=caps, integers=IntegerStorage.OWN_WIDTH)


def target_on(
    device: Device | NodeDevice,
    caps: DeviceCaps,
    known: Registry,
    options: DelegateOptions,
    *,
    broken_rules: Mapping[tuple[str, str, str], str],
    spares_broken_rules: bool,
) -> Target:
    """The target for an opened device.

    Args:
        device: An opened device.
        caps: What may be used of it.
        known: Where ops, passes, rules and objections come from.
        options: Precision, numerics and limits.
        broken_rules: Rules that are left out: by (owner, op, name), with the reason.
        spares_broken_rules: As `Target.spares_broken_rules`.
    """
    ops, backend = known.ops(), device.info.backend
    if isinstance(device, NodeDevice):
        return attrs.evolve(
            target_of(backend, caps, 1, known, options),
            rules=None,
            objection=lambda node: device.supports(node, ops),
            spares_broken_rules=spares_broken_rules,
        )
    whole = target_of(backend, caps, device.alignment, known, options)
    if offers(device, CompilesAhead):
        whole = attrs.evolve(whole, begin=partial(attempt, device.begin))
    return attrs.evolve(whole, spares_broken_rules=spares_broken_rules).without(broken_rules)


def target_of(
    backend: str, caps: DeviceCaps, alignment: int, known: Registry, options: DelegateOptions
) -> Target:
    """The target for a device that runs kernels, which need not be here.

    The backend that reaches it need not be installed; ``alignment`` is `Target.alignment`, and the
    others are as in `target_on`.
    """
    plain = Target.plain(
        caps,
        precision_on(caps, options.wanted_precision),
        ops=known.ops(),
        rules=known.rules(backend) if backend in known.backends else (),
        alignment=alignment,
        numerics=options.wanted_numerics,
    )
    if options.saves_memory:
        plain = attrs.evolve(plain, site=smallest(plain.site), saves_memory=True)
    site = plain.site

    def objection(node: Node) -> Unsupported | None:
        return known.node_support(backend, node, site)

    return attrs.evolve(
        plain,
        passes=tuple(default_passes(known.passes())),
        objection=objection,
        quantized_allowed=options.quantized_models_allowed,
        rounds_hybrid=options.round_hybrid_inputs,
        max_partitions=options.max_delegated_partitions,
        min_nodes=options.min_nodes_per_partition,
        choice=node_choice(options),
        strict=options.strict,
        memory_limit=options.memory_limit,
    )
