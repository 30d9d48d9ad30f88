"""The configuration of a build: read from TOML, checked whole before anything runs."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from model_store.errors import ConfigError

OutlierKind = Literal["none", "photographs", "digits", "mnist"]


class _Section(BaseModel):
    """A frozen table of the file; unknown keys are errors, so a typing slip is not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DatasetConfig(_Section):
    """Which images, and what each is for."""

    kind: Literal["digits", "fashion-mnist", "mnist", "folder"] = Field(
        description="digits come with scikit-learn; fashion-mnist and mnist are read from "
        "VOUCH_DATA_DIR or downloaded; a folder has one sub-folder of images for each label."
    )
    path: Path | None = Field(None, description="The folder, for kind = 'folder'.")
    withheld_labels: tuple[str, ...] = Field(
        (), description="Kept out of training and gallery: their images are queries with no match."
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
        if (self.kind == "folder") != (self.path is not None):
            raise ValueError("`path` goes with kind = 'folder', and only with it")
        return self


class OutlierConfig(_Section):
    """Images from another world: one kind to calibrate with, another to be tested on."""

    calibration: OutlierKind = "photographs"
    evaluation: OutlierKind = "photographs"


class NetworkConfig(_Section):
    """The encoder."""

    trunk: Literal["small_cnn"] = "small_cnn"
    embedding_dim: int = Field(128, ge=2)
    dropout: float = Field(0.0, ge=0, lt=1, description="On the features, while training.")


class TrainingConfig(_Section):
    """Training with the contrastive loss."""

    epochs: int = Field(10, ge=1)
    labels_per_batch: int = Field(10, ge=2)
    images_per_label: int = Field(25, ge=2)
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-4, ge=0)
    margin: float = Field(1.0, gt=0, lt=2, description="Distance beyond which negatives rest.")
    flip: bool = Field(False, description="Mirror half of the training images.")
    shift: int = Field(0, ge=0, description="Move training images by up to so many pixels.")


class PosteriorConfig(_Section):
    """The Laplace posterior of the last layer."""

    approximation: Literal["fixed"] = "fixed"
    split: Literal["euclidean"] = "euclidean"
    prior_precision: float | None = Field(
        None, gt=0, description="Left out: chosen as `prior_chosen_by` says."
    )
    prior_chosen_by: Literal["validation", "marginal_likelihood"] = Field(
        "validation",
        description="validation: by how well sampled neighbours predict the label of images that "
        "the encoder was not trained on. marginal_likelihood: by the evidence of the training "
        "images, which leaves a last layer with more weights than images far too uncertain.",
    )


class CalibrationConfig(_Section):
    """What the answers promise."""

    alpha: float = Field(
        0.05, gt=0, lt=1, description="Share of ordinary queries that may be called outliers."
    )
    max_error: float = Field(
        0.05, gt=0, lt=1, description="Share of wrong ones that verdict `match` may hold."
    )
    no_match_share: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Expected share of queries that have no match in the gallery.",
    )


class BuildConfig(_Section):
    """A whole build."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", description="Of the gallery.")
    description: str = ""
    seed: int = Field(0, ge=0)
    dataset: DatasetConfig
    outliers: OutlierConfig = OutlierConfig()
    network: NetworkConfig = NetworkConfig()
    training: TrainingConfig = TrainingConfig()
    posterior: PosteriorConfig = PosteriorConfig()
    calibration: CalibrationConfig = CalibrationConfig()


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
        raise ConfigError(f"{source}: {_in_words(error)}") from error


def _in_words(error: ValidationError) -> str:
    """One line for each thing that is wrong."""
    lines = []
    for problem in error.errors():
        place = ".".join(str(part) for part in problem["loc"]) or "the file"
        received: Any = problem.get("input")
        lines.append(f"{place}: {problem['msg']} (received {received!r})")
    return "; ".join(lines)
