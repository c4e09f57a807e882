"""Answers of a bundle with a random model: equal to what LiteRT's steps give, on every device."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.cli.app import make_app
from tflgpu.errors import (
    InputError,
    ModelError,
    OptionError,
    StateError,
    UnsupportedError,
)
from tflgpu.interpreter import Interpreter
from tflgpu.ir.dtypes import DType
from tflgpu.language_models.answer import Stops
from tflgpu.language_models.decoder import Decoder
from tflgpu.language_models.sampling import Sampling
from tflgpu.tflite.model_file import SignatureInfo
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec, spec_of
from tflgpu.tflite.write import write_model
from typer.testing import CliRunner

from tests.interpreter import interpreter_models as models
from tests.language_models import bundles
from tests.language_models.bundles import ROOM, litertlm, llm_metadata, task

litert = pytest.importorskip("ai_edge_litert.interpreter")
DEVICES = {"cpu_ref": 1, "opencl": 0, "wgpu": 0, "cpu": None}
PROMPT = "the sky is blue because light"


def greedy(tokens: list[int], count: int, size: int, content: bytes | None = None) -> list[int]:
    """What LiteRT's kernels give, token by token, each the likeliest of ``size``."""
    model = litert.Interpreter(model_content=content or bundles.model())
    decode = model.get_signature_runner("decode")
    cache = np.zeros(decode.get_input_details()["kv_cache_k_0"]["shape"], np.float32)
    found: list[int] = []
    for at in itertools.count():
        token = tokens[at] if at < len(tokens) else found[-1]
        made = decode(
            tokens=np.array([[token]], np.int32),
            input_pos=np.array([at], np.int32),
            kv_cache_k_0=cache,
        )
        cache = made["kv_cache_k_0"]
        if at >= len(tokens) - 1:
            found.append(int(made["logits"].reshape(-1)[:size].argmax()))
            if len(found) == count:
                return found
    raise AssertionError


def pieces() -> Any:
    package = pytest.importorskip("sentencepiece", reason="needs tflgpu[text]")
    found = package.SentencePieceProcessor()
    found.LoadFromSerializedProto(bundles.pieces())
    return found


def a_bundle(metadata: bytes = b"", content: bytes | None = None) -> bytes:
    sections = [(5, metadata, ""), (4, bundles.pieces(), "")]
    model = content or bundles.model()
    return litertlm([*sections, (3, model, "tf_lite_prefill_decode")])


@pytest.fixture(scope="module")
def plain() -> Any:
    with tflgpu.LanguageModel(a_bundle(), backend="cpu_ref", device=0) as model:
        yield model


@pytest.mark.parametrize("backend", DEVICES)
def test_tokens_are_equal_to_litert(backend: str, require_backend: Callable[[str], Any]) -> None:
    options: dict[str, Any] = {"backend": backend}
    if backend != "cpu":
        require_backend(backend)
        options["device"] = DEVICES[backend]
    tokenizer = pieces()
    with tflgpu.LanguageModel(a_bundle(), **options) as model:
        for words in (1, 2, 5, 6):  # chunks that are full, and ones that are filled up
            text = " ".join(PROMPT.split()[:words])
            prompt = tokenizer.EncodeAsIds(text)
            found = model.generate(text, max_tokens=10)
            assert list(found.tokens) == greedy(prompt, 10, 64)
            assert found.text == str(found) == tokenizer.DecodeIds(list(found.tokens))
            assert (found.prompt_tokens, found.reason) == (len(prompt), "length")
        if backend == "wgpu":  # no byte of a cache is copied
            decode = model._decoder._decode.runner
            steps = sum(1 for _ in model.stream(PROMPT, max_tokens=3)) and decode.copied
            assert steps.to_device % 8 == 0
            assert steps.to_host % (4 * bundles.VOCABULARY) == 0


def test_an_answer_ends_where_there_is_no_room(plain: Any) -> None:
    found = plain.generate(PROMPT)
    assert found.reason == "room"
    assert found.prompt_tokens + len(found.tokens) == ROOM
    with pytest.raises(InputError, match=f"the prompt has .* room for {ROOM} with its answer"):
        plain.generate(PROMPT * 9)
    with pytest.raises(InputError, match="at least one token"):
        plain.generate("")
    prompt = pieces().EncodeAsIds(PROMPT)
    assert list(found.tokens) == greedy(prompt, ROOM - len(prompt), 64)


def test_pieces_are_the_text(plain: Any) -> None:
    whole = plain.generate(PROMPT, max_tokens=9, temperature=1.5, seed=3)
    stream = plain.stream(PROMPT, max_tokens=9, temperature=1.5, seed=3)
    assert stream.generation is None
    found = list(stream)
    assert len(found) > 1
    assert "".join(found) == whole.text
    assert stream.generation.tokens == whole.tokens
    first = plain.stream(PROMPT, max_tokens=9)
    next(first)
    plain.generate(PROMPT, max_tokens=1)
    with pytest.raises(StateError, match="another prompt was begun"):
        next(first)


def test_what_a_bundle_says_of_prompts() -> None:
    tokenizer = pieces()
    around = ("<turn>", " words", "<turn>")
    said = llm_metadata("<turn>", ["<end>", [7]], around, most=40)
    with tflgpu.LanguageModel(a_bundle(said), backend="cpu_ref") as model:
        turn = tokenizer.PieceToId("<turn>")
        prompt = [turn, *tokenizer.EncodeAsIds("<turn>the sky words<turn>")]
        found = model.generate("the sky", max_tokens=5)
        assert found.prompt_tokens == len(prompt)
        wanted = greedy(prompt, 5, 64)
        assert list(found.tokens) == wanted[: len(found.tokens)]
        assert model.generate("the sky", raw=True, max_tokens=1).prompt_tokens == 1 + len(
            tokenizer.EncodeAsIds("the sky")
        )
        assert model._decoder.room == 40


def test_stops(plain: Any) -> None:
    whole = plain.generate(PROMPT, max_tokens=12, temperature=2.0, seed=1)
    stop = whole.text[4:6]
    at = whole.text.index(stop)
    found = plain.generate(PROMPT, max_tokens=12, temperature=2.0, seed=1, stop=stop)
    assert (found.text, found.reason) == (whole.text[:at], "stop")
    assert len(found.tokens) < len(whole.tokens)
    last = whole.tokens[3]
    said = llm_metadata(None, [[last]])
    with tflgpu.LanguageModel(a_bundle(said), backend="cpu_ref") as model:
        cut = model.generate(PROMPT, max_tokens=12, temperature=2.0, seed=1)
        count = whole.tokens.index(last)
        assert cut.tokens == whole.tokens[: count + 1]
        assert cut.text == pieces().DecodeIds(list(whole.tokens[:count]))
    for wrong in ("", 3):
        with pytest.raises((InputError, TypeError)):
            plain.generate(PROMPT, stop=[wrong])


def test_text_that_may_begin_a_stop_is_kept_back() -> None:
    stops = Stops((), ("END",))
    assert stops.sure("the E") == 4
    assert stops.sure("the EN") == 4
    assert stops.sure("the EX") == 6
    assert stops.sure("x\N{REPLACEMENT CHARACTER}") == 1
    assert stops.cut("the END of") == 4
    assert stops.cut("the") == -1


@pytest.mark.parametrize("kind", ["task", "tflite"])
def test_other_containers(kind: str, tmp_path: Path, plain: Any) -> None:
    (tmp_path / "pieces.model").write_bytes(bundles.pieces())
    path = tmp_path / f"model.{kind}"
    tokenizer = None
    content = bundles.model()
    if kind == "task":
        metadata = bundles.field(4, 2) + bundles.field(5, "<end>")
        content = task(
            {"TF_LITE_PREFILL_DECODE": content, "TOKENIZER_MODEL": bundles.pieces(),
             "METADATA": metadata}
        )  # fmt: skip
    else:
        tokenizer = tmp_path / "pieces.model"
    path.write_bytes(content)
    found = tflgpu.generate(path, PROMPT, tokenizer=tokenizer, max_tokens=6, backend="cpu_ref")
    prompt = pieces().EncodeAsIds(PROMPT)
    if kind == "task":
        prompt = [2, *prompt]
    assert list(found.tokens) == greedy(prompt, 6, 64)[: len(found.tokens)]
    assert tflgpu.generate(plain, PROMPT, max_tokens=2).reason == "length"
    with pytest.raises(OptionError, match="not open yet"):
        tflgpu.generate(plain, PROMPT, backend="cpu_ref")


def test_a_tokenizer_of_hugging_face(tmp_path: Path) -> None:
    text = bundles.json_tokenizer()
    content = litertlm([(6, bundles.zlibbed(text), ""), (3, bundles.model(), "")])
    package = pytest.importorskip("tokenizers")
    tokenizer = package.Tokenizer.from_str(text)
    prompt = tokenizer.encode(PROMPT, add_special_tokens=False).ids
    (tmp_path / "tokenizer.json").write_text(text)
    for source, path in ((content, None), (bundles.model(), tmp_path / "tokenizer.json")):
        with tflgpu.LanguageModel(source, tokenizer=path, backend="cpu_ref") as model:
            found = model.generate(PROMPT, max_tokens=6)
            assert list(found.tokens) == greedy(prompt, 6, tokenizer.get_vocab_size())
            assert found.text == tokenizer.decode(list(found.tokens))


def test_a_mask_and_parameters_are_filled() -> None:
    """A signature as exports with masks have it, which shows what it was given."""

    def signature(count: int) -> list[TensorSpec]:
        return [
            TensorSpec("tokens", (1, count), DType.I32),
            TensorSpec("input_pos", (count,), DType.I32),
            TensorSpec("mask", (1, 1, count, 9)),
            TensorSpec("param_tensor", (1, 1, 1, 7), DType.I32),
            TensorSpec("kv_cache_k_0", (1, 9)),
            TensorSpec("flat", (2,), DType.I32, np.array([1, -1], np.int32)),
            TensorSpec("mask_row", (1, 9 * count)),
            TensorSpec("numbers", (1, 7)),
            TensorSpec("numbers_i", (1, 7), DType.I32),
            TensorSpec("logits", (1, 9 * count + 7)),
            TensorSpec("kv_cache_k_0_out", (1, 9)),
        ]

    operators = [
        OperatorSpec("RESHAPE", {}, (2, 5), (6,)),
        OperatorSpec("RESHAPE", {}, (3, 5), (8,)),
        OperatorSpec("CAST", {}, (8,), (7,)),
        OperatorSpec("CONCATENATION", {"axis": 1}, (6, 7), (9,)),
        OperatorSpec("ABS", {}, (4,), (10,)),
    ]
    names = {n: i for i, n in enumerate(
        ("tokens", "input_pos", "mask", "param_tensor", "kv_cache_k_0"))}  # fmt: skip
    key = SignatureInfo("decode", 0, names, {"logits": 9, "kv_cache_k_0": 10})
    content = write_model(
        ModelSpec(signature(1), operators, tuple(range(5)), (9, 10), signatures=(key,))
    )
    with Interpreter(model_content=content, experimental_delegates=[]) as interpreter:
        decoder = Decoder(interpreter)
        assert (decoder.room, decoder.vocabulary) == (9, 16)
        logits = decoder.prompt([3, 4, 5])
        hidden = -0.7 * np.finfo(np.float32).max
        np.testing.assert_allclose(logits[:9], [0] * 3 + [hidden] * 6)
        np.testing.assert_array_equal(logits[9:], [2, 3, 3, 0, 0, 0, 0])


def test_a_prefill_of_pictures_is_left_out() -> None:
    text = read_model(bundles.model())
    picture = spec_of(text)
    prefill = next(s for s in text.signatures if s.key != "decode")
    renamed = {"pixels" if n == "tokens" else n: i for n, i in prefill.inputs.items()}
    pixels = attrs.evolve(prefill, key="prefill_pixels", inputs=renamed)
    content = write_model(attrs.evolve(picture, signatures=(*text.signatures, pixels)))
    with Interpreter(model_content=content, experimental_delegates=[]) as interpreter:
        assert [step.key for step in Decoder(interpreter)._prefill] == ["prefill_4"]


# Mistakes


def test_models_that_are_no_language_models() -> None:
    with pytest.raises(ModelError, match=r"no signature 'decode' but .*serve"):
        tflgpu.LanguageModel(
            litertlm([(4, bundles.pieces(), ""), (3, models.chain(), "")]), backend="cpu_ref"
        )
    spec = ModelSpec(
        [TensorSpec("x", (1, 3)), TensorSpec("y", (1, 3))],
        [OperatorSpec("RELU", {}, (0,), (1,))],
        (0,),
        (1,),
        signatures=(SignatureInfo("decode", 0, {"embeddings": 0}, {"logits": 1}),),
    )
    with (
        Interpreter(model_content=write_model(spec), experimental_delegates=[]) as interpreter,
        pytest.raises(UnsupportedError, match=r"inputs \[embeddings\].*cannot be filled"),
    ):
        Decoder(interpreter)


def test_a_tokenizer_that_does_not_fit() -> None:
    with pytest.raises(ModelError, match="the tokenizer has 64 tokens and the model logits for 50"):
        tflgpu.LanguageModel(a_bundle(content=bundles.model(50)), backend="cpu_ref")
    said = llm_metadata([90])
    with (
        tflgpu.LanguageModel(a_bundle(said, bundles.model(80)), backend="cpu_ref") as model,
        pytest.raises(InputError, match="token 90 of the prompt is none of the model's 80"),
    ):
        model.generate("the")
    with pytest.raises(ModelError, match="has no tokenizer; give one by tokenizer=PATH"):
        tflgpu.LanguageModel(bundles.model(), backend="cpu_ref")
    with pytest.raises(ModelError, match="the tokenizer cannot be read"):
        tflgpu.LanguageModel(
            litertlm([(4, b"none", ""), (3, bundles.model(), "")]), backend="cpu_ref"
        )


def test_mistakes_of_calls(plain: Any) -> None:
    for how, error in (
        ({"temperature": -1.0}, OptionError),
        ({"top_p": 0.0}, OptionError),
        ({"top_p": 1.5}, OptionError),
        ({"top_k": -1}, OptionError),
        ({"max_tokens": 0}, OptionError),
    ):
        with pytest.raises(error):
            plain.generate("the", **how)
    with pytest.raises(InputError, match="a prompt is a text"):
        plain.generate(b"the")
    with pytest.raises(OptionError, match="options are for a model without a delegate"):
        tflgpu.LanguageModel(a_bundle(), delegate=object(), backend="cpu_ref")
    with tflgpu.LanguageModel(a_bundle(), backend="cpu_ref") as model:
        stream = model.stream("the")
        next(stream)
    with pytest.raises(StateError, match="closed"):
        next(stream)
    with pytest.raises(StateError, match="closed"):
        model.generate("the")


# Choosing


def test_choosing() -> None:
    logits = np.log(np.array([0.1, 0.5, 0.15, 0.25], np.float32))
    random = np.random.default_rng(0)

    def chosen(sampling: Sampling) -> list[float]:
        found = [sampling.choose(logits, random) for _ in range(2000)]
        return [found.count(n) / 2000 for n in range(4)]

    assert chosen(Sampling()) == [0, 1, 0, 0]
    np.testing.assert_allclose(chosen(Sampling(1.0)), [0.1, 0.5, 0.15, 0.25], atol=0.05)
    np.testing.assert_allclose(chosen(Sampling(1.0, top_k=2)), [0, 2 / 3, 0, 1 / 3], atol=0.05)
    np.testing.assert_allclose(chosen(Sampling(1.0, top_p=0.6)), [0, 2 / 3, 0, 1 / 3], atol=0.05)
    assert chosen(Sampling(1.0, top_p=0.5)) == [0, 1, 0, 0]
    warm = chosen(Sampling(2.0))
    assert warm[1] < 0.5
    assert warm[0] > 0.1


# The command


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "model.litertlm"
    path.write_bytes(a_bundle())
    wanted = tflgpu.generate(path, PROMPT, max_tokens=6, backend="cpu_ref")
    arguments = ["generate", str(path), PROMPT, "--max-tokens", "6", "--backend", "cpu_ref", "-v"]
    ran = CliRunner().invoke(make_app(), arguments)
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == f"{wanted.text}\n"
    assert "6 tokens, ended by length" in ran.stderr
    assert "run on cpu_ref" in ran.stderr
    asked = CliRunner().invoke(
        make_app(),
        ["generate", str(path), "-", "--max-tokens", "6", "--backend", "cpu_ref"],
        PROMPT,
    )
    assert asked.stdout == f"{wanted.text}\n"
    failed = CliRunner().invoke(make_app(), ["generate", str(tmp_path / "none"), "x"])
    assert failed.exit_code == 2
    assert "no such file" in failed.stderr
