"""Training by several processes at once, started by ``torchrun``.

Every process draws the same batches, computes the features of its part of each, and gathers
those of the others with their graph; the loss is then of the whole batch, in every process. It is a
loss over pairs: of parts it would be another one. `DistributedDataParallel` averages the gradients
of the parameters, which makes them those of the whole batch: the gradient through the gathering
is the sum over all processes, each with the same loss.
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
"""The variable in which torchrun says how many processes there are."""


@dataclass(frozen=True, slots=True)
class Group:
    """The processes that train together.

    Attributes
    ----------
    rank : which this one is; the first writes down what was learned.
    size : how many there are.
    """

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """True in the one process that writes files."""
        return self.rank == 0

    def part(self, rows: Tensor) -> Tensor:
        """Positions (P,) in ``rows`` (B,) whose features this process computes.

        As many in every process, so that they can be gathered; the last ones repeat the last row.
        """
        each = -(-len(rows) // self.size)
        positions = torch.arange(self.rank * each, (self.rank + 1) * each)
        return positions.clamp(max=len(rows) - 1)

    def gathered(self, features: Tensor, n: int) -> Tensor:
        """Features (n, F) of all rows, of the parts (P, F) that each process has computed."""
        if self.size == 1:
            return features
        parts = torch.distributed.nn.functional.all_gather(features)
        return torch.cat(list(parts))[:n]

    def wait(self) -> None:
        """Wait until every process has come this far."""
        if self.size > 1:
            torch.distributed.barrier()

    def together(self, step: nn.Module) -> nn.Module:
        """The module ``step``, its gradients averaged over all processes."""
        if self.size == 1:
            return step
        return nn.parallel.DistributedDataParallel(step)


ALONE = Group()


@contextmanager
def process_group() -> Iterator[Group]:
    """The processes that ``torchrun`` has started; this one alone where it has not."""
    if int(os.environ.get(N_PROCESSES, "1")) == 1:
        yield ALONE
        return
    torch.distributed.init_process_group("gloo")
    try:
        group = Group(torch.distributed.get_rank(), torch.distributed.get_world_size())
        yield group
        group.wait()  # no process ends before the first has written
    finally:
        torch.distributed.destroy_process_group()
