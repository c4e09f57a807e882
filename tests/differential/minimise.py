"""A smaller case that shows the same: mutations, runs and operators are left out one by one."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
from tflgpu.errors import TflgpuError
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, spec_of

from tests.differential import mutate
from tests.differential.case import Script
from tests.differential.mutate import Recipe

Made = tuple[bytes, Script]
#: Cases that are tried at most, so that a slow one does not hold up the others.
_TRIES = 40


def minimise(recipe: Recipe, made: Made, same: Callable[[bytes, Script], bool], real: bool) -> Made:
    """A file and script for which ``same`` still holds, with as little in them as could be found.

    Args:
        recipe: how the case was made.
        made: what was made.
        same: whether a smaller case shows what the whole one did.
        real: as in `mutate.make`.
    """
    left = _TRIES

    def shows(candidate: Made | None) -> bool:
        nonlocal left
        left -= 1
        return candidate is not None and left >= 0 and same(*candidate)

    at = 0
    while at < len(recipe.steps):
        fewer = attrs.evolve(recipe, steps=recipe.steps[:at] + recipe.steps[at + 1 :])
        candidate = mutate.make(fewer, real=real)
        if shows(candidate):
            assert candidate is not None
            recipe, made = fewer, candidate
        else:
            at += 1
    made = _plainer_script(made, shows)
    return _fewer_operators(made, shows)


def _plainer_script(made: Made, shows: Callable[[Made | None], bool]) -> Made:
    content, script = made
    plain = Script()
    tries = [{"resize": {}}, {"delegate": plain.delegate}, {"precision": plain.precision},
             {"allow_fallback": True}, {"runs": ("usual",)}, {"runs": script.runs[:1]},
             {"runs": script.runs[1:]}]  # fmt: skip
    for change in tries:
        if change.get("runs") == ():
            continue
        candidate = attrs.evolve(script, **change)
        if candidate != script and shows((content, candidate)):
            script = candidate
    return content, script


def _fewer_operators(made: Made, shows: Callable[[Made | None], bool]) -> Made:
    content, script = made
    try:
        spec = spec_of(read_model(content))
    except TflgpuError:
        return made  # a damaged file is kept as it is
    if spec.subgraphs:
        return made
    progress = True
    while progress:
        progress = False
        for at in range(len(spec.operators) - 1, -1, -1):
            for cut in (_without_tail, _without_head):
                smaller = cut(spec, at)
                if smaller is None:
                    continue
                packed, place = _packed(smaller)
                candidate = mutate.written(packed, _renumbered(script, place))
                if shows(candidate):
                    assert candidate is not None
                    spec, made, script = packed, candidate, candidate[1]
                    progress = True
                    break
            if progress:
                break
    return made


def _without_tail(spec: ModelSpec, at: int) -> ModelSpec | None:
    """Without one operator; what it read is given out in place of what it made."""
    op = spec.operators[at]
    operators = spec.operators[:at] + spec.operators[at + 1 :]
    if not operators:
        return None
    read = {i for o in operators for i in o.inputs}
    if any(o in read for o in op.outputs):
        return None
    made = {o for p in operators for o in p.outputs}
    outputs = [o for o in spec.outputs if o not in op.outputs]
    outputs += [i for i in dict.fromkeys(op.inputs) if i in made and i not in outputs]
    return attrs.evolve(spec, operators=operators, outputs=outputs) if outputs else None


def _without_head(spec: ModelSpec, at: int) -> ModelSpec | None:
    """Without one operator; what it made is an input of the model."""
    op = spec.operators[at]
    operators = spec.operators[:at] + spec.operators[at + 1 :]
    if not operators:
        return None
    read = {i for o in operators for i in o.inputs}
    inputs = [*spec.inputs, *(o for o in op.outputs if o in read and o not in spec.inputs)]
    outputs = [o for o in spec.outputs if o not in op.outputs]
    return (
        attrs.evolve(spec, operators=operators, inputs=inputs, outputs=outputs) if outputs else None
    )


def _packed(spec: ModelSpec) -> tuple[ModelSpec, dict[int, int]]:
    """Without tensors that nobody uses, and where the others went."""
    read = {i for o in spec.operators for i in (*o.inputs, *o.intermediates)}
    made = {i for o in spec.operators for i in o.outputs}
    inputs = [i for i in spec.inputs if i in read or i in spec.outputs]
    used = sorted({i for i in (*read, *made, *inputs, *spec.outputs) if i >= 0})
    place = {old: new for new, old in enumerate(used)}
    place[-1] = -1
    operators = [
        attrs.evolve(
            o,
            inputs=[place[i] for i in o.inputs],
            outputs=[place[i] for i in o.outputs],
            intermediates=[place[i] for i in o.intermediates],
        )
        for o in spec.operators
    ]
    packed = attrs.evolve(
        spec, tensors=[spec.tensors[i] for i in used], operators=operators,
        inputs=[place[i] for i in inputs], outputs=[place[i] for i in spec.outputs], signatures=(),
    )  # fmt: skip
    return packed, place


def _renumbered(script: Script, place: dict[int, int]) -> Script:
    return attrs.evolve(
        script,
        values={place[i]: np.asarray(v) for i, v in script.values.items() if i in place},
        resize={place[i]: s for i, s in script.resize.items() if i in place},
    )
