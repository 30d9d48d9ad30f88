"""The tables of a configuration that define an encoder: network, training, posterior."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from index_builder.configuration.defaults import (
    ENCODER_IN_THE_BOX,
    N_FEATURES,
    WHITENED_DIM,
    of_encoder,
    of_network,
)
from index_builder.configuration.objective import ContrastiveConfig, ObjectiveConfig
from index_builder.configuration.posterior import (
    OF_ANY_OBJECTIVE,
    POST_HOC,
    LaplaceConfig,
    MonteCarloDropoutConfig,
    PosteriorConfig,
)
from index_builder.configuration.problems import did_you_mean
from index_builder.configuration.schema import (
    Contradiction,
    Section,
    absolute,
    as_text,
    derived,
    folder_of,
)
from model_store.bundles.directory import GALLERY_NAME

PHOTOGRAPH = 224
"""Height and width, in pixels, of the training images of networks for ImageNet."""

NAMED_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "resnet18": ("IMAGENET1K_V1", "DEFAULT"),
    "resnet50": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
    "mobilenet_v2": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
    "mobilenet_v3_large": ("IMAGENET1K_V1", "IMAGENET1K_V2", "DEFAULT"),
    "googlenet": ("IMAGENET1K_V1", "DEFAULT"),
    "vit_b_16": (
        "IMAGENET1K_V1",
        "IMAGENET1K_SWAG_E2E_V1",
        "IMAGENET1K_SWAG_LINEAR_V1",
        "DEFAULT",
    ),
}
"""Torchvision's names of weights; listed here because importing torchvision takes seconds."""

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".npz")


class NetworkConfig(Section):
    """The encoder: a trunk, and the linear last layer on its features."""

    encoder: Annotated[str, BeforeValidator(as_text)] | None = derived(
        None,
        f"`{ENCODER_IN_THE_BOX}` with a folder",
        description=f"A pretrained encoder; it is not trained further. {ENCODER_IN_THE_BOX}: "
        "the built-in encoder. Other values: a library's model, as in `vouch-build all --encoder` "
        "(timm:NAME); or a path to the output of `vouch-build encoder`, a bundle, or an .onnx "
        "file.",
    )
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
    ] = derived(
        "small_cnn",
        "`onnx` with an `encoder`, else `small_cnn`",
        description="A network to train instead of an `encoder`, starting from random weights or "
        "from `weights`. small_cnn (grey, 28 × 28) and colour_cnn (32 × 32) are the papers' "
        "networks for characters and silhouettes. onnx means the given `encoder`. All other "
        "networks come from torchvision.",
    )
    weights: str | None = Field(
        None,
        examples=["IMAGENET1K_V1"],
        description="Pretrained weights of `trunk`: a name from torchvision (IMAGENET1K_V1, "
        "downloaded), a local .safetensors, .pth, .pt or .npz file, or the checkpoint.safetensors "
        "of another run.",
    )
    frozen: bool = derived(
        False,
        "`true` with an `encoder`",
        description="Freeze the trunk; only the last layer is trained.",
    )
    last_layer: Literal["random", "whitening", "loaded"] = derived(
        "random",
        "`whitening` on a frozen trunk, else `random`",
        description="Initial weights of the last layer. random: random weights, which must be "
        "trained. whitening: a learned whitening of the trunk's features. loaded: the linear "
        "layer in the weights file.",
    )
    pooling: Literal["average", "gem"] = Field(
        "average", description="Pooling of a convolutional trunk's last feature map."
    )
    input_size: int = Field(
        PHOTOGRAPH,
        ge=32,
        multiple_of=32,
        description="Input size of torchvision's trunks, in pixels.",
    )
    embedding_dim: int | None = derived(
        128,
        f"128; for a whitened last layer {WHITENED_DIM}, at most the number of features",
        ge=2,
        description="Dimensions of the embedding.",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout rate of the features in training.")
    feature_norm: bool = Field(
        False,
        description="Normalise the features over each batch, without trainable parameters. The "
        "statistics of batch normalisation within a pretrained trunk do not change.",
    )
    dropout_inside: bool = Field(
        False, description="Apply `dropout` also between the convolutions of small_cnn."
    )

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, fields: Any) -> Any:  # noqa: ANN401 - not validated yet
        return of_network(fields) if isinstance(fields, Mapping) else fields

    @field_validator("encoder")
    @classmethod
    def _absolute_encoder(cls, spec: str | None, info: ValidationInfo) -> str | None:
        if spec is None or spec == ENCODER_IN_THE_BOX or ":" in spec:
            return spec
        is_path = "/" in spec or (folder_of(info) / spec).exists()
        return absolute(spec, info) if is_path else spec

    @field_validator("weights")
    @classmethod
    def _absolute_weights(cls, weights: str | None, info: ValidationInfo) -> str | None:
        return absolute(weights, info) if weights and Path(weights).suffix else weights

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the keys that do not fit the network."""
        if self.encoder is not None:
            yield from self._with_encoder()
        else:
            yield from self._of_trunk()

    def _with_encoder(self) -> Iterator[Contradiction]:
        if self.trunk != "onnx":
            yield "trunk", "`encoder` has its own network. Drop `trunk` or `encoder`."
            return
        another = "Drop this key, or set `trunk` instead of `encoder`."
        if self.weights is not None:
            yield "weights", f"`encoder` has its own weights. {another}"
        if not self.frozen:
            yield "frozen", "an encoder is not trained. Drop `frozen`, or train a `trunk`."
        if self.last_layer == "loaded":
            yield "last_layer", '"loaded" needs `weights`. With `encoder`: "whitening" or "random".'
        if self.feature_norm:
            yield "feature_norm", f"an encoder is not trained. {another}"
        if self.pooling != "average":
            yield "pooling", f"`encoder` has its own pooling. {another}"
        if self.input_size != PHOTOGRAPH:
            yield "input_size", f"`encoder` has its own input size. {another}"
        if self.dropout_inside:
            yield "dropout_inside", 'it needs trunk = "small_cnn". Drop `dropout_inside`.'

    def _of_trunk(self) -> Iterator[Contradiction]:
        if self.trunk == "onnx":
            yield "encoder", 'trunk = "onnx" needs `encoder`: a library\'s model, or a path.'
            return
        own = self.trunk in {"small_cnn", "colour_cnn"}
        if self.feature_norm and (self.frozen or self.dropout_inside):
            other = "frozen" if self.frozen else "dropout_inside"
            yield (
                "feature_norm",
                f"`feature_norm` normalises each batch and does not work with `{other}`. Drop one.",
            )
        if self.weights is None and self.frozen:
            yield "frozen", "a frozen trunk needs `weights`. Or set `encoder` instead."
        if self.weights is None and self.last_layer == "loaded":
            yield "last_layer", "a loaded last layer needs `weights`."
        if self.weights is not None:
            yield from _of_weights(self.trunk, self.weights)
        if self.pooling != "average" and (own or self.trunk == "vit_b_16"):
            yield "pooling", f"{self.trunk} has no feature map to pool. Drop `pooling`."
        if self.input_size != PHOTOGRAPH and own:
            yield "input_size", f"{self.trunk} has a fixed input size. Drop `input_size`."
        if self.dropout_inside and (self.trunk != "small_cnn" or not self.dropout):
            yield "dropout_inside", '`dropout_inside` needs trunk = "small_cnn" and `dropout`.'
        n_features = N_FEATURES[self.trunk]
        if self.last_layer == "whitening" and (self.embedding_dim or 0) > n_features:
            yield (
                "embedding_dim",
                (
                    f"{self.trunk} has {n_features} features, and whitening cannot give more "
                    "dimensions than features. Set fewer dimensions."
                ),
            )


def _of_weights(trunk: str, weights: str) -> Iterator[Contradiction]:
    """Yield the error of an invalid name of weights. The existence of a file is checked later."""
    names, suffix = NAMED_WEIGHTS.get(trunk, ()), Path(weights).suffix
    files = WEIGHT_SUFFIXES if names else (".safetensors",)
    if weights not in names and suffix not in files:
        named = f"{', '.join(names)}, or " if names else ""
        meant = did_you_mean(weights, names)
        yield "weights", f"wanted {named}a file ({', '.join(files)}) for {trunk}.{meant}"


class TrainingConfig(Section):
    """How the encoder and the parameters of the objective are trained."""

    objective: ObjectiveConfig = Field(
        ContrastiveConfig(), description="The loss that training minimises."
    )
    epochs: int = derived(
        10,
        "0 with pretrained features and a whitened last layer, unless [training] or "
        "`posterior.method` requires training; else 10",
        ge=0,
        description="Number of passes over the training images. 0: no training; the last layer "
        "must then be whitened or loaded.",
    )
    labels_per_batch: int = Field(10, ge=2, description="Number of labels in a training batch.")
    images_per_label: int = Field(
        25,
        ge=2,
        description="Number of images of each label in a batch. Some objectives need no positives "
        "in a batch (cross_entropy, center, proxies, views). For these objectives, a batch "
        "has labels_per_batch × images_per_label images, chosen regardless of their labels.",
    )
    optimizer: Literal["adamw", "sgd"] = Field("adamw", description="adamw or sgd.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of sgd; 0 for none.")
    learning_rate: float = Field(1e-3, gt=0, description="Maximum learning rate of the encoder.")
    weight_decay: float = Field(1e-4, ge=0, description="Weight decay of the encoder's weights.")
    margin: float = Field(
        1.0,
        gt=0,
        lt=2,
        description="Distance beyond which negatives have no effect, in the contrastive loss and "
        "in the curvature of the Laplace posterior. The Laplace posterior uses this margin "
        "with every objective.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="Device for training, and for the computation of the trunk's features. auto: "
        "a GPU if available.",
    )
    precision: Literal["auto", "full", "mixed"] = Field(
        "auto",
        description="Precision of the trunk in training. full: float32. mixed: bfloat16 for "
        "operations that need no float32; twice as fast. auto: mixed on a GPU, else full.",
    )
    flip: bool = Field(False, description="Mirror a random half of the training images.")
    shift: int = Field(0, ge=0, description="Shift training images by up to this number of pixels.")
    crop: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Minimum share of the area in a random crop of a training image.",
    )
    jitter: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Change brightness, contrast and saturation by up to this share.",
    )

    @property
    def augmented(self) -> bool:
        """True if training images are augmented at random."""
        return bool(self.flip or self.shift or self.crop < 1 or self.jitter)


class EncoderConfig(Section):
    """An encoder with its posterior."""

    name: str = derived(
        ...,
        "the name of the folder, the table or the data set",
        pattern=GALLERY_NAME,
        description="Name of the gallery, its run and its bundles.",
    )
    description: str = derived(
        "", "the folder or table, and the encoder", description="Description of the gallery."
    )
    seed: int = Field(0, ge=0, description="Seed of all random numbers.")
    network: NetworkConfig = NetworkConfig()
    training: TrainingConfig = TrainingConfig()
    posterior: PosteriorConfig = LaplaceConfig()

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, fields: Any) -> Any:  # noqa: ANN401 - not validated yet
        return of_encoder(fields) if isinstance(fields, Mapping) else fields

    def changed_since(self, stored: Mapping[str, Any]) -> set[str]:
        """Return the names of the tables and keys that differ from a stored configuration.

        If a key is missing in the stored configuration, its default value is compared.
        """
        now = dict(self)
        try:
            then = dict(type(self).model_validate(stored))
        except ValidationError:  # an outdated configuration counts as changed entirely
            return set(now)
        return {part for part in now if now[part] != then[part]}

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the keys that contradict other tables."""
        yield from self._of_training()
        yield from self._of_posterior()

    def _of_training(self) -> Iterator[Contradiction]:
        network, training, method = self.network, self.training, self.posterior.method
        if training.epochs:
            for key in ("flip", "shift", "crop", "jitter"):
                if network.frozen and getattr(training, key) != getattr(TrainingConfig(), key):
                    yield f"training.{key}", f"a frozen trunk uses no augmentation. Drop `{key}`."
            return
        if network.weights is None and network.encoder is None:
            yield (
                "training.epochs",
                (
                    "a network with random weights must be trained. Set `epochs`, for example 10, "
                    "or a pretrained network.encoder."
                ),
            )
        elif network.last_layer == "random":
            yield (
                "training.epochs",
                (
                    "a random last layer must be trained. Set `epochs`, for example 10, or "
                    'network.last_layer = "whitening".'
                ),
            )
        if method not in POST_HOC:
            yield (
                "posterior.method",
                f'"{method}" needs training. Set training.epochs, such as 10.',
            )

    def _of_posterior(self) -> Iterator[Contradiction]:
        network, asked = self.network, self.posterior
        if self.training.epochs and asked.method == "online_laplace" and network.dropout:
            yield (
                "network.dropout",
                (
                    'posterior.method = "online_laplace" needs the curvature of features without '
                    "dropout. Drop `dropout`."
                ),
            )
        if asked.method == "ensemble" and network.encoder is not None:
            yield (
                "posterior.method",
                (
                    "the members of an ensemble train their trunks, but network.encoder is not "
                    "trained. Set network.trunk, or another method."
                ),
            )
        objective = self.training.objective
        if objective != ContrastiveConfig() and asked.method not in OF_ANY_OBJECTIVE:
            yield (
                "training.objective",
                (
                    f'posterior.method = "{asked.method}" trains with its own loss. Drop '
                    f"`objective`, or use one of {', '.join(sorted(OF_ANY_OBJECTIVE))}."
                ),
            )
        if isinstance(asked, MonteCarloDropoutConfig):
            if not network.dropout:
                yield "posterior.method", '"mc_dropout" needs network.dropout, for example 0.2.'
            if asked.n_passes is not None and not network.dropout_inside:
                yield (
                    "posterior.n_passes",
                    (
                        "dropout before the last layer needs no forward passes: mean and variance "
                        "are exact. Drop `n_passes`, or set network.dropout_inside."
                    ),
                )
