"""NVIDIA's GPUs. Devices are named "cuda", "cuda:1", or by their number."""
from __future__ import annotations

from . import _C
from ._C import StreamGuard as stream  # noqa: F401


def _device(device: str | int | _C.Device | None) -> str:
    return "cuda:0" if device is None else f"cuda:{device}" if isinstance(device, int) else str(device)


def device_count() -> int:
    """GPUs that were found; 0 without a driver or the plugin, which is no error."""
    return _C.device_count("cuda:0")


def is_available() -> bool:
    """Whether the first GPU can be used; tessera.why_unavailable("cuda:0") says why not."""
    return device_count() > 0 and not _C.why_unavailable("cuda:0")


def synchronize(device: str | int | _C.Device | None = None) -> None:
    """Waits for all that was queued on a GPU, and raises what its kernels found wrong."""
    _C.synchronize(_device(device))


def Stream(device: str | int | _C.Device | None = None) -> _C.Stream:
    """A queue of its own, which `with tessera.cuda.stream(s):` sends calls to."""
    return _C.Stream(_device(device))


def current_stream(device: str | int | _C.Device | None = None) -> _C.Stream:
    """The queue that this thread's calls go to."""
    return _C.current_stream(_device(device))


def memory_allocated(device: str | int | _C.Device | None = None) -> int:
    """Bytes that tensors hold now."""
    return _C.memory_allocated(_device(device))


def max_memory_allocated(device: str | int | _C.Device | None = None) -> int:
    """The most bytes that tensors held since the last reset."""
    return _C.max_memory_allocated(_device(device))


def reset_peak_memory_stats(device: str | int | _C.Device | None = None) -> None:
    """Lets max_memory_allocated() begin anew."""
    _C.reset_peak_memory(_device(device))


def empty_cache(device: str | int | _C.Device | None = None) -> None:
    """Gives memory that is kept for reuse back to the system."""
    _C.empty_cache(_device(device))
