"""TFLite metadata: what a model's author says of its inputs and outputs.

A model has it as a flatbuffer of its own (identifier M001) in the buffer ``TFLITE_METADATA``; files
that it names, such as labels, are a zip archive behind the model. The layout is that of
``metadata_schema.fbs`` in tensorflow/tflite-support. Both may come from anywhere: every offset is
checked (`tflgpu.tflite.flat`), and files are read up to a limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from functools import partial

import numpy as np

from tflgpu.errors import ModelError
from tflgpu.errors.blame import quoted
from tflgpu.tflite.flat import DAMAGED, FlatFile, Table
from tflgpu.tflite.layouts import Default, Field, Kind, TableLayout
from tflgpu.tflite.read import read_model
from tflgpu.tflite.source import Source, name_of
from tflgpu.tools.archive import Archive, file_of
from tflgpu.tools.metadata_values import (
    AssociatedFile,
    ModelMetadata,
    Normalization,
    ScoreCalibration,
    TensorMetadata,
    Tokenizer,
)

NAME = "TFLITE_METADATA"
IDENTIFIER = b"M001"
_FILE_KINDS = (
    *("unknown", "descriptions", "axis labels", "value labels", "score calibration"),
    *("vocabulary", "scann index"),
)
_CONTENTS = ("", "FeatureProperties", "ImageProperties", "BoundingBoxProperties", "AudioProperties")
_CONTENT_NAMES = ("", "feature", "image", "boxes", "audio")
_COLOURS = ("", "rgb", "grey")
_BOXES = ("", "boundaries", "upper left", "center")
_TRANSFORMATIONS = ("identity", "log", "inverse logistic")
_UNITS = (
    *("", "NormalizationOptions", "ScoreCalibrationOptions", "ScoreThresholdingOptions"),
    *("BertTokenizerOptions", "SentencePieceTokenizerOptions", "RegexTokenizerOptions"),
)


def metadata(model: Source) -> ModelMetadata | None:
    """The metadata of a `.tflite` file, from its path or its bytes; None where it has none.

    Raises:
        ModelError: no such file, or the model, its metadata or a file of labels or calibration
            behind it is damaged.
    """
    found = read_model(model).metadata.get(NAME)
    if found is None:
        return None
    try:
        with closing(Archive(model)) as archive:
            return _Reader(archive, found).model()
    except ModelError as error:
        raise type(error)(f"{name_of(model)}: metadata: {error}") from error.__cause__


def lines_of(content: bytes) -> tuple[str, ...]:
    """The lines of a text in UTF-8, without empty ones at the end."""
    lines = content.decode("utf-8-sig", "replace").splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(line.strip() for line in lines)


def _fields(text: str) -> dict[str, Field]:
    """Fields in the order of their slots, each as ``name:kind``; a kind in brackets is a vector."""
    found: dict[str, Field] = {}
    for slot, part in enumerate(text.split()):
        name, _, kind = part.partition(":")
        inner = kind.strip("[]")
        vector = kind != inner
        if inner == "text":
            made = Field(name, slot, Kind.STRINGS if vector else Kind.STRING)
        elif inner == "table":
            made = Field(name, slot, Kind.TABLES if vector else Kind.TABLE)
        else:
            number = np.dtype(f"<{inner}")
            default: Default = None if vector else number.type(0).item()
            made = Field(name, slot, Kind.NUMBERS if vector else Kind.SCALAR, number, default)
        found[name] = made
    return found


_TABLES: Mapping[str, TableLayout] = {
    name: TableLayout(name, _fields(text))
    for name, text in {
        "AssociatedFile": "name:text description:text type:i1 locale:text",
        "ImageSize": "width:u4 height:u4",
        "FeatureProperties": "",
        "ImageProperties": "color_space:i1 default_size:table",
        "BoundingBoxProperties": "index:[u4] type:i1 coordinate_type:i1",
        "AudioProperties": "sample_rate:u4 channels:u4",
        "Content": "content_properties_type:u1 content_properties:table range:table",
        "NormalizationOptions": "mean:[f4] std:[f4]",
        "ScoreCalibrationOptions": "score_transformation:i1 default_score:f4",
        "ScoreThresholdingOptions": "global_score_threshold:f4",
        "BertTokenizerOptions": "vocab_file:[table]",
        "SentencePieceTokenizerOptions": "model:[table] vocab_file:[table]",
        "RegexTokenizerOptions": "delim_regex_pattern:text vocab_file:[table]",
        "ProcessUnit": "options_type:u1 options:table",
        "Stats": "max:[f4] min:[f4]",
        "TensorMetadata": (
            "name:text description:text dimension_names:[text] content:table "
            "process_units:[table] stats:table associated_files:[table]"
        ),
        "SubGraphMetadata": (
            "name:text description:text input_tensor_metadata:[table] "
            "output_tensor_metadata:[table] associated_files:[table] input_process_units:[table] "
            "output_process_units:[table]"
        ),
        "ModelMetadata": (
            "name:text description:text version:text subgraph_metadata:[table] author:text "
            "license:text associated_files:[table] min_parser_version:text"
        ),
    }.items()
}


class _Reader:
    """Reads one model's metadata."""

    def __init__(self, archive: Archive, data: memoryview) -> None:
        self._archive = archive
        self._data = data
        self._files: list[AssociatedFile] = []

    def model(self) -> ModelMetadata:
        """All of it."""
        file = FlatFile(self._data, _TABLES.__getitem__)
        file.require(0, 8, "model")
        if bytes(self._data[4:8]) != IDENTIFIER:
            raise ModelError(f"it does not begin as metadata of version M001 does; {DAMAGED}")
        root = file.root("model", "ModelMetadata")
        self._associated(root)
        inputs: tuple[TensorMetadata, ...] = ()
        outputs: tuple[TensorMetadata, ...] = ()
        tokenizer: Tokenizer | None = None
        for table in root.children("subgraph_metadata", "SubGraphMetadata", "subgraph"):
            inputs = self._tensors(table, "input")
            outputs = self._tensors(table, "output")
            self._associated(table)
            where = "input process unit"
            for unit in table.children("input_process_units", "ProcessUnit", where):
                tokenizer = self._tokenizer(unit) or tokenizer
            break  # the main one
        texts = ("name", "description", "version", "author", "license", "min_parser_version")
        said = {name: root.text(name) for name in texts}
        return ModelMetadata(
            **said,
            inputs=inputs,
            outputs=outputs,
            tokenizer=tokenizer,
            files=tuple(dict.fromkeys(self._files)),
            read=partial(file_of, self._archive.source),
        )

    def _tensors(self, table: Table, side: str) -> tuple[TensorMetadata, ...]:
        tables = table.children(f"{side}_tensor_metadata", "TensorMetadata", side)
        return tuple(self._tensor(t) for t in tables)

    def _tensor(self, table: Table) -> TensorMetadata:
        files = self._associated(table)
        found: dict[str, object] = {
            "name": table.text("name"),
            "description": table.text("description"),
            "dimension_names": table.texts("dimension_names"),
            "files": files,
            "labels": self._labels(files),
        }
        content = table.child("content", "Content", f"{table.where}: content")
        if content is not None:
            found |= _content(content)
        for unit in table.children("process_units", "ProcessUnit", f"{table.where}: process unit"):
            found |= self._unit(unit, files)
        stats = table.child("stats", "Stats", f"{table.where}: stats")
        if stats is not None:
            found |= {"minimum": stats.numbers("min"), "maximum": stats.numbers("max")}
        return TensorMetadata(**found)  # type: ignore[arg-type]

    def _unit(self, unit: Table, files: tuple[AssociatedFile, ...]) -> dict[str, object]:
        kind = _of(_UNITS, unit.integer("options_type"))
        options = unit.child("options", kind, f"{unit.where}: {kind}") if kind else None
        if options is None:
            return {}
        if kind == "NormalizationOptions":
            try:
                made = Normalization(options.numbers("mean"), options.numbers("std"))
            except ModelError as error:
                raise ModelError(f"{unit.where}: {error}") from None
            return {"normalization": made}
        if kind == "ScoreCalibrationOptions":
            transformation = _of(_TRANSFORMATIONS, options.integer("score_transformation"))
            names = [f.name for f in files if f.kind == "score calibration"]
            parameters = self._calibration(names[0]) if names else ()
            default = float(options.scalar("default_score"))
            return {"calibration": ScoreCalibration(transformation, default, parameters)}
        if kind == "ScoreThresholdingOptions":
            return {"threshold": float(options.scalar("global_score_threshold"))}
        return {"tokenizer": self._tokenizer(unit)}

    def _tokenizer(self, unit: Table) -> Tokenizer | None:
        kind = _of(_UNITS, unit.integer("options_type"))
        name = kind.removesuffix("TokenizerOptions").lower()
        options = unit.child("options", kind, f"{unit.where}: {kind}") if name != kind else None
        if options is None or not kind.endswith("TokenizerOptions"):
            return None
        return Tokenizer(
            name,
            options.text("delim_regex_pattern") if name == "regex" else "",
            tuple(f.name for f in self._associated(options, "vocab_file")),
            tuple(f.name for f in self._associated(options, "model"))
            if name == "sentencepiece"
            else (),
        )

    def _associated(
        self, table: Table, name: str = "associated_files"
    ) -> tuple[AssociatedFile, ...]:
        found = tuple(
            AssociatedFile(
                t.text("name"),
                t.text("description"),
                _of(_FILE_KINDS, t.integer("type")) or "unknown",
                t.text("locale"),
            )
            for t in table.children(name, "AssociatedFile", f"{table.where}: file")
        )
        self._files += found
        return found

    def _labels(self, files: tuple[AssociatedFile, ...]) -> tuple[str, ...]:
        of = [f for f in files if f.kind in ("axis labels", "value labels")]
        of.sort(key=lambda f: f.locale[:2] not in ("", "en"))
        return lines_of(self._archive.read(of[0].name)) if of else ()

    def _calibration(self, name: str) -> tuple[tuple[float, float, float, float] | None, ...]:
        found: list[tuple[float, float, float, float] | None] = []
        for number, line in enumerate(
            self._archive.read(name).decode("utf-8", "replace").splitlines()
        ):
            try:
                values = [float(part) for part in line.split(",") if part.strip()]
            except ValueError:
                values = [math.nan]
            if len(values) not in (0, 3, 4) or not all(map(math.isfinite, values)):
                raise ModelError(
                    f"{quoted(name)}, line {number + 1}: {quoted(line)} is not scale, slope, "
                    f"offset and perhaps the least score; {DAMAGED}"
                )
            scale, slope, offset, least = (*values, -math.inf)[:4] if values else (0, 0, 0, 0)
            found.append((scale, slope, offset, least) if values else None)
        return tuple(found)


def _of(names: tuple[str, ...], code: int) -> str:
    """The name of a code; "" for one that is younger than this."""
    return names[code] if 0 <= code < len(names) else ""


def _content(table: Table) -> dict[str, object]:
    code = table.integer("content_properties_type")
    kind = _of(_CONTENTS, code)
    found: dict[str, object] = {"content": _of(_CONTENT_NAMES, code)}
    where = f"{table.where}: {kind}"
    properties = table.child("content_properties", kind, where) if kind else None
    if properties is None:
        return found
    if kind == "ImageProperties":
        found["colours"] = _of(_COLOURS, properties.integer("color_space"))
        size = properties.child("default_size", "ImageSize", f"{where}: size")
        if size is not None:
            found["size"] = size.integer("width"), size.integer("height")
    elif kind == "BoundingBoxProperties":
        order = properties.numbers("index")
        if order and sorted(order) != [0, 1, 2, 3]:
            raise ModelError(f"{where}: {list(order)} is no order of four numbers; {DAMAGED}")
        found["box_order"] = order
        found["box_type"] = _of(_BOXES, properties.integer("type"))
        found["boxes_in_pixels"] = properties.integer("coordinate_type") == 1
    elif kind == "AudioProperties":
        for name in ("sample_rate", "channels"):
            found[name] = properties.integer(name)
    return found
