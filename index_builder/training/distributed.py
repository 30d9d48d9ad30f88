"""Training in several processes, started by ``torchrun``.

Every process draws the same batches and computes the features of its part of a batch. Each process
then gathers the features of the other processes, with the gradients. From all features, each
process computes the loss of the whole batch, because a loss over pairs cannot be computed from the
parts. `DistributedDataParallel` averages the gradients over the processes. Each process has the
same loss. In the backward pass, the features of a process get the sum of the gradients from all
processes. The average is therefore the gradient of the whole batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed
import torch.distributed.nn
from torch import Tensor, nn

N_PROCESSES = "WORLD_SIZE"
"""The environment variable with the number of processes, set by torchrun."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The processes that train together.

    Attributes
    ----------
    rank : number of this process, from 0; process 0 writes the results.
    size : number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """True only in the process that writes files."""
        return self.rank == 0

    def part(self, rows: Tensor) -> Tensor:
        """Return positions (P,) in ``rows`` (B,): this process computes the features of these rows.

        The gathering needs the same P in all processes, so missing positions are filled with the
        last row.
        """
        each = -(-len(rows) // self.size)
        positions = torch.arange(self.rank * each, (self.rank + 1) * each)
        return positions.clamp(max=len(rows) - 1)

    def gathered(self, features: Tensor, n: int) -> Tensor:
        """Gather the features (n, F) of all rows from the parts (P, F) of all processes."""
        if self.size == 1:
            return features
        parts = torch.distributed.nn.functional.all_gather(features)
        return torch.cat(list(parts))[:n]

    def wait(self) -> None:
        """Wait until every process calls this method."""
        if self.size > 1:
            torch.distributed.barrier()

    def together(self, step: nn.Module) -> nn.Module:
        """Return a module that computes ``step`` and averages the gradients over all processes."""
        if self.size == 1:
            return step
        return nn.parallel.DistributedDataParallel(step)


ALONE = ProcessGroup()


@contextmanager
def process_group() -> Iterator[ProcessGroup]:
    """Yield the processes that ``torchrun`` started; without ``torchrun``, only this process."""
    if int(os.environ.get(N_PROCESSES, "1")) == 1:
        yield ALONE
        return
    torch.distributed.init_process_group("gloo")
    try:
        group = ProcessGroup(torch.distributed.get_rank(), torch.distributed.get_world_size())
        yield group
        group.wait()  # process 0 may still be writing
    finally:
        torch.distributed.destroy_process_group()
