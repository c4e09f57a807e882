"""Bundles that are forged, cut or of another kind: one error, before anything runs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
from tflgpu.errors import ModelError, UnsupportedError
from tflgpu.language_models.bundle import read_bundle
from tflgpu.language_models.prompt_rules import PromptRules, rules_of_litertlm, rules_of_task
from tflgpu.language_models.wire import fields

from tests.language_models import bundles
from tests.language_models.bundles import field, litertlm, llm_metadata, task

MODEL = b"model" * 9
WHOLE = litertlm(
    [(5, llm_metadata("<s>"), ""), (4, b"pieces", ""), (3, MODEL, "TF_LITE_PREFILL_DECODE")]
)


def test_sections_are_where_the_header_says(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(WHOLE)
    for source in (path, str(path), WHOLE):
        found = read_bundle(source)
        assert bytes(found.model) == MODEL
        assert found.sentencepiece == b"pieces"
        assert found.hugging_face is None
        assert found.rules == PromptRules("<s>")


def test_the_right_model_of_several() -> None:
    others = [(3, b"embedder", "tf_lite_embedder"), (3, MODEL, "tf_lite_prefill_decode")]
    assert bytes(read_bundle(litertlm(others)).model) == MODEL
    with pytest.raises(
        ModelError, match=r"no model 'tf_lite_prefill_decode' in it, but \['a', 'b'\]"
    ):
        read_bundle(litertlm([(3, b"x", "a"), (3, b"y", "b")]))
    with pytest.raises(ModelError, match="but none"):
        read_bundle(litertlm([(4, b"x", "")]))


@pytest.mark.parametrize("size", [9, 20, 31, 40, 100, 200, 16384, 16390, 33000])
def test_a_bundle_that_was_cut(size: int) -> None:
    assert size < len(WHOLE)
    with pytest.raises(ModelError, match=r"fetch|bytes"):
        read_bundle(WHOLE[:size])


def test_a_header_that_is_forged() -> None:
    """Every byte of it, to all ones and to zero: an error of ours, or another bundle."""
    end = int.from_bytes(WHOLE[24:32], "little")
    refused = 0
    for at in range(8, end):
        for value in (0, 255):
            forged = bytearray(WHOLE)
            forged[at] = value
            try:
                read_bundle(bytes(forged))
            except (ModelError, UnsupportedError):
                refused += 1
    assert refused > 50


def test_another_version_and_weights_of_their_own() -> None:
    with pytest.raises(UnsupportedError, match="version 2, and 1 is read"):
        read_bundle(litertlm([(3, MODEL, "")], version=2))
    with pytest.raises(UnsupportedError, match="weights are a section of their own"):
        read_bundle(litertlm([(3, MODEL, ""), (7, b"w", "")]))


def test_a_tokenizer_that_cannot_be_unpacked() -> None:
    packed = bundles.zlibbed("{}" * 99)
    assert read_bundle(litertlm([(3, MODEL, ""), (6, packed, "")])).hugging_face == "{}" * 99
    for wrong in (packed[:-3], packed[:8] + b"nothing"):
        with pytest.raises(ModelError, match=r"tokenizer (cannot be unpacked|does not end)"):
            read_bundle(litertlm([(3, MODEL, ""), (6, wrong, "")]))


def test_a_task_bundle() -> None:
    files = {"TF_LITE_PREFILL_DECODE": MODEL, "TOKENIZER_MODEL": b"pieces"}
    found = read_bundle(task(files))
    assert (bytes(found.model), found.sentencepiece, found.rules) == (
        MODEL,
        b"pieces",
        PromptRules(),
    )
    whole = task({**files, "METADATA": field(6, "<s>")})
    assert read_bundle(whole).rules.start == "<s>"
    for content, said in (
        (whole[:60], "cannot be read as a .task bundle"),
        (task({"OTHER": b"x"}), "no TF_LITE_PREFILL_DECODE in it, but 'OTHER'"),
        (task({**files, "METADATA": b"\xff"}), "METADATA: a number does not end"),
        (task(files, zipfile.ZIP_DEFLATED), "is compressed, and bundles are not"),
    ):
        with pytest.raises(ModelError, match=said):
            read_bundle(content)
    for at in range(len(whole)):  # another bundle, or an error of ours
        forged = bytearray(whole)
        forged[at] ^= 255
        try:
            read_bundle(bytes(forged))
        except (ModelError, UnsupportedError):
            continue


def test_what_is_said_of_prompts() -> None:
    said = llm_metadata(
        [2, 105],
        ["<end>", [1]],
        ("<user>", "</user>", "<model>"),
        {1: 2, 2: 40, 3: 0.5, 4: 0.75},
        99,
    )
    assert rules_of_litertlm(said + field(99, b"later")) == PromptRules(
        (2, 105), ("<end>", (1,)), "<user>", "</user><model>", 99, 40, 0.5, 0.75, greedy=False
    )
    assert rules_of_litertlm(llm_metadata(sampler={1: 3})).greedy
    template = field(8, field(1, "<s>") + field(2, "<user>") + field(3, "<model>"))
    assert rules_of_task(template) == PromptRules(prefix="<s><user>", suffix="<model>")
    newer = field(17, field(1, field(1, "<u>") + field(2, "</u>")))
    assert rules_of_task(template + newer).prefix == "<u>"
    assert rules_of_task(field(4, 2)).start == (2,)


@pytest.mark.parametrize(
    "data", [b"\x0a\x05ab", b"\x80", b"\x00\x01", b"\x0b", b"\x09abc", b"\xff" * 11]
)
def test_no_protocol_buffer(data: bytes) -> None:
    with pytest.raises(ModelError, match=r"^it: .*fetch it again"):
        list(fields(data, "it"))


def test_a_package_that_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    from tflgpu.language_models import tokenizer
    from tflgpu.language_models.bundle import Bundle

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(tokenizer, "import_module", missing)
    for bundle in (Bundle("x", b"", b"pieces"), Bundle("x", b"", None, "{}")):
        with pytest.raises(UnsupportedError, match=r"install it: pip install tflgpu\[text\]"):
            tokenizer.tokenizer_of(bundle)
