"""`tflgpu.Task`: pictures, sounds and texts go in, answers with names come out."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tflgpu
from tflgpu.errors import InputError, ModelError, OptionError
from tflgpu.ir.dtypes import DType
from tflgpu.tflite.spec import ModelSpec, OperatorSpec, TensorSpec
from tflgpu.tflite.write import write_model

from tests.small_models import small_spec, tensor_of
from tests.tools import task_models as models
from tests.tools.metadata_files import file, unit, with_metadata
from tests.tools.task_models import COLOURS

pytest.importorskip("PIL", reason="needs tflgpu[image]")

CPU = {"cpu_backend": "cpu_ref"}


def softmax(x: Any) -> np.ndarray:
    powers = np.exp(np.asarray(x, np.float64))
    return powers / powers.sum()


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    return models.picture(tmp_path / "orange.png")


def task(spec: ModelSpec, **options: Any) -> tflgpu.Task:
    return tflgpu.Task(write_model(spec), **CPU, **options)


@pytest.mark.parametrize("is_softmax", [True, False])
def test_classes_by_name(photo: Path, is_softmax: bool) -> None:
    with task(models.colours(softmax=is_softmax), labels=COLOURS) as made:
        assert (made.kind, made.takes) == ("classify", "picture")
        answer = made(photo)
    wanted = softmax((np.array(models.ORANGE) - 127.5) / 127.5)
    assert [label.name for label in answer.labels] == list(COLOURS)
    np.testing.assert_allclose([label.score for label in answer.labels], wanted, atol=1e-5)
    assert answer.are_probabilities
    assert answer.best.name == "red"
    assert str(answer).splitlines()[0] == f"{100 * wanted[0]:>6.1f} %  red"
    assert answer.said.startswith("20x16 stretched to 10x8 (bilinear), RGB, pixels to -1 .. 1")
    assert answer.asdict()["labels"][0] == {
        "index": 0, "name": "red", "score": round(answer.best.score, 6),
    }  # fmt: skip


def test_sources_of_every_type(photo: Path, tmp_path: Path) -> None:
    from PIL import Image

    image = Image.open(photo)
    pixels = np.asarray(image)
    ready = np.zeros((1, 8, 10, 3), np.float32) + (np.array(models.ORANGE, np.float32) / 127.5 - 1)
    np.save(tmp_path / "ready.npy", ready)
    with task(models.colours(), labels=COLOURS) as made:
        first = made(photo).scores
        for source in (str(photo), image, pixels, ready, tmp_path / "ready.npy"):
            np.testing.assert_allclose(made(source).scores, first, atol=1e-6)
        grey = made(pixels[..., 0])
        np.testing.assert_allclose(grey.scores, [1 / 3] * 3, atol=1e-6)
        with pytest.raises(InputError, match="is no picture; give uint8"):
            made(pixels[..., :2])
        with pytest.raises(InputError, match="2 sources for the inputs image"):
            made(photo, photo)
        for none in (None, [photo], 3):
            with pytest.raises(InputError, match="nor a readable image"):
                made(none)
        with pytest.raises(InputError, match="there is no file"):
            made(tmp_path / "absent.png")


def test_eight_bits_become_probabilities(photo: Path) -> None:
    with task(models.colours(eight_bits=True), labels=COLOURS) as made:
        answer = made(photo)
    wanted = softmax((np.array(models.ORANGE) - 128) / 64)
    np.testing.assert_allclose(answer.scores, wanted, atol=0.01)
    assert answer.said.endswith("RGB, pixels as they are")


def test_a_mean_of_stored_numbers_is_quantized(photo: Path) -> None:
    """Real numbers by --mean and --std, stored by the tensor's scale."""
    with task(models.colours(eight_bits=True), labels=COLOURS, mean=0, std=255) as made:
        answer = made(photo)
    np.testing.assert_allclose(answer.scores, softmax(np.array(models.ORANGE) / 255), atol=0.01)
    assert "pixels to 0 .. 1 (mean 0, std 255)" in answer.said
    with (
        task(models.same("RESHAPE", dtype=DType.U8), mean=0) as bare,
        pytest.raises(OptionError, match="uint8 without a scale"),
    ):
        bare(photo)


def test_means_by_channel(photo: Path) -> None:
    with task(models.colours(), labels=COLOURS, mean=models.ORANGE, std=(1, 2, 3)) as made:
        np.testing.assert_allclose(made(photo).scores, [1 / 3] * 3, atol=1e-6)
    with (
        task(models.colours(), mean=(1, 2)) as made,
        pytest.raises(OptionError, match="2 numbers for mean or std, but input image has 3"),
    ):
        made(photo)
    with (
        task(models.colours(), std=0) as made,
        pytest.raises(ModelError, match="std is not 0"),
    ):
        made(photo)


@pytest.mark.parametrize(
    "shape", [(1, 3, 8, 10), (1, 8, 10, 3), (8, 10, 3), (1, 8, 10), (1, 1, 8, 10), (1, 192), (81,)]
)
def test_layouts(photo: Path, shape: tuple[int, ...]) -> None:
    """Every layout has each pixel at its place: a red left edge."""
    from PIL import Image

    image = Image.new("RGB", (20, 16), "white")
    image.paste((255, 0, 0), (0, 0, 10, 16))
    with task(models.same("RESHAPE", shape), kind="values", mean=0, std=255) as made:
        (array,) = made(image).arrays.values()
    if shape == (1, 3, 8, 10):
        array = array.transpose(0, 2, 3, 1)
    if 3 in shape:
        first, last = array.reshape(8, 10, 3)[4, [0, -1]]
        np.testing.assert_allclose([first, last], [[1, 0, 0], [1, 1, 1]], atol=0.01)
    elif shape == (1, 192):
        np.testing.assert_allclose(array.reshape(8, 8, 3)[4, 0], [1, 0, 0], atol=0.01)
    else:
        side = (9, 9) if shape == (81,) else (8, 10)
        first, last = array.reshape(side)[4, [0, -1]]
        np.testing.assert_allclose([first, last], [76 / 255, 1], atol=0.01)  # 0.299 of red


@pytest.mark.parametrize(("resize", "left"), [("stretch", 0.5), ("crop", 0.5), ("pad", 0.5)])
def test_resizing_keeps_places(resize: str, left: float) -> None:
    """A wide picture, and where its middle third is afterwards."""
    from PIL import Image

    image = Image.new("RGB", (60, 20), "black")
    image.paste((255, 255, 255), (20, 0, 40, 20))
    shape = (1, 8, 8, 3)
    with task(models.same("RESHAPE", shape), kind="image", mean=0, std=255, resize=resize) as made:
        answer = made(image)
    grey = answer.pixels[4, :, 0]
    if resize == "crop":
        assert (grey > 200).all()
    else:
        assert grey[0] < 50
        assert grey[4] > 200
        assert grey[-1] < 50
    rows = answer.pixels[:, 4, 0]
    assert (rows[0] < 50) == (resize == "pad")


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    from PIL import Image

    image = Image.new("RGB", (20, 10), "blue")
    image.paste((255, 0, 0), (0, 0, 10, 10))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    image.save(tmp_path / "turned.jpg", exif=exif)
    with task(models.same("RESHAPE"), kind="image", mean=0, std=255) as made:
        answer = made(tmp_path / "turned.jpg")
    assert answer.picture.size == (10, 20)
    assert answer.pixels[0, 5, 0] > 200
    assert answer.pixels[-1, 5, 2] > 200


def test_metadata_is_used(photo: Path) -> None:
    """Normalization, labels and a threshold of the file; and not where they are switched off."""
    image = {"process_units": [unit("NormalizationOptions", mean=[0], std=[255])]}
    scores = {
        "associated_files": [file("names.txt", 2)],
        "process_units": [unit("ScoreThresholdingOptions", global_score_threshold=0.3)],
    }
    content = with_metadata(
        models.colours(), [image], [scores], {"names.txt": "rot\ngr\u00fcn\nblau".encode()}
    )
    with tflgpu.Task(content, **CPU) as made:
        answer = made(photo)
        assert made.metadata is not None
    wanted = softmax(np.array(models.ORANGE) / 255)
    np.testing.assert_allclose(answer.scores, wanted, atol=1e-5)
    assert [label.name for label in answer.labels] == ["rot"]
    assert "a guess" not in answer.said
    with tflgpu.Task(content, use_metadata=False, threshold=0.99, **CPU) as made:
        answer = made(photo)
    assert "a guess" in answer.said
    assert answer.lines() == ["nothing above the threshold"]


def test_calibrated_scores(photo: Path) -> None:
    scores = {
        "process_units": [unit("ScoreCalibrationOptions", score_transformation=0,
                               default_score=0.125)],
        "associated_files": [file("calibration.csv", 4)],
    }  # fmt: skip
    content = with_metadata(
        models.colours(), [], [scores], {"calibration.csv": b"1,2,3\n\n0.5,2,3,0.9"}
    )
    with tflgpu.Task(content, **CPU) as made:
        answer = made(photo)
    x = softmax((np.array(models.ORANGE) - 127.5) / 127.5)
    np.testing.assert_allclose(
        answer.scores, [1 / (1 + np.exp(-(2 * x[0] + 3))), 0.125, 0.125], atol=1e-5
    )


def test_labels_of_one_class_less() -> None:
    """ImageNet's 1,000 names with a model of 1,001 classes, and names with numbers."""
    with task(models.colours(), labels=["red", "green"]) as made:
        answer = made(np.full((8, 10, 3), (0, 255, 0), np.uint8))
    assert answer.best.name == "red"
    assert {label.name for label in answer.labels} == {"background", "red", "green"}
    with task(models.colours(), labels=["2 sea", "0: fire"]) as made:
        answer = made(np.full((8, 10, 3), (0, 0, 255), np.uint8))
    assert [label.name for label in answer.labels] == ["sea", "fire", "class 1"]


def test_a_file_of_labels(tmp_path: Path, photo: Path) -> None:
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n\n", encoding="utf-8")
    with task(models.colours(), labels=tmp_path / "labels.txt", top=2) as made:
        assert [label.name for label in made(photo).labels] == ["red", "green"]
    with pytest.raises(InputError, match=r"labels: .*absent\.txt cannot be read"):
        task(models.colours(), labels=tmp_path / "absent.txt")


def test_a_picture_comes_out(photo: Path) -> None:
    """By a sigmoid from 0 to 1, by the way it went in otherwise."""
    x = np.array(models.ORANGE) / 127.5 - 1
    for op, wanted in (
        ("LOGISTIC", 255 / (1 + np.exp(-x))),
        ("TANH", 127.5 * (np.tanh(x) + 1)),
        ("RELU", np.maximum(x, 0) * 127.5 + 127.5),
    ):
        with task(models.same(op)) as made:
            assert made.kind == "image"
            answer = made(photo)
        np.testing.assert_allclose(answer.pixels[3, 3], wanted, atol=1)
        assert answer.draw().size == (10, 8)


def test_masks(photo: Path) -> None:
    classes = ["nothing", "cat", "dog", "cow"]
    with task(models.same("RELU", (1, 8, 10, 4)), labels=classes) as made:
        assert made.kind == "segment"
        x = np.zeros((1, 8, 10, 4), np.float32)
        x[0, :, :5, 2] = 1
        answer = made(x)
        assert answer.classes.shape == (8, 10)
        assert answer.shares == {"nothing": 0.5, "dog": 0.5}
        assert answer.lines() == ["  50.0 %  nothing", "  50.0 %  dog"]
        assert answer.draw().size == (10, 8)  # on black, where there is no picture
    with task(models.same("LOGISTIC", (1, 8, 10, 1)), labels=["cat"]) as made:
        answer = made(photo)
        assert answer.confidence is not None
        drawn = answer.draw()
    assert set(answer.shares) <= {"cat", "background"}
    assert drawn.size == (20, 16)
    assert drawn.getpixel((5, 5)) != models.ORANGE


def test_vectors(photo: Path) -> None:
    spec = small_spec(
        {
            "image": (1, 8, 10, 3),
            "axes": tensor_of((2,), DType.I32, np.array([1, 2], np.int32)),
            "mean": (1, 3),
        },
        ("mean = MEAN(image, axes)", {"keep_dims": False}),
    )
    with task(spec) as made:
        assert made.kind == "embed"
        one, other = made(photo), made(np.full((8, 10, 3), 255, np.uint8))
    assert one.similarity(one) == pytest.approx(1)
    assert one.similarity(other) < 0.9
    assert "3 numbers of length" in one.lines()[0]
    with pytest.raises(InputError, match="nothing that can be drawn"):
        one.draw()


def test_sounds(tmp_path: Path) -> None:
    loud = np.sin(np.arange(8000) * 0.3)
    both = np.concatenate([loud, np.zeros(8000)])
    path = models.sound(tmp_path / "both.wav", both, rate=8000)
    with task(models.loudness(), labels=["quiet", "loud"], rate=4000) as made:
        assert (made.kind, made.takes) == ("classify", "sound")
        parts = list(made.each(path))
        whole = made(path)
    assert [(at, a.best.name) for at, a in parts] == [(0.0, "loud"), (1.0, "quiet")]
    mean = np.mean([a.scores for _, a in parts], 0)
    np.testing.assert_allclose(whole.scores, mean, atol=1e-6)
    assert parts[1][1].said == "2.00 s of sound at 8000 Hz to 4000 Hz, from 1.00 s"
    with task(models.loudness(8000)) as made:
        assert "a guess: --rate" in made(path).said


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_wav_files(tmp_path: Path, width: int, channels: int) -> None:
    from tflgpu.tools.sound import read_sound, resampled

    samples = 0.5 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    wide = samples if channels == 1 else np.stack([samples, samples], 1)
    found = read_sound(models.sound(tmp_path / "a.wav", wide, 16000, width))
    assert found.rate == 16000
    np.testing.assert_allclose(found.samples, samples, atol=1.1 / 2 ** (8 * width - 1) + 1e-6)
    half = resampled(found, 8000)
    assert (half.rate, len(half.samples)) == (8000, 8000)
    np.testing.assert_allclose(half.samples[100:-100], samples[::2][100:-100], atol=0.01)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"no sound at all"])
def test_files_that_are_no_sound(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(content)
    with task(models.loudness()) as made, pytest.raises(InputError, match="is no WAV file"):
        made(tmp_path / "a.wav")
    models.sound(tmp_path / "a.wav", np.zeros(0))
    with task(models.loudness()) as made, pytest.raises(InputError, match="has no samples"):
        made(tmp_path / "a.wav")


def test_texts(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("<PAD> 0\n<START> 1\n<UNKNOWN> 2\ngood 7\nbad 9\n")
    with task(models.words(), vocabulary=tmp_path / "words.txt") as made:
        assert made.takes == "text"
        (ids,) = made("Good, not BAD!").arrays.values()
        assert ids.tolist() == [[1, 7, 2, 9, 0, 0]]
        (ids,) = made("bad " * 100).arrays.values()
        assert ids.tolist() == [[1, 9, 9, 9, 9, 9]]
        (tmp_path / "review.txt").write_text("good")
        (ids,) = made(tmp_path / "review.txt").arrays.values()
        assert ids.tolist() == [[1, 7, 0, 0, 0, 0]]
    with task(models.words()) as made, pytest.raises(InputError, match="--vocabulary FILE"):
        made("good")


def with_tokenizer(kind: str, field: str, name: str, content: bytes) -> bytes:
    """A model of BERT's three inputs, with a file behind it that the tokenizer names."""
    names = ("ids", "mask", "segment_ids")
    tensors = [TensorSpec(n, (1, 8), DType.I32) for n in names]
    tensors += [TensorSpec(f"{n}_out", (1, 8)) for n in names]
    casts = [
        OperatorSpec("CAST", {"in_data_type": 2, "out_data_type": 0}, (i,), (i + 3,))
        for i in range(3)
    ]
    return with_metadata(
        ModelSpec(tensors, casts, (0, 1, 2), (3, 4, 5)),
        [{"name": n} for n in names],
        [],
        {name: content},
        subgraph={"input_process_units": [unit(kind, **{field: [file(name, 5)]})]},
    )


def test_pieces_of_words() -> None:
    """BERT: three inputs from one text, by the metadata's tokenizer."""
    vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\nplay\n##ing\nthe\n!\n##s"
    content = with_tokenizer("BertTokenizerOptions", "vocab_file", "vocab.txt", vocabulary)
    with tflgpu.Task(content, **CPU) as made:
        arrays = made("Playing the pl\u00e2ys x!").arrays
    assert [a.tolist()[0] for a in arrays.values()] == [
        [2, 4, 5, 6, 4, 8, 1, 3], [1] * 8, [0] * 8,
    ]  # fmt: skip


def with_pieces(model: bytes) -> bytes:
    return with_tokenizer("SentencePieceTokenizerOptions", "model", "text.model", model)


def test_sentence_pieces() -> None:
    pieces = pytest.importorskip("sentencepiece", reason="needs tflgpu[text]")
    written = io.BytesIO()
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(["the film was good", "a bad film", "the play was bad"] * 9),
        model_writer=written, user_defined_symbols=["[CLS]", "[SEP]"], pad_id=5,
        vocab_size=40, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    own = pieces.SentencePieceProcessor(model_proto=written.getvalue())
    with tflgpu.Task(with_pieces(written.getvalue()), **CPU) as made:
        ids, mask, segments = (a.tolist()[0] for a in made("the film").arrays.values())
        expected = [own.piece_to_id("[CLS]"), *own.encode("the film"), own.piece_to_id("[SEP]")]
        assert len(expected) < 8
        assert ids == expected + [5] * (8 - len(expected))
        assert mask == [1] * len(expected) + [0] * (8 - len(expected))
        assert segments == [0] * 8
        (ids, *_) = (a.tolist()[0] for a in made("the film " * 9).arrays.values())
        assert ids[-1] == own.piece_to_id("[SEP]")
    damaged = "SentencePiece model behind the file is damaged"
    with (
        tflgpu.Task(with_pieces(b"none"), **CPU) as made,
        pytest.raises(InputError, match=damaged),
    ):
        made("the film")


def test_without_sentencepiece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    missing = r"pip install tflgpu\[text\]"
    with tflgpu.Task(with_pieces(b""), **CPU) as made, pytest.raises(InputError, match=missing):
        made("the film")


def test_patterns_that_never_end_are_refused() -> None:
    from tflgpu.tools.words import vocabulary_of

    with pytest.raises(InputError, match="has groups"):
        vocabulary_of(["a"], pattern="(a+)+$")
    with pytest.raises(InputError, match="is none"):
        vocabulary_of(["a"], pattern="[")


def test_a_model_of_the_callers(photo: Path) -> None:
    with tflgpu.Model(write_model(models.colours())) as model:
        with tflgpu.Task(model, labels=COLOURS) as made:
            assert made(photo).best.name == "red"
        model(np.zeros((1, 8, 10, 3), np.float32))  # still open
        with pytest.raises(OptionError, match="precision: the model was given"):
            tflgpu.Task(model, precision="f16")


@pytest.mark.parametrize("cls", [tflgpu.Model, tflgpu.Pool])
def test_a_model_made_for_several_items(photo: Path, cls: Any) -> None:
    """A photo is one of them; and the two halves of a call are the call."""
    with cls(write_model(models.colours()), batch=4) as model:
        with tflgpu.Task(model, labels=COLOURS) as made:
            answer = made(photo)
            prepared = made.prepare(photo)
            both = model(*(np.repeat(a, 2, 0) for a in prepared.arrays.values()))
            again = made.answer(both, prepared)
        assert answer.best.name == again.best.name == "red"
        np.testing.assert_allclose(answer.scores, again.scores, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "detection"}, "kind is one of classify, detect"),
        ({"resize": "squash"}, "resize is one of stretch, crop, pad"),
        ({"top": 0}, "top is 0"),
        ({"rate": 0}, "rate is 0"),
        ({"rate": 8000}, "rate: without effect"),
        ({"anchors": np.zeros((3, 4))}, "anchors: without effect"),
        ({"vocabulary": "x"}, "vocabulary: without effect"),
        ({"kind": "values", "labels": ["a"]}, "labels: without effect"),
    ],
)
def test_options_that_are_wrong_or_have_no_effect(options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        task(models.colours(), **options)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"1,2,3\n", r"not an array \[1, 3\]"),
        (b"", r"not an array \[0\]"),
        (b"1,2,3,x\n", "could not convert"),
        (b"1,2,3,4\n1,2\n", "four numbers: "),
    ],
)
def test_anchors_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(InputError, match=said):
        task(models.colours(), kind="detect", anchors="a.csv")


def test_a_kind_that_does_not_fit(photo: Path) -> None:
    for kind in ("detect", "segment", "keypoints", "image"):
        with (
            task(models.colours(), kind=kind) as made,
            pytest.raises(OptionError, match=f"are not those of a model of kind '{kind}'"),
        ):
            made(photo)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch, photo: Path) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with task(models.colours()) as made, pytest.raises(InputError, match="pip install pillow"):
        made(photo)


def test_damaged_metadata_is_an_error(photo: Path) -> None:
    spec = models.colours()
    broken = ModelSpec(
        spec.tensors, spec.operators, (0,), spec.outputs, metadata={"TFLITE_METADATA": b"nothing"}
    )
    with pytest.raises(ModelError, match="metadata"):
        task(broken)
    with task(broken, use_metadata=False) as made:
        assert made(photo).labels
