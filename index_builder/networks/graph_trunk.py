"""A trunk that is not trained: a graph that ONNX Runtime computes."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import onnx
import onnx.utils
import onnxruntime
import torch
from torch import Tensor

from index_builder.networks.encoder import MetricEncoder
from index_builder.networks.trunk import Trunk
from index_builder.vectors.encoder_file import find_encoder
from index_builder.vectors.opened import encoder_on_cpu
from model_store.encoder.contract import OUTPUT_NAMES
from model_store.encoder.onnx import open_graph

_FEATURES = OUTPUT_NAMES[2]


class GraphTrunk(Trunk):
    """A trunk that computes the features of an existing encoder.

    Parameters
    ----------
    place : name or path of the encoder, as in `vouch-build index`.

    Attributes
    ----------
    graph : maps pixels, uint8 (B, H, W, 3), or input vectors, float32 (B, n), to features (B, F).

    Raises
    ------
    BundleNotFound : there is no encoder at ``place``.
    EncoderContractError : the encoder violates the contract.
    """

    def __init__(self, place: Path) -> None:
        super().__init__()
        path = find_encoder(place)
        encoder = encoder_on_cpu(path)
        self.preprocessing = encoder.metadata.input
        self._input = encoder.metadata.input_name
        self.n_features = encoder.n_features
        self.graph: onnx.ModelProto = onnx.utils.Extractor(onnx.load(path)).extract_model(
            [self._input], [_FEATURES]
        )
        content = self.graph.SerializeToString(deterministic=True)
        self._fingerprint = hashlib.sha256(content).hexdigest()
        self._content = content

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        return open_graph(self._content, "cpu", threads=1)

    def extra_repr(self) -> str:
        """Return a hash of the graph; the hash becomes part of fingerprints."""
        return self._fingerprint

    def forward(self, images: Tensor) -> Tensor:
        """Features (B, F) of ``images`` (B, H, W, 3) uint8; the graph standardises the images."""
        (found,) = self._session.run([_FEATURES], {self._input: images.cpu().numpy()})
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
