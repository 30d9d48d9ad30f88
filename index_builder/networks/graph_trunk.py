"""A trunk that is not trained: a graph that ONNX Runtime computes."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import onnxruntime
import torch
from torch import Tensor

from index_builder.networks.encoder import MetricEncoder
from index_builder.networks.trunk import Trunk
from index_builder.vectors.frozen_graph import FrozenGraph
from index_builder.vectors.halves import FEATURES
from model_store.encoder.onnx import open_graph


class GraphTrunk(Trunk):
    """A trunk that computes the features of an existing encoder.

    Parameters
    ----------
    place : name or path of the encoder, as in `vouch-build index`.

    Attributes
    ----------
    frozen : the graph.

    Raises
    ------
    BundleNotFound : there is no encoder at ``place``.
    EncoderContractError : the encoder violates the contract.
    """

    def __init__(self, place: Path) -> None:
        super().__init__()
        self.frozen = FrozenGraph(place)
        self.preprocessing = self.frozen.preprocessing
        self.n_features = self.frozen.n_features

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        return open_graph(self.frozen.content, "cpu", threads=1)

    def extra_repr(self) -> str:
        """Return a hash of the graph; the hash becomes part of fingerprints."""
        return self.frozen.fingerprint

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8; the graph standardises the images."""
        (found,) = self._session.run([FEATURES], {self.frozen.input_name: images.cpu().numpy()})
        return torch.from_numpy(found)


class GraphTrunkEncoder(MetricEncoder):
    """An encoder with a `GraphTrunk`; only its last layer can be trained."""

    trunk: GraphTrunk

    def __init__(self, trunk: GraphTrunk, embedding_dim: int) -> None:
        super().__init__(trunk, embedding_dim, frozen=True)

    def features(self, images: Tensor) -> Tensor:
        """Return the features (B, F) of ``images`` (B, H, W, 3) uint8."""
        found: Tensor = self.trunk(images)
        return found.to(images.device)
