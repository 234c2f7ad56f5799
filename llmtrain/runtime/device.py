"""The only file that names a device type: cpu (gloo), cuda (nccl), npu (hccl through torch_npu)."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from llmtrain.errors import UserError

GIB = 2**30

# Dense peak rates in FLOP/s for 16-bit matrix products, from the vendors' data sheets. Names are matched whole words
# first, so that "H200" is never taken for "H20".
PEAK_BF16_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100": 989e12,
    "H800": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L20": 119.5e12,
    "910B": 354e12,
}


@dataclass(frozen=True)
class Device:
    """One process's compute device and the collective backend that serves it."""

    type: str
    index: int

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu") if self.type == "cpu" else torch.device(self.type, self.index)

    @property
    def backend(self) -> str:
        """Backend string for `init_process_group`; an accelerator also gets gloo for tensors that live on the CPU."""
        return {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "npu": "cpu:gloo,npu:hccl"}[self.type]

    @property
    def name(self) -> str:
        return (
            f"CPU ({torch.get_num_threads()} threads)"
            if self.type == "cpu"
            else self._module.get_device_name(self.index)
        )

    @property
    def _module(self) -> ModuleType:
        return getattr(torch, self.type)

    @property
    def has_fused_optimizers(self) -> bool:
        """Whether torch's fused optimizers accept a device-side `found_inf` here (the basis of skipping a step)."""
        return self.type in ("cpu", "cuda")

    def host_memory_bytes(self) -> int:
        """Resident host memory of this process now."""
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def activate(self) -> None:
        if self.type == "cpu":
            _keep_freed_pages()
        else:
            self._module.set_device(self.index)

    def synchronize(self) -> None:
        if self.type != "cpu":
            self._module.synchronize()

    def peak_memory_bytes(self) -> int:
        """Most memory this process has held so far: the allocator's peak, on the CPU the resident set's."""
        if self.type == "cpu":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return self._module.max_memory_allocated()

    def total_memory_bytes(self) -> int:
        if self.type == "cpu":
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self._module.get_device_properties(self.index).total_memory

    def peak_flops(self, dtype: torch.dtype) -> tuple[float, str]:
        """Peak matrix-product rate in FLOP/s for `dtype`, and where the number comes from.

        A device without an entry is measured with a short product, so that MFU is never a division by a guess.
        """
        words = self.name.replace("-", " ").replace("_", " ").split()
        if dtype in (torch.bfloat16, torch.float16) and self.type != "cpu":
            for model, rate in PEAK_BF16_FLOPS.items():
                if any(word == model or word.startswith(f"Ascend{model}") for word in words):
                    return rate, f"{model} data sheet"
        return self._measured_flops(dtype), "measured by a matrix product"

    def _measured_flops(self, dtype: torch.dtype, size: int = 1024, repeats: int = 5) -> float:
        if self.type != "cpu":
            size = 8192
        a = torch.ones(size, size, dtype=dtype, device=self.torch_device)
        torch.mm(a, a)
        best = float("inf")
        for _ in range(repeats):
            self.synchronize()
            start = time.perf_counter()
            torch.mm(a, a)
            self.synchronize()
            best = min(best, time.perf_counter() - start)
        return 2 * size**3 / best


def _keep_freed_pages() -> None:
    """Lets the C allocator keep what a step frees, for the next step to use.

    glibc's malloc gives tensors of more than 32 MiB back to the system at once; every step then takes a page fault for
    each 4 KiB of its activations. Accelerators' allocators cache as well. Elsewhere than on glibc nothing is changed.
    """
    trim_threshold, mmap_threshold = -1, -3  # malloc.h: M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(mmap_threshold, GIB)
        mallopt(trim_threshold, GIB)


def detect_device(local_rank: int) -> Device:
    """The accelerator of this process, or the CPU; `LLMTRAIN_DEVICE=cpu|cuda|npu` overrides the choice.

    Raises:
        UserError: the device asked for is not usable here.
    """
    wanted = os.environ.get("LLMTRAIN_DEVICE")
    if wanted not in (None, "cpu", "cuda", "npu"):
        raise UserError(f"LLMTRAIN_DEVICE is {wanted!r}; it takes cpu, cuda or npu.")
    if importlib.util.find_spec("torch_npu") and wanted in (None, "npu"):
        import torch_npu  # noqa: F401  registers torch.npu

    for kind in ("npu", "cuda"):
        module = getattr(torch, kind, None)
        if wanted in (None, kind) and module is not None and module.is_available():
            if local_rank >= module.device_count():
                raise UserError(
                    f"Local rank {local_rank} has no {kind} device: this machine shows {module.device_count()}. "
                    f"Start at most that many processes here (torchrun --nproc_per_node)."
                )
            return Device(kind, local_rank)
    if wanted in ("npu", "cuda"):
        raise UserError(f"LLMTRAIN_DEVICE is {wanted}, but torch sees no {wanted} device on this machine.")
    return Device("cpu", 0)
