"""The configuration of a build: read from TOML, checked whole before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from index_builder.configuration.posterior import (
    CONTRASTIVE,
    LaplaceConfig,
    MonteCarloDropoutConfig,
    PosteriorConfig,
    Section,
)
from model_store.errors import ConfigError
from model_store.gallery.index.plan import DEFAULT_SETTINGS, IndexKind, IndexSettings
from model_store.verdicts import Order

OutlierKind = Literal["none", "photographs", "digits", "mnist"]

ProtocolName = Literal[
    "digits",
    "fashion-mnist",
    "fashion-mnist-authors",
    "cifar-10",
    "cub-200",
    "cars-196",
    "lfw",
    "stanford-online-products",
    "in-shop",
    "msls",
    "omniglot",
]
"""See `index_builder.reproduction.protocols`."""


class DatasetConfig(Section):
    """The images of a build, and their division by purpose."""

    kind: Literal["digits", "fashion-mnist", "mnist", "folder", "protocol"] = Field(
        description="digits come with scikit-learn; fashion-mnist and mnist are read from "
        "VOUCH_DATA_DIR or downloaded; a folder has one sub-folder of images for each label; a "
        "protocol is a published one, whose images, splits and outliers `protocol` names."
    )
    path: Path | None = Field(
        None,
        description="The folder, for kind = 'folder'; for a protocol the one that its data sets "
        "lie in. [default: VOUCH_DATA_DIR]",
    )
    protocol: ProtocolName | None = Field(None, description="For kind = 'protocol'.")
    allow_partial: bool = Field(
        False, description="Take a protocol's data even where it is not all of the official."
    )
    download: bool = Field(
        False, description="Fetch a protocol's data that is missing, where torchvision can."
    )
    labels: Literal["folders", "none"] = Field(
        "folders",
        description="none: nobody knows what belongs together. Every image is a thing of its own, "
        "and views of it, made up, are what the gallery is calibrated with.",
    )
    withheld_labels: tuple[str, ...] = Field(
        (), description="Kept out of training and gallery: their images are queries with no match."
    )
    unseen_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the labels, the last by name, that train nothing: gallery and "
        "queries are of these alone (zero-shot retrieval). 0: of all labels.",
    )
    gallery_share: float = Field(
        0.6,
        gt=0,
        lt=1,
        description="Where the data has no split of its own: share of each label "
        "that is trained on and indexed. The rest is halved: calibration and evaluation queries.",
    )
    validation_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share of each label's gallery images that the encoder is not trained on: they "
        "decide on the prior precision.",
    )

    @model_validator(mode="after")
    def _folder_has_path(self) -> DatasetConfig:
        if (self.kind == "folder") > (self.path is not None) or (
            self.path is not None and self.kind not in {"folder", "protocol"}
        ):
            raise ValueError("`path` goes with kind = 'folder', and only with it or a protocol")
        if (self.kind == "protocol") != (self.protocol is not None):
            raise ValueError("`protocol` goes with kind = 'protocol', and only with it")
        if self.kind == "protocol" and (self.withheld_labels or self.unseen_share):
            raise ValueError("a protocol has splits of its own; it leaves no labels to withhold")
        if self.labels == "none" and (
            self.kind != "folder" or self.withheld_labels or self.unseen_share
        ):
            raise ValueError("labels = 'none' is for a folder; it leaves no labels to withhold")
        if self.unseen_share and self.kind in {"fashion-mnist", "mnist"}:
            raise ValueError("`unseen_share` is for data without a split of its own")
        return self


class OutlierConfig(Section):
    """Images from another world: one kind to calibrate with, another to be tested on."""

    calibration: OutlierKind = "photographs"
    evaluation: OutlierKind = "photographs"
    n_images: int | None = Field(
        None, ge=1, description="Images of each of the two, at most; all where it is left out."
    )


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
        "vit_b_16",
    ] = Field(
        "small_cnn",
        description="small_cnn (grey, 28 × 28) and colour_cnn (32 × 32) are the papers' own; the "
        "others are torchvision's.",
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
    dropout_inside: bool = Field(
        False, description="The same share between the convolutions of small_cnn as well."
    )

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> NetworkConfig:
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
    """Training: of the encoder, and of whatever the posterior's objective learns beside it."""

    epochs: int = Field(10, ge=0, description="0 takes the encoder as it is loaded or whitened.")
    labels_per_batch: int = Field(10, ge=2)
    images_per_label: int = Field(25, ge=2)
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    margin: float = Field(
        1.0, gt=0, lt=2, description="Contrastive loss: distance beyond which negatives rest."
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


class IndexConfig(Section):
    """The index of the gallery."""

    kind: Literal["auto"] | IndexKind = Field(
        DEFAULT_SETTINGS.kind,
        description="auto: exact while the directions take at most 32 MiB; then inverted lists of "
        "8 bits a dimension (ivf_sq8) or, where those do not fit the budget, of product codes "
        "(ivf_pq). hnsw: a graph, for as fast a search in more memory.",
    )
    milvus_uri: str | None = Field(
        None,
        description="Put the gallery into the Milvus there, not into files of the bundle: "
        "http://host:19530, or a file that ends in .db for milvus-lite.",
    )
    memory_budget_bytes: int = Field(
        DEFAULT_SETTINGS.memory_budget_bytes, gt=0, description="Of what stays in memory."
    )
    min_recall: float = Field(
        DEFAULT_SETTINGS.min_recall,
        gt=0,
        le=1,
        description="Share of the ten nearest items that a search is to find; the index is "
        "searched no wider than that takes.",
    )

    def settings(self, seed: int) -> IndexSettings:
        """Return the settings of an index in files."""
        return IndexSettings(self.kind, self.memory_budget_bytes, self.min_recall, seed)


class CalibrationConfig(Section):
    """The promises that answers are to keep."""

    alpha: float = Field(
        0.05, gt=0, lt=1, description="Share of ordinary queries that may be called outliers."
    )
    coverage: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Share of result sets that hold a true match, where the gallery has one.",
    )
    max_error: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Share of wrong ones among `match` verdicts that is promised not to be "
        "exceeded; where the calibration is too small to promise it, no `match` is given.",
    )
    max_false_match_rate: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of the queries without a match in the gallery that may get `match` "
        "(FPIR), promised likewise; left out: any.",
    )
    delta: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="Each promise is kept with probability 1 − delta over calibrations.",
    )
    expected_absent: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of ordinary-looking queries without a match in the gallery; left out: "
        "0.05 to begin with, then estimated from the queries that are served.",
    )
    order: Order = Field(
        "similarity",
        description="Of lists where a request names none. similarity: nearest first. probability: "
        "by match probability, items of one label nearest first.",
    )


class BuildConfig(Section):
    """A whole build."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="Of the gallery.")
    description: str = ""
    seed: int = Field(0, ge=0)
    dataset: DatasetConfig
    outliers: OutlierConfig = OutlierConfig()
    network: NetworkConfig = NetworkConfig()
    training: TrainingConfig = TrainingConfig()
    posterior: PosteriorConfig = LaplaceConfig()
    index: IndexConfig = IndexConfig()
    calibration: CalibrationConfig = CalibrationConfig()

    def changed_since(self, stored: Mapping[str, Any]) -> set[str]:
        """Parts that differ from those of a configuration ``stored`` as JSON.

        What has been added to the configuration since then had its default.
        """
        now = dict(self)
        try:
            then = dict(BuildConfig.model_validate(stored))
        except ValidationError:  # what was stored means nothing any more
            return set(now)
        return {part for part in now if now[part] != then[part]}

    @model_validator(mode="after")
    def _something_is_learned(self) -> BuildConfig:
        if self.training.epochs:
            if self.network.frozen and (self.training.flip or self.training.shift):
                raise ValueError("a frozen trunk sees each image once: drop flip and shift")
            if self.network.dropout and self.posterior.method == "online_laplace":
                raise ValueError("online_laplace takes the curvature of whole features: no dropout")
        elif self.network.last_layer == "random":
            raise ValueError("with training.epochs = 0, network.last_layer must not be 'random'")
        elif self.posterior.method not in CONTRASTIVE:
            raise ValueError(f"posterior.method = '{self.posterior.method}' needs training.epochs")
        return self

    @model_validator(mode="after")
    def _dropout_says_something(self) -> BuildConfig:
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


def builtin_configs() -> list[str]:
    """Names of the configurations that come with the package."""
    folder = resources.files("index_builder") / "configs"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir())


def load_config(source: str | Path) -> BuildConfig:
    """Read a configuration: a TOML file, or the name of a built-in one.

    Raises
    ------
    ConfigError : no such file or name, not TOML, or a value that is missing or out of range.
    """
    if str(source) in builtin_configs():
        text = (resources.files("index_builder") / "configs" / f"{source}.toml").read_text("utf-8")
    elif Path(source).is_file():
        text = Path(source).read_text(encoding="utf-8")
    else:
        raise ConfigError(
            f"No configuration {str(source)!r}: neither a file nor a built-in name "
            f"({', '.join(builtin_configs())})."
        )
    try:
        return BuildConfig.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}.") from error
    except ValidationError as error:
        raise ConfigError(f"{source}: {in_words(error)}") from error


def in_milvus(config: BuildConfig, uri: str | None) -> BuildConfig:
    """The same build with its gallery in the Milvus at ``uri``; None leaves it as it is."""
    if uri is None:
        return config
    index = config.index.model_copy(update={"milvus_uri": uri})
    return config.model_copy(update={"index": index})


def in_words(error: ValidationError) -> str:
    """One line for each thing that is wrong."""
    lines = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"]) or "the file"
        received: Any = problem.get("input")
        lines.append(f"{place}: {problem['msg']} (received {received!r})")
    return "; ".join(lines)
