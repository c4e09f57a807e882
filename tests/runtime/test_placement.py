"""Regions of the arena -> buffers."""

from __future__ import annotations

import itertools

from tflgpu.backend_kit.placement import place
from tflgpu.compiler.plan import ArenaRef, InputRef, OutputRef, Plan, Ref
from tflgpu.conformance.plans import affine, dispatch, plan


def steps(*pairs: tuple[Ref, Ref]) -> Plan:
    return plan([dispatch(affine(1), 1, list(pair)) for pair in pairs], arena=1024)


def test_a_chain_takes_turns_in_two_buffers() -> None:
    refs = [ArenaRef(256 * (i % 2), 100 + i) for i in range(5)]
    placement = place(
        steps((InputRef(0), refs[0]), *itertools.pairwise(refs), (refs[-1], OutputRef(0)))
    )
    assert len(placement.sizes) == 2
    assert sorted(placement.sizes) == [103, 104]
    for one, other in itertools.pairwise(refs):
        assert placement.of[one][0] != placement.of[other][0]
    assert all(offset == 0 for _, offset in placement.of.values())


def test_what_is_in_use_at_once_is_apart() -> None:
    a, b, c = (ArenaRef(256 * i, 64) for i in range(3))
    placement = place(
        steps((InputRef(0), a), (InputRef(0), b), (b, c), (a, OutputRef(0)), (c, OutputRef(1)))
    )
    assert len({placement.of[r][0] for r in (a, b, c)}) == 3


def test_a_buffer_fits_its_largest_region() -> None:
    first, second = ArenaRef(0, 64), ArenaRef(0, 128)
    placement = place(
        steps((InputRef(0), first), (first, OutputRef(0)), (InputRef(0), second),
              (second, OutputRef(0)))
    )  # fmt: skip
    assert placement.sizes == (128,)


def test_regions_over_each_other_keep_the_arena_whole() -> None:
    whole, part = ArenaRef(0, 256), ArenaRef(64, 64)
    placement = place(steps((InputRef(0), whole), (part, OutputRef(0))))
    assert placement.sizes == (1024,)
    assert placement.of == {whole: (0, 0), part: (0, 64)}


def test_no_arena() -> None:
    placement = place(steps((InputRef(0), OutputRef(0))))
    assert placement.sizes == ()
    assert placement.of == {}
