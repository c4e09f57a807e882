"""How far tflgpu is from LiteRT's CPU on real models, in its own interpreter and inside LiteRT's.

    python -m benchmarks.agreement --backends opencl vulkan wgpu

What is close enough depends on the model:

    float models        relative L2 error from LiteRT's CPU of at most --limit; where it is more,
                        ours is nearer to 64-bit arithmetic than LiteRT's result is
    8-bit models        no further from LiteRT's reference kernels (BUILTIN_REF) than 1.5 times its
                        XNNPACK kernels are, on photographs (root mean square over all of them)
    dynamic range       nearer to 64-bit arithmetic on the weights' real numbers than LiteRT is,
                        which rounds what these models compute to 8 bits as it goes

Photographs are those in --pictures, or the two that scikit-learn brings along
(`pip install tflgpu[examples]`). Exit code 1 where a model is further away, did not run, or has
nothing on the device.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import tflgpu
from ai_edge_litert import interpreter as litert
from tflgpu.cli import console
from tflgpu.ir.dtypes import Array, DType
from tflgpu.tflite.read import read_model
from tflgpu.tflite.spec import ModelSpec, spec_of
from tflgpu.tflite.write import write_model

from benchmarks.float64 import float64_outputs
from benchmarks.machine import machine, versions
from benchmarks.pictures import as_input, pictures
from benchmarks.run import find_model

Inputs = Mapping[int, Array]
Outputs = Sequence[Array]
_FACTOR = 1.5


def _heads(content: bytes) -> bytes:
    """The detector without its last operator, which makes other detections of a step."""
    spec = spec_of(read_model(content))
    last = spec.operators[-1]
    return write_model(ModelSpec(spec.tensors, spec.operators[:-1], spec.inputs, last.inputs[:2]))


def _widened(content: bytes) -> bytes:
    """A dynamic-range model with its weights as the real numbers that they stand for."""
    spec = spec_of(read_model(content))
    tensors = [
        t
        if t.dtype is not DType.I8 or t.quantization is None
        else attrs.evolve(
            t, dtype=DType.F32, data=t.quantization.dequantize(np.asarray(t.data)),
            quantization=None,
        )
        for t in spec.tensors
    ]  # fmt: skip
    return write_model(attrs.evolve(spec, tensors=tensors))


@attrs.frozen
class Model:
    """A model, and what it is held to.

    Attributes:
        name: Of the file.
        kind: "float", "8 bits" or "dynamic range".
        low, high: Of random inputs.
        shape: Of the input, where its own is too slow.
        cut: Makes another file of it, which is run instead.
    """

    name: str
    kind: str = "float"
    low: float = -1.0
    high: float = 1.0
    shape: tuple[int, ...] | None = None
    cut: Callable[[bytes], bytes] | None = None

    def content(self) -> bytes:
        """What is run."""
        content = find_model(self.name).read_bytes()
        return content if self.cut is None else self.cut(content)


MODELS = (
    Model("deeplabv3_257_mv_gpu"),
    Model("edsr_f32b5_fp32", low=0, high=255, shape=(1, 54, 97, 3)),
    Model("litert_torchaudio_conformer"),
    Model("mobilenet_v1_0.25_224_float"),
    Model("mobilenet_v1_1.0_224_f32"),
    Model("mobilenet_v2_1.0_224_f32"),
    Model("movie_review_nl_classifier"),
    Model("mp_hair_segmentation_customops", low=0),
    Model("mp_pose_landmark_full_f16", low=0),
    Model("mp_selfie_segmentation_f16", low=0),
    Model("posenet_mobilenet_v1_100_257_f32"),
    Model("ssd_mobilenet_v2_oidv4_fp16"),
    Model("style_transfer_f16_384"),
    Model("tflm_mnist_lstm_fp32", low=0),
    Model("dtln_model_quant_1", "dynamic range"),
    Model("mobilenet_v1_1.0_224_quant_embedding", "8 bits"),
    Model("mobilenet_v2_1.0_224_ptq_int8", "8 bits"),
    Model("posenet_mobilenet_v1_100_257_int8_float_io", "8 bits"),
    Model("ssd_mobilenet_v1_coco_quant", "8 bits", cut=_heads),
)


@attrs.frozen
class Row:
    """What became of a model in one host.

    Attributes:
        model, kind, backend, host: Which.
        delegated, total: Operators.
        distance: The worst output's, of the kind that the model is held to.
        said: The figures, in words.
        good: Whether it is close enough.
        seconds: That opening and running it took.
    """

    model: str
    kind: str
    backend: str
    host: str
    delegated: int
    total: int
    distance: float
    said: str
    good: bool
    seconds: float


def relative_l2(got: Array, expected: Array) -> float:
    """Infinite where one of the two is not finite and the other is."""
    if got.shape != expected.shape or not np.isfinite(got).all():
        return float("inf")
    difference = (got.astype(np.float64) - expected.astype(np.float64)).ravel()
    return float(np.linalg.norm(difference) / max(np.linalg.norm(expected.ravel()), 1e-30))


def _drawn(rng: np.random.Generator, detail: Any, model: Model) -> Array:
    shape, dtype = detail["shape"], np.dtype(detail["dtype"])
    found: Array
    if dtype.kind == "f":
        found = rng.uniform(model.low, model.high, shape).astype(dtype)
        return found
    if dtype.kind == "b":
        found = rng.random(shape) < 0.5
        return found
    found = rng.integers(0, 1000, shape, dtype)  # words: indices of a table
    return found


def _opened(interpreter: Any, model: Model) -> Any:
    if model.shape is not None:
        first = interpreter.get_input_details()[0]["index"]
        interpreter.resize_tensor_input(first, model.shape)
    interpreter.allocate_tensors()
    return interpreter


def _run(interpreter: Any, inputs: Sequence[Inputs]) -> list[Outputs]:
    found: list[Outputs] = []
    for given in inputs:
        for index, array in given.items():
            interpreter.set_tensor(index, array)
        interpreter.invoke()
        details = interpreter.get_output_details()
        found.append([interpreter.get_tensor(d["index"]) for d in details])
    return found


def _rms(a: Sequence[Outputs], b: Sequence[Outputs], output: int) -> float:
    pairs = [(x[output].astype(np.float64), y[output]) for x, y in zip(a, b, strict=True)]
    return float(np.sqrt(np.mean([np.square(x - y).mean() for x, y in pairs])))


@attrs.frozen
class Judge:
    """What a model's results are held against, computed once for all backends and hosts.

    Attributes:
        model: Which.
        content: The file.
        inputs: By tensor index, one mapping a run.
        cpu: LiteRT's results, by XNNPACK where it takes part.
        reference: BUILTIN_REF's results of an 8-bit model.
        truth: Gives those of 64-bit arithmetic, which takes a while.
        limit: Of the relative L2 error.
    """

    model: Model
    content: bytes
    inputs: Sequence[Inputs]
    cpu: Sequence[Outputs]
    reference: Sequence[Outputs]
    truth: Callable[[], Sequence[Outputs]]
    limit: float

    def of(self, got: Sequence[Outputs]) -> tuple[float, str, bool]:
        """Distance, figures in words, and whether that is close enough; of the worst output."""
        found = [self._output(got, output) for output in range(len(self.cpu[0]))]
        return max(found, key=lambda f: (not f[2], f[0]))

    def _output(self, got: Sequence[Outputs], output: int) -> tuple[float, str, bool]:
        if self.model.kind == "8 bits":
            ours, theirs = (_rms(x, self.reference, output) for x in (got, self.cpu))
            ratio = ours / theirs if theirs else (0.0 if ours == 0 else float("inf"))
            said = f"{ratio:.3f} times XNNPACK's distance from BUILTIN_REF"
            return ratio, said, ratio <= _FACTOR
        between = [relative_l2(g[output], c[output]) for g, c in zip(got, self.cpu, strict=True)]
        worst = max(between)
        if self.model.kind == "float" and worst <= self.limit:
            return worst, f"{worst:.1e}", True
        far = range(len(got)) if self.model.kind != "float" else [
            at for at, error in enumerate(between) if error > self.limit
        ]  # fmt: skip
        truth = self.truth()
        ours, theirs = (
            float(np.sqrt(np.mean([relative_l2(x[i][output], truth[i][output]) ** 2 for i in far])))
            for x in (got, self.cpu)
        )
        said = f"{worst:.1e}; from 64-bit arithmetic {ours:.1e}, LiteRT {theirs:.1e}"
        return worst, said, ours <= theirs and theirs > self.limit / 2


def judge(model: Model, count: int, folder: Path | None, limit: float) -> Judge:
    """Run a model by LiteRT alone."""
    content = model.content()
    cpu = _opened(litert.Interpreter(model_content=content), model)
    details = cpu.get_input_details()
    inputs: list[dict[int, Array]]
    reference: Sequence[Outputs] = []
    if model.kind == "8 bits":
        (image,) = details
        inputs = [{image["index"]: as_input(p, image)} for p in pictures(folder)]
        kernels = litert.OpResolverType.BUILTIN_REF
        plain = litert.Interpreter(model_content=content, experimental_op_resolver_type=kernels)
        reference = _run(_opened(plain, model), inputs)
    else:
        rng = np.random.default_rng(11)
        inputs = [{d["index"]: _drawn(rng, d, model) for d in details} for _ in range(count)]
    found: list[Outputs] = []

    def truth() -> Sequence[Outputs]:
        if not found:
            wide = _widened(content) if model.kind == "dynamic range" else content
            for given in inputs:
                results = float64_outputs(wide, given)
                found.append([results[d["index"]] for d in cpu.get_output_details()])
        return found

    return Judge(model, content, inputs, _run(cpu, inputs), reference, truth, limit)


def hold(against: Judge, delegate: tflgpu.GpuDelegate, backend: str) -> list[Row]:
    """A model in both hosts."""
    model, rows = against.model, []
    for host in ("tflgpu", "LiteRT"):
        start = time.perf_counter()
        make = tflgpu.Interpreter if host == "tflgpu" else litert.Interpreter
        made = make(model_content=against.content, experimental_delegates=[delegate])
        interpreter = _opened(made, model)
        got = _run(interpreter, against.inputs)
        own = host == "tflgpu"
        report = interpreter.report if own else delegate.reports[0]
        if own:
            interpreter.close()
        del made, interpreter
        distance, said, good = against.of(got)
        if not report.delegated_nodes:
            # Then LiteRT was compared with itself.
            said, good = f"nothing is on the device: {report.sentence}", False
        rows.append(
            Row(model.name, model.kind, backend, host, report.delegated_nodes,
                report.total_nodes, distance, said, good, time.perf_counter() - start)
        )  # fmt: skip
    return rows


def main() -> None:
    """Hold the models of the command line against LiteRT, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {model.name: model for model in MODELS}
    parser.add_argument("--backends", nargs="+", required=True, metavar="BACKEND")
    parser.add_argument("--models", nargs="+", default=list(known), choices=list(known),
                        metavar="MODEL", help=f"of {', '.join(known)}")  # fmt: skip
    parser.add_argument("--precision", default="f32", choices=["f32", "f32_f16"])
    parser.add_argument("--numerics", default="float", choices=["float", "integer"])
    parser.add_argument("--inputs", type=int, default=5, help="of each float model")
    parser.add_argument("--limit", type=float, help="of float models; 1e-5, with 16 bits 1e-2")
    parser.add_argument("--pictures", type=Path, help="a folder of photographs")
    parser.add_argument("--json", type=Path, help="file to write everything to")
    given = parser.parse_args()
    limit = given.limit or (1e-5 if given.precision == "f32" else 1e-2)
    table = console.table(
        "tflgpu and LiteRT's CPU", "model", "backend", "host", "on the device", "distance", "", "s",
        right=("on the device", "s"),
    )  # fmt: skip
    rows: list[Row] = []
    failures = []
    for name in given.models:
        against = judge(known[name], given.inputs, given.pictures, limit)
        for backend in given.backends:
            try:
                with tflgpu.GpuDelegate(
                    backend=backend, precision=given.precision, quantized_numerics=given.numerics
                ) as delegate:
                    rows += hold(against, delegate, backend)
            except (tflgpu.TflgpuError, RuntimeError, ValueError) as error:
                failures.append(f"{name} on {backend}: {error}")
    for row in rows:
        table.add_row(
            row.model, row.backend, row.host, f"{row.delegated} of {row.total}", row.said,
            "ok" if row.good else "TOO FAR", f"{row.seconds:.1f}",
        )  # fmt: skip
    console.show(table)
    for failure in failures:
        print(f"failed: {failure}")
    if given.json is not None:
        said = {
            "machine": machine(), "versions": versions(), "failures": failures,
            "rows": [attrs.asdict(row) for row in rows],
        }  # fmt: skip
        given.json.write_text(json.dumps(said, indent=1), encoding="utf-8")
    raise SystemExit(1 if failures or not all(row.good for row in rows) else 0)


if __name__ == "__main__":
    main()
