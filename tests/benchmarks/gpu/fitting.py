"""Posterior fits and training steps in torch, on a GPU and on the processor.

A fit is that of `vouch-build fit`: two Kronecker factors of all pairs, from features that are
drawn, which changes no time. A training step is one of `vouch-build train` on drawn images; *mixed*
computes in bfloat16 what bears it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from index_builder.configuration.encoder import NetworkConfig
from index_builder.networks import build_encoder
from index_builder.posteriors.laplace.fit import fit_laplace
from model_store.errors import ProviderUnavailable
from tests.benchmarks.gpu.rows import Row, row, timed


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is fitted and trained."""

    n_images: int = 50_000
    n_features: int = 2_048
    dim: int = 512
    n_labels: int = 1_000
    batch: int = 128
    network: str = "resnet50"


def fitting_rows(sizes: Sizes, seconds: float) -> Iterator[Row]:
    """Yield the rows of both devices; over the processor's, where both were measured."""
    of_cpu: dict[str, float] = {}
    for device in ("cpu", "cuda"):
        found = row({"kind": "fit", "device": device}, partial(_fitted, sizes, device))
        yield _over(found, of_cpu, "seconds")
        for precision in ("float32", "mixed"):
            trained = partial(_trained, sizes, device, precision, seconds)
            found = row(
                {"kind": "training_step", "device": device, "precision": precision}, trained
            )
            yield _over(found, of_cpu, "p50_ms")


def _over(found: Row, of_cpu: dict[str, float], of: str) -> Row:
    if of not in found:
        return found
    name = f"{found['kind']} {found.get('precision', '')}"
    if found["device"] == "cpu":
        of_cpu[name] = found[of]
        return found
    return {**found, "times_faster": of_cpu[name] / found[of]} if name in of_cpu else found


def _placed(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ProviderUnavailable("torch finds none here.")
    return torch.device(name)


def _fitted(sizes: Sizes, name: str) -> Row:
    device = _placed(name)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(sizes.dim, sizes.n_features, generator=generator) / sizes.n_features**0.5
    labels = torch.arange(sizes.n_images) % sizes.n_labels
    features = torch.randn(sizes.n_images, sizes.n_features, generator=generator).relu()

    def blocks() -> Iterator[Tensor]:
        for block in features.split(4_096):
            yield block.to(device)

    started = time.perf_counter()
    fit = fit_laplace(
        blocks, labels, weight.to(device), torch.zeros(sizes.dim, device=device), margin=0.5
    )
    if device.type == "cuda":
        torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - started, "prior_precision": fit.prior_precision}


def _trained(sizes: Sizes, name: str, precision: str, seconds: float) -> Row:
    device = _placed(name)
    generator = torch.Generator().manual_seed(0)
    config: dict[str, Any] = {"trunk": sizes.network, "embedding_dim": sizes.dim}
    encoder = build_encoder(NetworkConfig.model_validate(config), generator)
    encoder.place_trunk(device, mixed_precision=precision == "mixed")
    encoder.train()
    shape = sizes.batch, *encoder.preprocessing.shape
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        encoder(images)[0].square().mean().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return timed(step, sizes.batch, seconds)
