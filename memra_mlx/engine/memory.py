"""Bytes: what KV state will take, what the engine may use, and the limits MLX is given."""

from __future__ import annotations

import os
from dataclasses import dataclass

import mlx.core as mx

_STEP = 256  # mlx-lm grows caches by this many rows
_CPU_SHARE = 0.5
_RESERVE = 0.05
_CPU_CACHE = 64 << 20
_MIN_BUDGET = 64 << 20
_ACTIVATIONS = 1 << 30  # what an evaluation takes for a moment, beside weights and KV state


@dataclass(frozen=True, slots=True)
class KvShape:
    """Bytes of one sequence's state: `growing` a token; (window, bytes a token) of sliding layers; `fixed` once."""

    growing: int
    windows: tuple[tuple[int, int], ...] = ()
    fixed: int = 0

    def bytes(self, tokens: int) -> int:
        """State of a sequence of `tokens`."""
        rows = (-(-tokens // _STEP) + 1) * _STEP  # a batch grows from whatever length it was merged at
        return self.growing * rows + sum(min(rows, window) * size for window, size in self.windows) + self.fixed

    @property
    def per_token(self) -> int:
        """Bytes a token adds while all windows still fill."""
        return self.growing + sum(size for _, size in self.windows)


def on_gpu() -> bool:
    """Whether arrays live on a GPU with a recommended working set."""
    return bool(mx.metal.is_available()) and mx.default_device() == mx.gpu


def machine_bytes() -> int:
    """What the device recommends to use at most, or a share of the machine's memory where there is no GPU."""
    if on_gpu():
        return int(mx.device_info()["max_recommended_working_set_size"])
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _CPU_SHARE)


def default_budget(weight_bytes: int) -> int:
    """Bytes for KV and caches when nobody set them."""
    total = machine_bytes()
    return max(_MIN_BUDGET, int(total * (1 - _RESERVE)) - weight_bytes)


def apply_limits(weight_bytes: int, budget: int) -> None:
    """Tell MLX how much it may hold."""
    total = weight_bytes + budget
    mx.set_memory_limit(total + _ACTIVATIONS)
    mx.set_cache_limit(min(budget // 4, 4 << 30) if on_gpu() else min(budget // 4, _CPU_CACHE))
    if on_gpu():
        mx.set_wired_limit(min(total, machine_bytes()))


def used_bytes() -> int:
    """What MLX holds now: arrays, and freed buffers it keeps."""
    return int(mx.get_active_memory() + mx.get_cache_memory())
