"""From a seed and a number to a mutant: always the same one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import attrs
import numpy as np
from tflgpu.errors import TflgpuError
from tflgpu.tflite.encode import finish
from tflgpu.tflite.spec import ModelSpec
from tflgpu.tflite.write import model_record, write_model

from tests.differential import edits, inserts
from tests.differential.case import KINDS, Script
from tests.differential.edits import Draft, Edit
from tests.differential.repair import repair
from tests.differential.seeds import families
from tests.tflite import fuzz

#: Mutations and how often each is drawn.
EDITS: tuple[tuple[Edit, float], ...] = (
    (inserts.insert, 5), (edits.attribute, 4), (edits.const_to_input, 3), (edits.operator_name, 2),
    (edits.special_constants, 2), (edits.shape, 2), (edits.graph_outputs, 2), (edits.operands, 2),
    (edits.batch, 1.5), (edits.const_computed, 1.5), (edits.placeholder_shapes, 1.5),
    (edits.remove, 1), (inserts.unused, 1), (edits.quantization, 1), (edits.dtype, 1),
    (edits.whole_dtype, 1), (edits.variable, 1), (edits.signature, 0.7), (edits.version, 0.7),
    (edits.huge_shape, 0.2),
)  # fmt: skip
_BY_NAME = {edit.__name__: edit for edit, _ in EDITS}


@attrs.frozen
class Step:
    """One mutation: its name, and the seed of what it draws."""

    name: str
    seed: int


@attrs.frozen(kw_only=True)
class Recipe:
    """How a mutant is made, for reports and for making a smaller one.

    Attributes:
        family: the group of seeds.
        seed: the seed's name in it.
        steps: mutations, in order.
        damage: seed of damage to the finished file, None for a well-formed one.
        script: what is done with it.
        repaired: whether the file's shapes are made true after the mutations.
    """

    family: str
    seed: str
    steps: tuple[Step, ...]
    script: Script
    damage: int | None = None
    repaired: bool = True

    def __str__(self) -> str:
        names = ", ".join(s.name for s in self.steps) or "as it is"
        damage = "" if self.damage is None else ", damaged"
        return f"{self.family} {self.seed}: {names}{damage}"


def draw(seed: int, number: int, *, real: bool = True) -> Recipe:
    """The recipe of one mutant."""
    rng = random.Random(f"{seed}:{number}")
    groups = families(real)
    family, _, models = rng.choices(groups, [g[1] for g in groups])[0]
    # Single operators are drawn by their op: some have forty samples, some one.
    first = rng.choice(sorted({n.split("/")[0] for n in models}))
    name = rng.choice([n for n in models if n.split("/")[0] == first])
    count = rng.choice((0, 1, 1, 1, 2, 2, 3, 4))
    picked = rng.choices([e.__name__ for e, _ in EDITS], [w for _, w in EDITS], k=count)
    steps = tuple(Step(n, rng.getrandbits(32)) for n in picked)
    damage = rng.getrandbits(32) if rng.random() < 0.05 else None
    return Recipe(family=family, seed=name, steps=steps, damage=damage,
                  script=_script(rng, models[name]), repaired=rng.random() < 0.9)  # fmt: skip


def _script(rng: random.Random, spec: ModelSpec) -> Script:
    runs = ["usual"]
    if rng.random() < 0.4:
        runs[0] = rng.choice(KINDS)
        if rng.random() < 0.7:
            runs.append("usual")  # nothing may be left of the run before
    if rng.random() < 0.15:
        runs.append("usual")
    resize = {}
    if rng.random() < 0.15:
        for i in spec.inputs:
            shape = list(spec.tensors[i].shape)
            if shape and rng.random() < 0.8:
                at = rng.choice((0, rng.randrange(len(shape))))
                shape[at] = rng.choice((1, 2, 3, 5, shape[at] + 1, 2 * shape[at], 0))
                resize[i] = tuple(shape)
    return Script(
        runs=tuple(runs) if not resize or len(runs) > 1 else (*runs, "usual"),
        seed=rng.getrandbits(32),
        resize=resize,
        resize_after=rng.random() < 0.5,
        delegate=rng.random() > 0.05,
        allow_fallback=rng.random() > 0.25,
        precision=rng.choices(("f32", "f16", "f32_f16"), (0.9, 0.05, 0.05))[0],
    )


def make(recipe: Recipe, *, real: bool = True) -> tuple[bytes, Script] | None:
    """The file and its script; None where it cannot be written."""
    models = next(g[2] for g in families(real) if g[0] == recipe.family)
    draft = Draft.of(models[recipe.seed])
    for step in recipe.steps:
        kept = attrs.evolve(
            draft, tensors=list(draft.tensors), operators=list(draft.operators),
            inputs=list(draft.inputs), outputs=list(draft.outputs), values=dict(draft.values),
        )  # fmt: skip
        try:
            with np.errstate(all="ignore"):
                _BY_NAME[step.name](draft, random.Random(step.seed))
        except (LookupError, OverflowError, ValueError, TflgpuError):
            draft = kept  # nothing here that this mutation is for
    if recipe.repaired and recipe.steps:
        repair(draft)
    return written(draft.spec(), attrs.evolve(recipe.script, values=draft.values), recipe.damage)


def written(
    spec: ModelSpec, script: Script, damage: int | None = None
) -> tuple[bytes, Script] | None:
    """A model as a file."""
    try:
        content = write_model(spec) if damage is None else _damaged(spec, damage)
    except (TflgpuError, OverflowError, ValueError):
        return None
    return content, script


def _damaged(spec: ModelSpec, damage: int) -> bytes:
    """A file with wrong numbers in it: mostly well-formed, sometimes bytes anywhere."""
    rng = random.Random(damage)
    if rng.random() < 0.75:
        root, buffers = model_record(spec)
        spots: Sequence[fuzz._Spot] = list(fuzz._spots(root))
        for _ in range(rng.choice((1, 1, 2))):
            spot = rng.choice(spots)
            if spot.field.kind is fuzz.Kind.SCALAR:
                spot.values[spot.field.name] = fuzz._number(spot.field, rng)
                continue
            old = list(spot.values.get(spot.field.name) or ())
            at = rng.randrange(len(old) + 1)
            old[at : at + rng.randint(0, 1)] = [fuzz._number(spot.field, rng)]
            spot.values[spot.field.name] = np.array(old, spot.field.number)
        return finish(root, buffers)
    data = bytearray(write_model(spec))
    rng.choice((fuzz.overwrite_word, fuzz.flip_bits))(data, rng, ())
    data[4:8] = b"TFL3"
    return bytes(data)
