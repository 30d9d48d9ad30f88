"""The tables of a configuration that decide what an encoder becomes, whatever it is trained on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from index_builder.configuration.objective import ContrastiveConfig, ObjectiveConfig
from index_builder.configuration.posterior import (
    OF_ANY_OBJECTIVE,
    POST_HOC,
    LaplaceConfig,
    MonteCarloDropoutConfig,
    PosteriorConfig,
)
from index_builder.configuration.section import Section
from model_store.bundles.directory import GALLERY_NAME

PHOTOGRAPH = 224
"""Height and width that ImageNet's networks were trained at, pixels."""


class NetworkConfig(Section):
    """The encoder: a trunk, and the linear last layer on its features."""

    trunk: Literal[
        "small_cnn",
        "colour_cnn",
        "resnet18",
        "resnet50",
        "mobilenet_v2",
        "mobilenet_v3_large",
        "googlenet",
        "vit_b_16",
        "onnx",
    ] = Field(
        "small_cnn",
        description="small_cnn (grey, 28 × 28) and colour_cnn (32 × 32) are the papers' own; onnx "
        "is the `encoder` named; the others are torchvision's.",
    )
    encoder: Path | None = Field(
        None,
        description="For trunk = 'onnx', which is always frozen: what `vouch-build encoder` wrote, "
        "a bundle, or an encoder's .onnx file.",
    )
    weights: str | None = Field(
        None,
        description="Pretrained weights: a name of torchvision's (IMAGENET1K_V1, downloaded), a "
        "local .safetensors, .pth or .npz file, or the checkpoint.safetensors of another run.",
    )
    frozen: bool = Field(False, description="Leave the trunk as it is; only the last layer learns.")
    last_layer: Literal["random", "whitening", "loaded"] = Field(
        "random",
        description="How the last layer begins: at random, as the learned whitening of the "
        "trunk's features, or as the linear layer that comes with the weights.",
    )
    pooling: Literal["average", "gem"] = Field(
        "average", description="Of a convolutional trunk's last feature map."
    )
    input_size: int = Field(
        PHOTOGRAPH,
        ge=32,
        multiple_of=32,
        description="Of torchvision's trunks, pixels; small_cnn has 28, colour_cnn 32.",
    )
    embedding_dim: int = Field(128, ge=2)
    dropout: float = Field(0.0, ge=0, lt=1, description="On the features, while training.")
    feature_norm: bool = Field(
        False,
        description="One more batch normalisation, without parameters, of the features; a "
        "pretrained trunk's own stay as they were.",
    )
    dropout_inside: bool = Field(
        False, description="The same share between the convolutions of small_cnn as well."
    )

    @model_validator(mode="before")
    @classmethod
    def _a_graph_is_frozen(cls, fields: Any) -> Any:  # noqa: ANN401 - not validated yet
        if isinstance(fields, Mapping) and fields.get("trunk") == "onnx":
            return {"frozen": True, **fields}
        return fields

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> NetworkConfig:
        if (self.trunk == "onnx") != (self.encoder is not None):
            raise ValueError("`encoder` goes with trunk = 'onnx', and only with it")
        if self.encoder is not None:
            if self.weights is not None or not self.frozen or self.last_layer == "loaded":
                raise ValueError(
                    "trunk = 'onnx' is frozen and brings its weights: drop `weights`, `frozen` and "
                    "last_layer = 'loaded'"
                )
            if self.feature_norm:
                raise ValueError("trunk = 'onnx' stays as it is: drop `feature_norm`")
            if self.pooling != "average" or self.input_size != PHOTOGRAPH:
                raise ValueError("trunk = 'onnx' has both itself: drop `pooling` and `input_size`")
            return self
        if self.feature_norm and (self.frozen or self.dropout_inside):
            raise ValueError(
                "`feature_norm` learns from the features of each batch: drop `frozen` and "
                "`dropout_inside`"
            )
        if self.weights is None and (self.frozen or self.last_layer == "loaded"):
            raise ValueError("`frozen` and last_layer = 'loaded' need `weights`")
        if self.trunk in {"small_cnn", "colour_cnn", "vit_b_16"} and self.pooling != "average":
            raise ValueError(f"{self.trunk} has no feature map to pool: drop `pooling`")
        if self.trunk in {"small_cnn", "colour_cnn"} and self.input_size != PHOTOGRAPH:
            raise ValueError(f"{self.trunk} has an input size of its own: drop `input_size`")
        if self.dropout_inside and (self.trunk != "small_cnn" or not self.dropout):
            raise ValueError("`dropout_inside` is for trunk = 'small_cnn', and needs `dropout`")
        return self


class TrainingConfig(Section):
    """Training: of the encoder, and of whatever the objective learns beside it."""

    objective: ObjectiveConfig = ContrastiveConfig()
    epochs: int = Field(10, ge=0, description="0 takes the encoder as it is loaded or whitened.")
    labels_per_batch: int = Field(10, ge=2)
    images_per_label: int = Field(
        25,
        ge=2,
        description="Objectives that need no positives in a batch (cross_entropy, center, proxies, "
        "views) draw labels_per_batch × images_per_label images of whatever label.",
    )
    optimizer: Literal["adamw", "sgd"] = "adamw"
    momentum: float = Field(0.9, ge=0, lt=1, description="Of sgd; above 0 it is Nesterov's.")
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    margin: float = Field(
        1.0,
        gt=0,
        lt=2,
        description="Distance beyond which negatives rest: of the contrastive loss, and of the "
        "Laplace posterior's curvature, whatever the objective.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Where the trunk is trained and its features are computed; auto takes a GPU "
        "where there is one.",
    )
    precision: Literal["auto", "full", "mixed"] = Field(
        "auto",
        description="Of the trunk in training: mixed computes in bfloat16 what bears it, twice as "
        "fast; auto does so on a GPU.",
    )
    flip: bool = Field(False, description="Mirror half of the training images.")
    shift: int = Field(0, ge=0, description="Move training images by up to so many pixels.")
    crop: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Smallest share of its area that a training image is cropped to, and enlarged.",
    )
    jitter: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Change brightness, contrast and saturation by up to this share.",
    )

    @property
    def augmented(self) -> bool:
        """True where two looks at a training image are two pictures."""
        return bool(self.flip or self.shift or self.crop < 1 or self.jitter)


class EncoderConfig(Section):
    """An encoder with its posterior."""

    name: str = Field(pattern=GALLERY_NAME, description="Of the gallery.")
    description: str = ""
    seed: int = Field(0, ge=0)
    network: NetworkConfig = NetworkConfig()
    training: TrainingConfig = TrainingConfig()
    posterior: PosteriorConfig = LaplaceConfig()

    def changed_since(self, stored: Mapping[str, Any]) -> set[str]:
        """Parts that differ from those of a configuration ``stored`` as JSON.

        What has been added to the configuration since then had its default.
        """
        now = dict(self)
        try:
            then = dict(type(self).model_validate(stored))
        except ValidationError:  # what was stored means nothing any more
            return set(now)
        return {part for part in now if now[part] != then[part]}

    @model_validator(mode="after")
    def _something_is_learned(self) -> EncoderConfig:
        if self.training.epochs:
            if self.network.frozen and self.training.augmented:
                raise ValueError(
                    "a frozen trunk sees each image once: drop flip, shift, crop and jitter"
                )
            if self.network.dropout and self.posterior.method == "online_laplace":
                raise ValueError("online_laplace takes the curvature of whole features: no dropout")
            if self.network.encoder is not None and self.posterior.method == "ensemble":
                raise ValueError("members of an ensemble train their trunks: not trunk = 'onnx'")
        elif self.network.last_layer == "random":
            raise ValueError("with training.epochs = 0, network.last_layer must not be 'random'")
        elif self.posterior.method not in POST_HOC:
            raise ValueError(f"posterior.method = '{self.posterior.method}' needs training.epochs")
        return self

    @model_validator(mode="after")
    def _one_loss_trains(self) -> EncoderConfig:
        asked = self.training.objective
        if asked != ContrastiveConfig() and self.posterior.method not in OF_ANY_OBJECTIVE:
            raise ValueError(
                f"posterior.method = '{self.posterior.method}' trains with a loss of its own: drop "
                f"training.objective, or take one of {', '.join(sorted(OF_ANY_OBJECTIVE))}"
            )
        return self

    @model_validator(mode="after")
    def _dropout_says_something(self) -> EncoderConfig:
        asked = self.posterior
        if isinstance(asked, MonteCarloDropoutConfig):
            if not self.network.dropout:
                raise ValueError("posterior.method = 'mc_dropout' needs network.dropout, e.g. 0.2")
            if (asked.n_passes is not None) and not self.network.dropout_inside:
                raise ValueError(
                    "dropout before the last layer alone needs no passes, its moments are exact: "
                    "drop posterior.n_passes, or set network.dropout_inside"
                )
        return self
