"""Everything that a compiled graph depends on, as texts with names: the key of a saved model.

Two keys are the same only if compiling would give the same, but for what measured times decide:
which parts pay. That stays as it was saved. What differs can be told from the names.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from tflgpu.cache.disk_cache import cache_key
from tflgpu.errors import SavedModelError
from tflgpu.ir.graph import Graph
from tflgpu.saved.classes import Classes, classes_for
from tflgpu.saved.container import index_bytes
from tflgpu.saved.source import FILE, Facts

if TYPE_CHECKING:
    from tflgpu.compiler.target import Target
    from tflgpu.lowering.rule import Rule
    from tflgpu.ops.base import OpDef
    from tflgpu.passes.base import Pass

_LONGEST = 400  # characters of a text that says a value; longer ones are its digest
_SHOWN = 4  # differences that a message has
#: Fields of a target that list code, which facts tell of too.
_CODE = ("ops", "passes", "rules")


@attrs.frozen  # every start compares or shows some
class Key:
    """What a file is for."""

    facts: Facts

    @property
    def name(self) -> str:
        """The name of its file in a folder. It begins with the digest of the model's file, where
        there is one, so that what is kept of a file can be listed."""
        name = cache_key(*(text for fact in self.facts for text in fact))
        digest = next((text for fact, text in self.facts if fact == FILE), "")
        return name_start(digest) + name[len(name_start(digest)) :]

    def differences(self, other: Key) -> tuple[str, ...]:
        """What an ``other`` one has instead, one line each; none where the two are the same."""
        mine, theirs = dict(self.facts), dict(other.facts)
        if len(mine) < len(self.facts) or len(theirs) < len(other.facts):
            return () if self == other else ("facts that are said twice",)
        names = [*mine, *(name for name in theirs if name not in mine)]
        found = tuple(
            f"{name}: {_brief(mine.get(name))} here, {_brief(theirs.get(name))} there"
            for name in names
            if mine.get(name) != theirs.get(name)
        )
        return found or (() if self == other else ("the order of the facts",))

    def insist(self, other: Key, where: str) -> None:
        """Accept another key only if it is the same.

        Raises:
            SavedModelError: it is not; lists what differs.
        """
        found = self.differences(other)
        if found:
            more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            raise SavedModelError(
                f"{where} is for something else: {'; '.join(found[:_SHOWN])}{more}. Make it again "
                "with `tflgpu compile`, with the options that it is used with"
            )


def name_start(digest: str) -> str:
    """What names begin with that are of a model's file."""
    return digest[:16]


def key_of(graph: Graph, target: Target, facts: Facts, *, lasting: bool = False) -> Key:
    """The key of what a graph becomes.

    Args:
        graph: As it was read from the file, at the shapes in use. Every byte of its constants
            counts.
        target: What it is compiled for. Code cannot be told apart here, so that ``facts`` must say
            which version of it there is: that of ops, passes, rules and objections.
        facts: What else there is to say: versions, the device and its driver.
        lasting: Whether lists of ops, passes and rules are left out, which a patch release of
            tflgpu may change.

    Raises:
        SavedModelError: there is something in the target or graph whose content cannot be told.
    """
    inputs = ", ".join(f"{value.name}: {value.spec}" for value in graph.inputs)
    named = [("inputs", inputs), ("model", graph_digest(graph))]
    classes = classes_for(graph)
    for field in attrs.fields(type(target)):
        if not (lasting and field.name in _CODE):
            named += _texts(field.name, getattr(target, field.name), classes)
    return Key((*facts, *named))


def graph_digest(graph: Graph) -> str:
    """A digest of all that a graph is: operators, options, tensors, the bytes of its constants.

    Raises:
        SavedModelError: there is something in it that has no bytes.
    """
    return _digest(graph, classes_for(graph, as_read=True))


def _digest(value: Any, classes: Classes) -> str:
    from tflgpu.saved.flatten import Flattener  # a start's key is texts

    flat = Flattener(classes).flat(value)
    digest = hashlib.sha256(index_bytes(flat.index()))
    for blob in flat.blobs:
        digest.update(len(blob).to_bytes(8, "little"))
        digest.update(blob)
    return digest.hexdigest()


def _texts(name: str, value: Any, classes: Classes) -> list[tuple[str, str]]:
    """A field of a target as one fact, or as several."""
    # Functions of the device and of plugins (`key_of`); and what differs wherever it is measured,
    # and has decided what is in the file.
    if name in ("objection", "begin", "times", "site.choices"):
        return []
    if name == "ops":
        return [(name, _listed(op_text(op) for op in value.values()))]
    if name == "passes":
        return [(name, _listed((pass_text(each) for each in value), in_order=True))]
    if name == "rules":
        rules: Sequence[Rule] = value or ()
        return [(name, _listed((rule_text(rule) for rule in rules), in_order=True))]
    if attrs.has(type(value)) and not isinstance(value, enum.Enum):
        return [
            each
            for field in attrs.fields(type(value))
            for each in _texts(f"{name}.{field.name}", getattr(value, field.name), classes)
        ]
    if value is None or isinstance(value, (bool, int, float, str)):
        return [(name, repr(value))]
    if isinstance(value, enum.Enum):
        return [(name, value.name)]
    return [(name, _digest(value, classes))]


def op_text(op: OpDef) -> str:
    """What is to be said of an op besides its code."""
    return f"{op.name} {op.file.max_version} {op.owner}".strip()


def pass_text(item: Pass) -> str:
    """What is to be said of a pass."""
    return f"{item.phase} {item.name} {item.owner}".strip()


def rule_text(rule: Rule) -> str:
    """What is to be said of a kernel rule."""
    from tflgpu.lowering.rule import ElementwiseRule  # most starts have no rule to tell of

    if isinstance(rule, ElementwiseRule):
        return f"{rule.op} elementwise {rule.owner}"
    return f"{rule.op} {rule.name} {rule.rank} {rule.fuses} {rule.owner} {type(rule).__name__}"


def _listed(texts: Iterable[str], *, in_order: bool = False) -> str:
    found = list(texts) if in_order else sorted(texts)
    text = ", ".join(found)
    if len(text) <= _LONGEST:
        return text
    return f"{len(found)}: {hashlib.sha256(repr(found).encode()).hexdigest()}"


def _brief(text: str | None) -> str:
    if text is None:
        return "nothing"
    return text if len(text) <= 80 else f"{text[:77]}..."
