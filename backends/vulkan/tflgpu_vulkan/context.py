"""An opened device: its handle, its queues, and what must outlive everything made on it."""

from __future__ import annotations

import math
import os
import threading
import time
from itertools import cycle
from typing import Any

from tflgpu.backend_kit.counted import Counted
from tflgpu.backend_kit.waiting import manner
from tflgpu.errors import DeviceError

from tflgpu_vulkan.api import NULL, array, check, create, ffi, lib, make, strings, vk
from tflgpu_vulkan.devices import find_devices
from tflgpu_vulkan.features import enabled
from tflgpu_vulkan.instance import Instance

#: How long a run may be waited for by asking again and again, which hears of its end at once;
#: after that the thread sleeps. Seconds.
_SPIN = 2e-3
#: Of a run that takes longer it sleeps through the beginning, until so long before it was over the
#: last time: waking up takes longer than hearing of the end. Seconds.
_EARLY = 3e-4
#: After so long a thread that waits hears of a signal (Ctrl-C), which may come in a run of some
#: hundredths of a second. Nanoseconds.
_NAP = 4_000_000
#: Fences of a recording: resetting as many takes as long as one.
FENCES = 8
_WAITING = "waiting for the device"
_NOT_READY = vk.VK_NOT_READY
#: How many queues recordings are spread over, where the device has them. With one, whatever several
#: runs in flight do is done in turn, the copies of one between the kernels of another.
QUEUES = "TFLGPU_VULKAN_QUEUES"
_USUAL_QUEUES = 3


class Context(Counted):
    """A logical device with a few queues, or as many as the environment asks for.

    A recording keeps to one queue; they take them in turn. Two recordings run in no order, unless
    the caller waits for one before the other begins.

    It is destroyed when it is closed and nothing uses its memory any more: arrays that someone
    still holds keep it.
    """

    def __init__(self, index: int) -> None:
        """Open device ``index`` of the list that the probe gives.

        Raises:
            DeviceError: there is no such device, or it cannot be opened.
        """
        super().__init__()
        self._queue_lock = threading.Lock()
        self._fences: list[Any] = []  # of waits that were interrupted
        self.handle: Any = None
        self.instance = Instance()
        try:
            found = find_devices(self.instance).at(index)
            self.info, self.details = found.info, found.handle
            count = min(_wanted_queues(), self.details.queues)
            self.handle = self._device(count)
            self.queues = tuple(self._queue(i) for i in range(count))
        except BaseException:
            self.instance.close()
            raise
        self._turns = cycle(self.queues)
        self.belongs_to_process()
        # Asking again and again takes the processor from a device that is one.
        self._spin = _SPIN if self.info.is_gpu else 0.0

    def next_queue(self) -> Any:
        """The queue for the next recording, in turn."""
        with self._queue_lock:
            return next(self._turns)

    def run(self, submit_info: Any, commands: Commands) -> None:
        """`start` and `finish`, in one call: each run of a model is one.

        Raises:
            DeviceError: the device failed.
        """
        handle, turn, clock = self.handle, commands.turn, time.perf_counter
        fence = commands.handles[turn]
        self.start(submit_info, fence, "running", commands.queue)
        begun, status = clock(), lib.vkGetFenceStatus
        result = _NOT_READY
        if self._spin >= commands.took and not manner.asleep:  # as `_wait`, in one call less
            end = begun + self._spin
            result = status(handle, fence)
            while result == _NOT_READY and clock() < end:
                result = status(handle, fence)
        if result:
            # One that was as short the last time is not asked again and again any longer.
            likely = commands.took if commands.took > self._spin else 2 * self._spin
            result = self._wait(handle, commands.fences + turn, likely)
        commands.took = clock() - begun
        commands.turn = turn = turn + 1
        if not result and turn == FENCES:
            commands.turn, result = 0, lib.vkResetFences(handle, FENCES, commands.fences)
        if result:
            check(result, "running")
        if self.instance.problems:
            self.instance.raise_problems("running")

    def start(self, submit_info: Any, fence: Any, what: str, queue: Any) -> None:
        """Hand a command buffer to a queue; ``fence`` will tell of its end.

        Raises:
            DeviceError: the device failed.
        """
        with self._queue_lock:
            result = lib.vkQueueSubmit(queue, 1, submit_info, fence)
        if result:
            check(result, what)

    def finish(self, fence: Any, what: str) -> None:
        """Wait until what was handed over with ``fence`` is done.

        Raises:
            DeviceError: the device failed.
        """
        handle = self.handle
        check(self._wait(handle, fence), what)
        # One that stays as it is would say of the next run that it is over.
        check(lib.vkResetFences(handle, 1, fence), what)
        if self.instance.problems:
            self.instance.raise_problems(what)

    def is_over(self, fence: Any) -> bool:
        """Whether `finish` would not wait: it is done, or the device failed."""
        return bool(lib.vkGetFenceStatus(self.handle, fence[0]) != vk.VK_NOT_READY)

    def sleep(self, fence: Any) -> None:
        """Wait as `finish` does; what went wrong is told there."""
        self._wait(self.handle, fence)

    def _wait(self, handle: Any, fence: Any, likely: float = 0.0) -> int:
        """Wait for a fence; ``likely`` is how many seconds that took the last time."""
        status = lib.vkGetFenceStatus
        only, waiting = fence[0], vk.VK_NOT_READY
        result: int = waiting
        if manner.awake or (self._spin and not manner.asleep):
            end = math.inf
            if not manner.awake:
                if likely > self._spin:
                    self._doze(handle, fence, likely - _EARLY)
                end = time.perf_counter() + self._spin
            result = status(handle, only)
            while result == waiting and time.perf_counter() < end:
                result = status(handle, only)
        while result in (vk.VK_NOT_READY, vk.VK_TIMEOUT):
            result = lib.vkWaitForFences(handle, 1, fence, vk.VK_TRUE, _NAP)
        return result

    def _doze(self, handle: Any, fence: Any, seconds: float) -> None:
        """Sleep for so long, or until a fence is signalled or the device lost."""
        result = vk.VK_TIMEOUT
        end = time.perf_counter() + seconds
        while result == vk.VK_TIMEOUT and (left := end - time.perf_counter()) > 0:
            nap = min(int(left * 1e9), _NAP)
            result = lib.vkWaitForFences(handle, 1, fence, vk.VK_TRUE, nap)

    def fence_behind(self, queue: Any) -> Any:
        """A fence behind all that a queue has now; it is destroyed with the device.

        Raises:
            DeviceError: the device failed, and does nothing any more.
        """
        info = make("VkFenceCreateInfo")
        made = create(lib.vkCreateFence, "VkFence", self.handle, info, _WAITING)
        fence = array("VkFence", [made])
        # It may only be destroyed when it is not waited for, which a signal may end.
        self._fences.append(fence)
        with self._queue_lock:
            check(lib.vkQueueSubmit(queue, 0, NULL, fence[0]), _WAITING)
        return fence

    def wait_idle(self, *queues: Any) -> None:
        """Wait until these queues, or all, have done what they have now. Signals get through.

        Raises:
            DeviceError: the device failed, and does nothing any more.
        """
        for queue in queues or self.queues:
            fence = self.fence_behind(queue)
            check(self._wait(self.handle, fence), _WAITING)
            self._fences.remove(fence)
            lib.vkDestroyFence(self.handle, fence[0], NULL)

    def memory_type(self, allowed: int, *wishes: int) -> int | None:
        """The first memory type among the ``allowed`` bits that has the flags of the first wish
        that any has."""
        for wish in wishes:
            for index, flags in enumerate(self.details.memory):
                if allowed >> index & 1 and flags & wish == wish:
                    return index
        return None

    # Inside

    def _destroy(self) -> None:
        for fence in self._fences:
            lib.vkDestroyFence(self.handle, fence[0], NULL)
        lib.vkDestroyDevice(self.handle, NULL)
        self.instance.close()

    def _queue(self, index: int) -> Any:
        queue = ffi.new("VkQueue*")
        lib.vkGetDeviceQueue(self.handle, self.details.queue_family, index, queue)
        return queue[0]

    def _device(self, queues: int) -> Any:
        details = self.details
        queue = make(
            "VkDeviceQueueCreateInfo",
            queueFamilyIndex=details.queue_family,
            queueCount=queues,
            pQueuePriorities=ffi.new("float[]", [1.0] * queues),
        )
        info = make(
            "VkDeviceCreateInfo",
            pNext=enabled(details.target),
            queueCreateInfoCount=1,
            pQueueCreateInfos=array("VkDeviceQueueCreateInfo", [queue]),
            enabledExtensionCount=len(details.extensions),
            ppEnabledExtensionNames=strings(details.extensions),
        )
        what = f"opening {self.info.name}"
        return create(lib.vkCreateDevice, "VkDevice", details.physical, info, what)


class Commands:
    """A pool with command buffers, recorded once and submitted again and again, to one queue."""

    def __init__(self, context: Context, queue: Any = None) -> None:
        """For ``queue``, or the first."""
        self._context = context
        self.queue = context.queues[0] if queue is None else queue
        pool = make("VkCommandPoolCreateInfo", queueFamilyIndex=context.details.queue_family)
        self._pool = create(
            lib.vkCreateCommandPool, "VkCommandPool", context.handle, pool, "making commands"
        )
        #: Those of `Context.run`, which takes one after another, and resets all of them at once.
        self.fences = ffi.new("VkFence[]", FENCES)
        self.turn = 0
        #: Seconds that the last run was waited for.
        self.took = 0.0
        #: Of the command buffer that was submitted last; one runs at a time.
        self.fence = ffi.new("VkFence[]", 1)
        fence = make("VkFenceCreateInfo")
        try:
            for into in (*(self.fences + i for i in range(FENCES)), self.fence):
                check(lib.vkCreateFence(context.handle, fence, NULL, into), "making a fence")
        except DeviceError:
            self.release()
            raise
        self.handles = list(self.fences)
        self._made: list[Any] = []

    def begin(self) -> Any:
        """A command buffer that is being recorded."""
        info = make(
            "VkCommandBufferAllocateInfo",
            commandPool=self._pool,
            level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY,
            commandBufferCount=1,
        )
        buffer = ffi.new("VkCommandBuffer*")
        self._made.append(buffer)
        what = "making a command buffer"
        check(lib.vkAllocateCommandBuffers(self._context.handle, info, buffer), what)
        begin = make("VkCommandBufferBeginInfo")
        check(lib.vkBeginCommandBuffer(buffer[0], begin), what)
        return buffer[0]

    def end(self, buffer: Any) -> Any:
        """Finish recording; gives what `submit` takes."""
        check(lib.vkEndCommandBuffer(buffer), "recording commands")
        return make(
            "VkSubmitInfo",
            commandBufferCount=1,
            pCommandBuffers=array("VkCommandBuffer", [buffer]),
        )

    def submit(self, submit_info: Any, what: str) -> None:
        """Run a recorded command buffer and wait for it.

        Raises:
            DeviceError: the device failed.
        """
        self._context.start(submit_info, self.fence[0], what, self.queue)
        self._context.finish(self.fence, what)

    def clear(self) -> None:
        """Free all command buffers; none of them may be running."""
        made, self._made = self._made, []
        for buffer in made:
            lib.vkFreeCommandBuffers(self._context.handle, self._pool, 1, buffer)

    def release(self) -> None:
        """Free the pool with all its command buffers; nothing of it may be running."""
        handle, pool, fences = self._context.handle, self._pool, [*self.fences, *self.fence]
        # First: a signal may end this, and it is called again.
        self.fence[0] = self._pool = NULL
        self.fences = ffi.new("VkFence[]", FENCES)
        for fence in fences:
            lib.vkDestroyFence(handle, fence, NULL)
        lib.vkDestroyCommandPool(handle, pool, NULL)


def _wanted_queues() -> int:
    """Raises:
    DeviceError: the environment says something else than how many, from 1.
    """
    said = os.environ.get(QUEUES, "").strip() or str(_USUAL_QUEUES)
    if not said.isascii() or not said.isdigit() or not int(said):
        raise DeviceError(
            f"{QUEUES} is {said!r}; it is how many queues to use, from 1 ({_USUAL_QUEUES} are "
            "usual)"
        )
    return int(said)
