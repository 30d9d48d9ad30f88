"""A small network for Omniglot, trained on the background characters and kept on the disk.

Four convolutions, as in matching and prototypical networks, and the additive-margin softmax (Wang
et al. 2018) over the 964 characters and their three turns. Its evaluation characters are of other
alphabets: it has seen none of them. Half an hour on one core.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from index_builder.datasets import LabelledImages
from index_builder.datasets.corruption import corrupted
from index_builder.reproduction.data_sets import Origin, omniglot
from model_store.encoder.contract import Embeddings
from model_store.images import Preprocessing
from tests.benchmarks.preconditions import data_dir
from tests.benchmarks.promises.real import Embedded

KEPT = Path("build") / "unknown"
INPUT = Preprocessing(height=28, width=28, decoding="reduced")
DIM, N_FEATURES = 128, 1152
EPOCHS, BATCH = 12, 96
TURNS = 4
_SCALE, _MARGIN = 20.0, 0.2
_TILT, _STRETCH, _SHEAR, _SHIFT = 0.26, 0.15, 0.2, 0.15
"""Most by which a drawing is turned (radians), stretched, sheared and moved (half widths)."""


class OmniglotNetwork(nn.Module):
    """Ink (B, 1, 28, 28) in [0, 1] to embeddings (B, 128) and features (B, 1152)."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            _block(1, 32), _block(32, 64), _block(64, 128), _block(128, 128)[:3], nn.Flatten()
        )
        self.last_layer = nn.Linear(N_FEATURES, DIM, bias=False)
        self.norm = nn.BatchNorm1d(DIM, affine=False)

    def forward(self, ink: Tensor) -> tuple[Tensor, Tensor]:
        features = self.trunk(ink)
        return self.norm(self.last_layer(features)), features


def _block(n_in: int, n_out: int) -> nn.Sequential:
    convolution = nn.Conv2d(n_in, n_out, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(n_out), nn.ReLU(), nn.MaxPool2d(2))


def evaluation_characters(every: int) -> Embedded:
    """One of ``every`` evaluation characters, as the network sees them."""
    path = KEPT / "omniglot.npz"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        parts = omniglot(Origin(data_dir())).parts
        network, images = _trained(parts["background"]), parts["evaluation"]
        arrays = {}
        for name, some in (("clean", images), ("spoilt", corrupted(images, 0))):
            arrays[f"{name}_mean"], arrays[f"{name}_features"] = _embedded(network, some)
        np.savez(path, labels=np.array(images.labels), **arrays)  # type: ignore[arg-type]
    with np.load(path) as arrays:
        labels = arrays["labels"]
        chosen = np.isin(labels, np.unique(labels)[::every])
        clean, spoilt = (
            Embeddings(mean, np.zeros_like(mean), arrays[f"{name}_features"][chosen])
            for name in ("clean", "spoilt")
            for mean in [arrays[f"{name}_mean"][chosen]]
        )
    anything = np.ones(chosen.sum(), dtype=bool)
    return Embedded(clean, spoilt, labels[chosen], anything, anything)


def _ink(images: LabelledImages) -> Tensor:
    ink = np.empty((len(images), 1, INPUT.height, INPUT.width), np.float32)
    for positions, batch in images.batches(INPUT, 512):
        ink[positions, 0] = 1 - batch[..., 0] / 255
    return torch.from_numpy(ink)


def _embedded(network: OmniglotNetwork, images: LabelledImages) -> list[NDArray[np.float32]]:
    with torch.inference_mode():
        found = [network(batch) for batch in _ink(images).split(512)]
    return [torch.cat(part).numpy() for part in zip(*found, strict=True)]


def _trained(images: LabelledImages, seed: int = 0) -> OmniglotNetwork:
    torch.manual_seed(seed)
    ink, labels = _ink(images), torch.from_numpy(images.label_codes()).long()
    network, n = OmniglotNetwork(), len(ink) // BATCH
    proxies = nn.Parameter(0.05 * torch.randn(TURNS * len(set(images.labels)), DIM))
    optimizer = torch.optim.AdamW(
        [
            {"params": network.parameters(), "weight_decay": 1e-3},
            {"params": [proxies], "weight_decay": 1e-4},
        ]
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, EPOCHS * n, pct_start=0.15)
    for epoch in range(EPOCHS):
        total = 0.0
        for rows in torch.randperm(len(ink))[: n * BATCH].split(BATCH):
            turns = torch.randint(0, TURNS, (BATCH,))
            turned = torch.stack(
                [
                    torch.rot90(one, k, (1, 2))
                    for one, k in zip(ink[rows], turns.tolist(), strict=True)
                ]
            )
            target = labels[rows] * TURNS + turns
            embedded, _ = network(_drawn_again(turned))
            cosines = functional.normalize(embedded) @ functional.normalize(proxies).T
            margin = _MARGIN * functional.one_hot(target, len(proxies))
            loss = functional.cross_entropy(_SCALE * (cosines - margin), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"Omniglot's network: epoch {epoch + 1}/{EPOCHS}, loss {total / n:.3f}")
    return network.eval()


def _drawn_again(ink: Tensor) -> Tensor:
    """The same characters as another hand might have put them."""
    angles, shears, across, down = (torch.rand(4, len(ink)) * 2 - 1) * torch.tensor(
        [[_TILT], [_SHEAR], [_SHIFT], [_SHIFT]]
    )
    wide, high = 1 + _STRETCH * (2 * torch.rand(2, len(ink)) - 1)
    cosine, sine = angles.cos(), angles.sin()
    rows = [[cosine * wide, shears - sine * high, across], [sine * wide, cosine * high, down]]
    places = torch.stack([torch.stack(row, 1) for row in rows], 1)
    grid = functional.affine_grid(places, list(ink.shape), align_corners=False)
    return functional.grid_sample(ink, grid, align_corners=False)
