"""A small training job with phases, for the checks and recordings on a real GPU.

The phases are what people meet: a loader that starves the GPU, a GPU that is busy, and memory
that climbs because something keeps each step's activations.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn


def make_model(width: int = 4096, depth: int = 6) -> nn.Module:
    """Build a stack of linear layers on the GPU in bf16."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers).to("cuda", torch.bfloat16)


class Job:
    """A model, its optimizer, and steps on made-up batches."""

    def __init__(self, width: int = 4096, depth: int = 6) -> None:
        self.width = width
        self.model = make_model(width, depth)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.kept: list[torch.Tensor] = []

    def step(self, batch: torch.Tensor, *, keep: bool = False) -> None:
        """Do one forward and backward pass and an optimizer step."""
        out = self.model(batch)
        loss = out.float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if keep:
            self.kept.append(out.detach())

    def _for(self, seconds: float, once: Callable[[], None]) -> int:
        steps = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            once()
            steps += 1
        torch.cuda.synchronize()
        return steps

    def starved(self, seconds: float) -> int:
        """Train while the batch is made on one core of the host, as without loader workers."""

        def once() -> None:
            rows = torch.randn(2048, self.width)
            for _ in range(3):  # "augmentation"
                rows = torch.sin(rows) + torch.cos(rows)
            self.step(rows.to("cuda", torch.bfloat16))

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._for(seconds, once)
        finally:
            torch.set_num_threads(threads)

    def busy(self, seconds: float, rows: int = 16384) -> int:
        """Train on batches that lie on the GPU already."""
        batch = torch.randn(rows, self.width, device="cuda", dtype=torch.bfloat16)

        def once() -> None:
            self.step(batch)
            torch.cuda.current_stream().synchronize()

        return self._for(seconds, once)

    def climbing(self, seconds: float, rows: int = 32768) -> int:
        """Train and keep each step's output, as a list of losses with their graphs does."""
        batch = torch.randn(rows, self.width, device="cuda", dtype=torch.bfloat16)

        def once() -> None:
            self.step(batch, keep=True)
            torch.cuda.current_stream().synchronize()
            time.sleep(0.05)

        return self._for(seconds, once)
