"""What is Vulkan's own about its device; what every device must do is asked by level 0 of the
conformance suite (`tests/conformance/test_contract_ways.py`)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import pytest
from tflgpu.backend_kit import heaps
from tflgpu.compiler.plan import ConstRef, OutputRef, Ref
from tflgpu.conformance.node_checks import run_kernel
from tflgpu.conformance.plans import affine, chain, chain_expected, dispatch, io, plan
from tflgpu.conformance.special_table import (
    build_special,
    special_arrays,
    special_cases,
    wrong_results,
)
from tflgpu.errors import DeviceError, KernelError
from tflgpu.language.builder import Builder
from tflgpu.language.caps import DeviceCaps
from tflgpu.language.kernel import Kernel
from tflgpu.language.subgroup import largest_group
from tflgpu.language.types import Scalar
from tflgpu.lowering.lowering import Precision
from tflgpu.ops.base import OpDef
from tflgpu.ops.registry import builtin_ops
from tflgpu.options import DelegateOptions
from tflgpu_vulkan.spirv.module import module_of, text_of
from tflgpu_vulkan.spirv.target import Target

from tests.api_devices import (  # noqa: F401 (collected here)
    test_it_does_less_where_less_counts,
    test_it_says_what_a_run_copies,
    test_what_the_probe_does_not_find_the_device_has_not,
)
from tests.vulkan.test_spirv import _dispatched


def whole(count: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Whole numbers, which small sums and products keep exact."""
    return np.random.default_rng(seed).integers(-50, 50, count).astype(np.float32)


def test_constants_larger_than_a_piece_of_the_upload(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heaps, "PIECE", 1000)
    constants = [whole(1999, 1), whole(3, 2), whole(0), whole(507, 3)]
    refs: list[list[Ref]] = [[ConstRef(i), OutputRef(i)] for i in range(4)]
    made = plan(
        [dispatch(affine(c.size, 1, 0), c.size, r)
         for c, r in zip(constants, refs, strict=True)],
        outputs=[io(f"y{i}", (c.size,)) for i, c in enumerate(constants)],
        constants=constants,
    )  # fmt: skip
    recording = device.load(made)
    recording.run()
    for got, want in zip(recording.outputs, constants, strict=True):
        assert (got == want).all()


def test_halves_are_stored_and_dispatches_timed_everywhere(device: Any) -> None:
    assert device.caps.f16_storage
    assert len(device.load(chain(257, device.alignment, steps=4)).profile()) == 4


def test_a_queue_without_timestamps_runs_and_times_nothing(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = device.load(chain(257, device.alignment))
    monkeypatch.setattr(device._context, "details", attrs.evolve(device._context.details, tick=0.0))
    recording.inputs[0][...] = whole(257)
    said = recording.profile()
    assert "no timestamps" in said.reason
    assert (recording.outputs[0] == chain_expected(whole(257))).all()


def test_timestamps_begin_at_0_again(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Intel's have 36 bits, which last an hour."""
    from tflgpu_vulkan import record

    class Driver:
        @staticmethod
        def vkGetQueryPoolResults(*args: Any) -> int:
            args[5][0:4] = [2**36 - 2, 3, 7, 9]
            return 0

    details = attrs.evolve(device._context.details, tick=0.5, tick_bits=36)
    monkeypatch.setattr(device._context, "details", details)
    timers = record.Timers(device._context, 2)
    with monkeypatch.context() as patched:
        patched.setattr(record, "lib", Driver)
        assert timers.spans() == [(0.0, 2.5), (4.5, 1.0)]
    timers.release()


def test_more_memory_than_there_is(open_device: Callable[..., Any]) -> None:
    with pytest.raises(DeviceError, match="the arena takes 4611686018427387904 bytes"):
        open_device().load(plan([], arena=1 << 62))


def test_what_vulkan_guarantees(open_device: Callable[..., Any]) -> None:
    device = open_device()
    assert device.caps.max_workgroup >= 128
    assert device.caps.shared_bytes >= 16384
    assert device.caps.max_buffer_bytes >= 1 << 27
    assert device.caps.max_bindings >= 4


def test_a_buffer_larger_than_a_piece(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heaps, "PIECE", 1000)
    x = np.random.default_rng(0).standard_normal(4099).astype(np.float32)
    buffer = device.allocate(x.nbytes)
    found = np.ones_like(x)
    buffer.read(found)
    assert (found == 0).all()
    buffer.write(x)
    buffer.read(found)
    np.testing.assert_array_equal(found, x)
    buffer.close()


def test_what_it_does_not_import(open_device: Callable[..., Any]) -> None:
    device = open_device()
    buffer = device.allocate(64)
    handles = buffer.export()
    for wrong, why in (
        (attrs.evolve(handles, offset=handles.offset + 4), "no multiple of"),
        (attrs.evolve(handles, nbytes=18), "a multiple of 4"),
        (attrs.evolve(handles, nbytes=12), "from 16 on"),
        (attrs.evolve(handles, device=handles.buffer), "another VkDevice"),
        (np.zeros(4097, np.uint8)[1:], "must begin at a multiple of"),
        ("text", "a str has no buffer protocol"),
    ):
        assert why in device.import_buffer(wrong).reason
    odd = device.allocate(19)  # is exported to a whole word, so that it can be imported
    again = device.import_buffer(odd.export())
    assert again.nbytes == 20
    assert odd.span[:2] == again.span[:2]
    again.close()
    odd.close()
    buffer.close()


# What of a device kernels may use: asked, turned on, and named by the same rows.


ALL = Target(f16_arithmetic=True, matrix_tiles=True, subgroup_shuffle=32)
MEMBERS = {
    "f16_storage": {"storageBuffer16BitAccess"},
    "f16_arithmetic": {"shaderFloat16"},
    "int8_storage": {"storageBuffer8BitAccess"},
    "matrix_tiles": {"cooperativeMatrix", "vulkanMemoryModel"},
}


def turned_on(target: Target) -> list[str]:
    """The members that are set of all structs of the chain."""
    from tflgpu_vulkan.api import ffi, vk
    from tflgpu_vulkan.features import enabled

    structs = {
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES: (
            "ShaderFloat16Int8Features"
        ),
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES: "8BitStorageFeatures",
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES: "16BitStorageFeatures",
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR: (
            "CooperativeMatrixFeaturesKHR"
        ),
        vk.VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES: (
            "VulkanMemoryModelFeatures"
        ),
    }
    found: list[str] = []
    first = chain = enabled(target)  # which keeps the others alive
    while chain != ffi.NULL:
        head = ffi.cast("VkBaseInStructure*", chain)
        struct = ffi.cast(f"VkPhysicalDevice{structs[head.sType]}*", chain)
        names = [name for name, _ in ffi.typeof(struct).item.fields][2:]
        found += [name for name in names if getattr(struct, name)]
        chain = head.pNext
    del first
    return found


@pytest.mark.parametrize("lacking", [None, *MEMBERS])
@pytest.mark.needs("vulkan")
def test_a_device_is_opened_with_what_kernels_use(lacking: str | None) -> None:
    target = ALL if lacking is None else attrs.evolve(ALL, **{lacking: False})
    wanted = set().union(*(names for name, names in MEMBERS.items() if name != lacking))
    assert sorted(turned_on(target)) == sorted(wanted)


class Query:
    """A device that has some of the features."""

    def __init__(self, members: set[str], subgroup: int) -> None:
        self._members = members
        self._subgroup = subgroup

    def has(self, feature: Any) -> bool:
        return feature.member in self._members

    def properties(self, kind: str, extension: str = "") -> Any:
        from tflgpu_vulkan.api import make

        if "Subgroup" not in kind or "Control" in kind:
            return None
        return make(kind, subgroupSize=self._subgroup)


@pytest.mark.parametrize("lacking", [None, *MEMBERS])
@pytest.mark.needs("vulkan")
def test_a_feature_takes_all_of_its_members(lacking: str | None) -> None:
    from tflgpu_vulkan.features import _target

    every = set().union(*MEMBERS.values())
    for missing in sorted(MEMBERS.get(lacking or "", {""})):
        found = _target(Query(every - {missing}, 32), 0)  # type: ignore[arg-type]
        assert found.f16_storage == (lacking != "f16_storage")
        assert found.int8_storage == (lacking != "int8_storage")
        assert found.f16_arithmetic == (lacking not in ("f16_storage", "f16_arithmetic"))
        assert found.matrix_tiles == (lacking in (None, "int8_storage"))
    assert not _target(Query(every, 64), 0).matrix_tiles  # type: ignore[arg-type]


# Shuffles of an opened Vulkan device: as many neighbours as its driver allows and the probe
# finds.


NVIDIA, INTEL, AMD = 0x10DE, 0x8086, 0x1002


def exchange(mask: int) -> Kernel:
    k = Builder("exchange", (32, 2, 1))
    src, dst = (k.buffer(n, Scalar.F32, 4, a) for n, a in (("src", "read"), ("dst", "write")))
    i = k.let(k.group_id(0) * 64 + k.local_id(1) * 32 + k.local_id(0), "i")
    k.store(dst, i, k.subgroup_shuffle_xor(k.load(src, i), mask))
    return k.build()


class Answer:
    """What a driver says of subgroups."""

    def __init__(
        self, width: int, least: int | None = None, *, operations: int = 0x1F, stages: int = 0x20
    ) -> None:
        self._plain = SimpleNamespace(
            subgroupSize=width, supportedOperations=operations, supportedStages=stages
        )
        self._control = None if least is None else SimpleNamespace(minSubgroupSize=least)

    def properties(self, kind: str, extension: str = "") -> Any:
        return self._control if "Control" in kind else self._plain


@pytest.mark.parametrize(("query", "vendor", "widest"), [
    (Answer(32), NVIDIA, 32), (Answer(32, 32), NVIDIA, 32), (Answer(8), 0, 8),
    (Answer(64, 32), AMD, 32), (Answer(64), AMD, 32),  # the language has no more than 32
    (Answer(32, 8), INTEL, 8), (Answer(32), INTEL, 8),  # which chooses a width for each kernel
    (Answer(16, 4), 0, 4), (Answer(1), 0, 1),
    (Answer(32, operations=0x0F), NVIDIA, 0), (Answer(32, stages=0x10), NVIDIA, 0),
])  # fmt: skip
@pytest.mark.needs("vulkan")
def test_what_a_driver_allows(query: Any, vendor: int, widest: int) -> None:
    from tflgpu_vulkan.features import _widest_shuffle

    assert _widest_shuffle(query, vendor) == widest


def test_the_probe_agrees_with_drivers_that_are_known(runner: Any) -> None:
    """A printer that is wrong would only look like a device without shuffles."""
    from tflgpu_vulkan.features import details_of

    context = runner.device._context
    if context.info.vendor not in ("mesa", "nvidia"):
        pytest.skip(f"{runner.name}: it is not known in which order it fills subgroups")
    details = details_of(context.instance, context.details.physical)
    assert not isinstance(details, str)
    assert runner.device.caps.subgroup_shuffle == details.target.subgroup_shuffle >= 4


def test_an_opened_device_exchanges_what_it_says(runner: Any) -> None:
    size = runner.device.caps.subgroup_shuffle
    if not size:
        pytest.skip(f"{runner.name} does not shuffle")
    data = np.arange(512, dtype=np.float32)
    for mask in range(1, size):
        got = runner.run(exchange(mask), (2, 1, 1), [data, np.zeros_like(data)])
        want = data.reshape(128, 4)[np.arange(128) ^ mask]
        np.testing.assert_array_equal(got[1].reshape(128, 4), want)


def test_more_than_it_has_is_refused(runner: Any) -> None:
    size = runner.device.caps.subgroup_shuffle
    if size == 32:
        pytest.skip(f"{runner.name} has as many as the language")
    data = np.zeros(512, np.float32)
    with pytest.raises(KernelError, match=r"kernel exchange: a shuffle.*caps\.subgroup_shuffle"):
        runner.run(exchange(max(1, size)), (2, 1, 1), [data, data])


def _kernels(op: OpDef, caps: DeviceCaps) -> list[Kernel]:
    return [kernel for precision in Precision for kernel in _dispatched(op, precision, caps)]


@pytest.mark.parametrize(
    "name", ["SOFTMAX", "MEAN", "ARG_MAX", "AVERAGE_POOL_2D", "FULLY_CONNECTED"]
)
def test_modules_of_teams_are_valid(spirv_tool: Callable[[str], str], name: str) -> None:
    tool = spirv_tool("spirv-val")
    caps = DeviceCaps(max_bindings=32, is_gpu=True, f16_arithmetic=True, subgroup_shuffle=32)
    target = Target(f16_arithmetic=True, subgroup_shuffle=32)
    kernels = [k for k in _kernels(builtin_ops()[name], caps) if largest_group(k)]
    assert kernels
    for module in {module_of(kernel, target) for kernel in kernels}:
        command = [tool, "--target-env", "vulkan1.1", "-"]
        done = subprocess.run(command, input=module, capture_output=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()


def test_the_probe_s_kernels_are_not_counted(open_device: Callable[..., Any]) -> None:
    assert open_device().compiled == 0


# NaN and infinities on devices that do not promise to keep them: questions are asked of bits.


KEEPS = Target(f16_arithmetic=True, keeps_special=frozenset({16, 32}))
DOES_NOT = attrs.evolve(KEEPS, keeps_special=frozenset())


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("scalar", [Scalar.F32, Scalar.F16], ids=lambda s: s.value)
@pytest.mark.needs("vulkan")
def test_special_numbers_without_a_promise(
    scalar: Scalar,
    width: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tflgpu_vulkan import features
    from tflgpu_vulkan.plugin import tflgpu_open_device

    found = features._target
    monkeypatch.setattr(
        features, "_target", lambda *given: attrs.evolve(found(*given), keeps_special=frozenset())
    )
    device: Any = tflgpu_open_device("vulkan", 0, DelegateOptions())
    try:
        if scalar is Scalar.F16 and not device.caps.f16_arithmetic:
            pytest.skip(f"{device.info.name} has no 16-bit arithmetic")
        cases = special_cases(scalar, halves=device.caps.f16_arithmetic)
        kernel, groups = build_special(cases, scalar, width)
        arrays = run_kernel(device, kernel, groups, special_arrays(cases, scalar))
        assert not wrong_results(cases, arrays)
    finally:
        device.close()


@pytest.mark.parametrize("target", [KEEPS, DOES_NOT], ids=["keeps", "does not"])
def test_no_extreme_loses_a_nan_and_spirv_val_accepts_all_of_it(target: Target) -> None:
    for scalar in (Scalar.F32, Scalar.F16):
        cases = special_cases(scalar, halves=True)
        for width in (1, 3, 4):
            kernel, _ = build_special(cases, scalar, width)
            text = text_of(kernel, target)
            assert "FMin" not in text
            assert "FMax" not in text
            tool = shutil.which("spirv-val")
            if tool is None:
                continue
            done = subprocess.run(
                [tool, "--target-env", "vulkan1.1", "-"],
                input=module_of(kernel, target), capture_output=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (done.stdout + done.stderr).decode()
