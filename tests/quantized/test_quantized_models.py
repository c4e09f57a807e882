"""Real quantized models against LiteRT, on the CPU and wholly on a device.

No two engines round a quantized network alike: each op may differ by a step, and a whole model
drifts. How far is far is therefore measured, not chosen: over the same inputs, LiteRT's own
XNNPACK kernels are compared with its builtin ones, in steps of each output, and ours may be no
further from XNNPACK's than the builtin ones are (root mean square). Measured on these inputs, ours
is between 0.4 and 0.95 of that far.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import tflgpu
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, spec_of
from tflgpu.tflite.write import write_model

from tests.running import set_and_run

litert = pytest.importorskip("ai_edge_litert.interpreter", reason="pip install tflgpu[litert]")

#: Inputs of which classes are compared. Of noise, two classes may be a step apart.
CLASSIFIED = 20
WHERE = ("cpu", "opencl")
#: PoCL compiles each of these for half a minute, so that on a device it is one, on photographs; all
#: of them, on all images, where there is time (TFLGPU_TEST_EVERYTHING=1).
QUICK = ("mobilenet_v2_1.0_224_ptq_int8",)
#: How many times further than XNNPACK from the reference kernels ours may be, on photographs.
FACTOR = 1.5
EVERYTHING = bool(os.environ.get("TFLGPU_TEST_EVERYTHING"))
BUILTIN = litert.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
POSTPROCESS = "TFLite_Detection_PostProcess"


def heads(content: bytes) -> bytes:
    """The detector without its last operator, which turns any step into other detections."""
    spec = spec_of(read_model(content))
    last = spec.operators[-1]
    assert last.name == POSTPROCESS
    cut = ModelSpec(spec.tensors, spec.operators[:-1], spec.inputs, last.inputs[:2])
    return write_model(cut)


@attrs.frozen
class Model:
    """A model; ``classes`` where its output is scores of classes; ``cut`` makes the file.

    Steps that differ anywhere grow through a network as noise does, so the distance between two
    kernel sets is a fifth more or less by chance over 20 inputs. A model whose distance is near
    the limit takes more.
    """

    name: str
    classes: bool = False
    cut: Callable[[bytes], bytes] | None = None
    inputs: int = 20

    def content(self, path: Path) -> bytes:
        """What is run."""
        return path.read_bytes() if self.cut is None else self.cut(path.read_bytes())


MODELS = (
    Model("mobilenet_v1_1.0_224_quant_embedding", classes=True),
    Model("mobilenet_v2_1.0_224_ptq_int8", classes=True, inputs=60),
    Model("posenet_mobilenet_v1_100_257_int8_float_io"),
    Model("ssd_mobilenet_v1_coco_quant", cut=heads),
)


def images(shape: Sequence[int], dtype: Any, count: int) -> Iterator[Array]:
    """Noise and smooth patterns, in turn, of values from 0 to 255."""
    rng = np.random.default_rng(5)
    y, x = np.mgrid[0 : shape[1], 0 : shape[2]][..., None]
    for number in range(count):
        if number % 2:
            pitch, phase = rng.uniform(2, 40, (2, shape[3])), rng.uniform(0, 6, (2, shape[3]))
            waves = np.sin(y / pitch[0] + phase[0]) * np.sin(x / pitch[1] + phase[1])
            image = 0.5 + 0.5 * waves[None]
        else:
            image = rng.random(shape)
        yield (image * 255).astype(dtype)


def photographs(shape: Sequence[int], dtype: Any, _: int) -> Iterator[Array]:
    """scikit-learn's two, each whole and in four quarters; floats are -1 to 1."""
    datasets = pytest.importorskip("sklearn.datasets", reason="pip install tflgpu[examples]")
    pictures = pytest.importorskip("PIL.Image", reason="pip install tflgpu[image]")
    for pixels in datasets.load_sample_images().images:
        height, width = pixels.shape[0] // 2, pixels.shape[1] // 2
        quarters = [pixels[y : y + height, x : x + width] for y in (0, height) for x in (0, width)]
        for part in (pixels, *quarters):
            size = (int(shape[2]), int(shape[1]))
            bytes_ = np.asarray(pictures.fromarray(part).resize(size, pictures.BILINEAR))[None]
            if np.dtype(dtype).kind == "f":
                yield (bytes_ / 127.5 - 1).astype(dtype)
            elif np.dtype(dtype) == np.int8:
                yield (bytes_.astype(np.int16) - 128).astype(np.int8)
            else:
                yield bytes_


def run_all(interpreter: Any, count: int, draw: Callable[..., Any] = images) -> list[list[Array]]:
    """For every image, every output."""
    interpreter.allocate_tensors()
    (image,) = interpreter.get_input_details()
    found = []
    for data in draw(image["shape"], image["dtype"], count):
        set_and_run(interpreter, {image["index"]: data})
        outputs = interpreter.get_output_details()
        found.append([interpreter.get_tensor(o["index"]) for o in outputs])
    return found


@functools.cache
def litert_twice(content: bytes, count: int) -> tuple[list[list[Array]], list[list[Array]]]:
    """What XNNPACK's and the builtin kernels compute."""
    xnnpack = litert.Interpreter(model_content=content)
    builtin = litert.Interpreter(model_content=content, experimental_op_resolver_type=BUILTIN)
    return run_all(xnnpack, count), run_all(builtin, count)


def steps_of(content: bytes) -> list[float]:
    """A step of each output: 1 in stored numbers, the scale where the last operator dequantizes."""
    spec = spec_of(read_model(content))
    steps = []
    for index in spec.outputs:
        step = 1.0
        if spec.tensors[index].dtype is DType.F32:
            (maker,) = (o for o in spec.operators if index in o.outputs)
            quant = spec.tensors[maker.inputs[0]].quantization
            assert maker.name == "DEQUANTIZE" and quant is not None
            step = quant.scale[0]
        steps.append(step)
    return steps


def drift(a: list[list[Array]], b: list[list[Array]], output: int, step: float) -> float:
    """Root mean square of the difference, in steps."""
    pairs = [(x[output].astype(np.float64), y[output]) for x, y in zip(a, b, strict=True)]
    return float(np.sqrt(np.mean([np.square((x - y) / step) for x, y in pairs])))


def ours(
    content: bytes, count: int, where: str, require_backend: Callable[[str], Any]
) -> tuple[list[list[Array]], tflgpu.DelegationReport]:
    delegates = []
    if where != "cpu":
        require_backend(where)
        delegates = [tflgpu.GpuDelegate(backend=where, precision="f32")]
    with tflgpu.Interpreter(model_content=content, experimental_delegates=delegates) as interpreter:
        found = run_all(interpreter, count), interpreter.report
    for delegate in delegates:
        delegate.close()
    return found


@pytest.mark.parametrize(
    ("model", "where"),
    [(m, w) for m in MODELS for w in WHERE if w == "cpu" or EVERYTHING],
    ids=lambda v: getattr(v, "name", v),
)
def test_no_further_from_litert_than_its_own_engines_are(
    model: Model,
    where: str,
    require_backend: Callable[[str], Any],
    model_path: Callable[[str], Path],
) -> None:
    content = model.content(model_path(model.name))
    got, report = ours(content, model.inputs, where, require_backend)
    assert where == "cpu" or report.fully_delegated, str(report)
    xnnpack, builtin = litert_twice(content, model.inputs)
    for mine, theirs in zip(got[0], xnnpack[0], strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
    for output, step in enumerate(steps_of(content)):
        spread = drift(xnnpack, builtin, output, step)
        distance = drift(got, xnnpack, output, step)
        assert 0 < distance <= spread, f"output {output}: {distance:.3f} steps, spread {spread:.3f}"
    if model.classes:
        pairs = zip(got[:CLASSIFIED], xnnpack, strict=False)
        tops = [(a[0].argmax(), b[0].argmax()) for a, b in pairs]
        assert all(a == b for a, b in tops), tops
        assert len({b for _, b in tops}) > 3, "the inputs do not tell classes apart"


@pytest.mark.parametrize(
    "model", [m for m in MODELS if m.name in QUICK or EVERYTHING], ids=lambda m: m.name
)
@pytest.mark.needs("opencl")
def test_photographs_in_both_hosts(model: Model, model_path: Callable[[str], Path]) -> None:
    """No further from LiteRT's reference kernels than 1.5 times its XNNPACK kernels are."""
    content = model.content(model_path(model.name))
    kernels = litert.OpResolverType.BUILTIN_REF
    plain = litert.Interpreter(model_content=content, experimental_op_resolver_type=kernels)
    reference = run_all(plain, 0, photographs)
    xnnpack = run_all(litert.Interpreter(model_content=content), 0, photographs)
    with tflgpu.GpuDelegate(backend="opencl", precision="f32") as delegate:
        delegates = [delegate]
        with tflgpu.Interpreter(
            model_content=content, experimental_delegates=delegates
        ) as interpreter:
            ours = run_all(interpreter, 0, photographs)
            assert interpreter.report.fully_delegated
        inside = litert.Interpreter(model_content=content, experimental_delegates=delegates)
        hosted = run_all(inside, 0, photographs)
        assert delegate.reports[-1].fully_delegated
        del inside
    for output in range(len(reference[0])):
        spread = drift(xnnpack, reference, output, 1.0)
        assert spread > 0  # else nothing is compared
        for host, got in (("tflgpu", ours), ("LiteRT", hosted)):
            distance = drift(got, reference, output, 1.0)
            assert distance <= FACTOR * spread, (host, output, distance, spread)


@pytest.mark.parametrize("where", WHERE if EVERYTHING else WHERE[:1])
def test_the_detector_runs_to_its_end(
    where: str, require_backend: Callable[[str], Any], model_path: Callable[[str], Path]
) -> None:
    content = model_path("ssd_mobilenet_v1_coco_quant").read_bytes()
    got, report = ours(content, CLASSIFIED, where, require_backend)
    xnnpack, builtin = litert_twice(content, CLASSIFIED)
    if where != "cpu":
        assert [(r.node, r.op) for r in report.refusals] == [(63, POSTPROCESS)]
        assert report.delegated_nodes == report.total_nodes - 1 == 63
    for mine, theirs in zip(got, xnnpack, strict=True):
        assert [a.shape for a in mine] == [a.shape for a in theirs]
        np.testing.assert_array_equal(mine[3], theirs[3])
        assert (np.diff(mine[2][0]) <= 0).all()
    # Scores come sorted, so that a step does not change their order; boxes and classes do.
    scores = 2
    assert 0 < drift(got, xnnpack, scores, 1 / 256) <= drift(xnnpack, builtin, scores, 1 / 256)


def in_floats(content: bytes) -> bytes:
    """The model with its weights stored as f32."""
    spec = spec_of(read_model(content))
    tensors = [
        attrs.evolve(
            t,
            dtype=DType.F32,
            data=t.quantization.dequantize(np.asarray(t.data)),
            quantization=None,
        )
        if t.dtype is DType.I8 and t.quantization is not None
        else t
        for t in spec.tensors
    ]
    assert sum(a is not b for a, b in zip(tensors, spec.tensors, strict=True)) == 5
    return write_model(attrs.evolve(spec, tensors=tensors))


@pytest.mark.parametrize("rounds", [True, False], ids=["rounded", "real"])
@pytest.mark.parametrize("where", WHERE)
def test_dynamic_range_weights(
    where: str,
    rounds: bool,
    require_backend: Callable[[str], Any],
    model_path: Callable[[str], Path],
) -> None:
    """int8 weights of a float model: data is rounded to 8 bits before it meets them, as LiteRT
    does; where that is not wanted, the result is what LiteRT gives for the weights as f32."""
    content = model_path("dtln_model_quant_1").read_bytes()
    if where == "cpu" and not rounds:
        pytest.skip("only a delegate has the option")
    truth = litert.Interpreter(
        model_content=content if rounds else in_floats(content),
        experimental_op_resolver_type=(
            litert.OpResolverType.AUTO if rounds else litert.OpResolverType.BUILTIN_REF
        ),
    )
    delegates = []
    if where != "cpu":
        require_backend(where)
        delegates = [tflgpu.GpuDelegate(backend=where, precision="f32", round_hybrid_inputs=rounds)]
    interpreter = tflgpu.Interpreter(model_content=content, experimental_delegates=delegates)
    for each in (truth, interpreter):
        each.allocate_tensors()
    assert not delegates or interpreter.report.fully_delegated
    rng = np.random.default_rng(2)
    for _ in range(CLASSIFIED):
        for detail in truth.get_input_details():
            data = rng.normal(size=detail["shape"]).astype(np.float32)
            for each in (truth, interpreter):
                each.set_tensor(detail["index"], data)
        for each in (truth, interpreter):
            each.invoke()
        for detail in truth.get_output_details():
            expected = truth.get_tensor(detail["index"])
            error = interpreter.get_tensor(detail["index"]) - expected
            assert np.linalg.norm(error) <= 1e-5 * np.linalg.norm(expected)
    interpreter.close()
    for delegate in delegates:
        delegate.close()
