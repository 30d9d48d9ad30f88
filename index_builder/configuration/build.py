"""The configuration of a build: read from TOML, checked whole before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.section import FilePath, Section
from model_store.errors import ConfigError, UsageError
from model_store.gallery.filters.grammar import named_fields
from model_store.gallery.index.plan import DEFAULT_SETTINGS, IndexKind, IndexSettings
from model_store.images import MOST_PREVIEW_SIDE, THUMBNAIL_SIDE
from model_store.verdicts import Order

OutlierKind = Literal["none", "photographs", "digits", "mnist"]


TRAINED_GALLERY_SHARE = 0.6
"""Share of each label's images that a trained encoder learns from; the rest are queries."""


class DatasetConfig(Section):
    """The images of a build, and their division by purpose."""

    kind: Literal["digits", "fashion-mnist", "mnist", "folder", "vectors"] = Field(
        description="digits come with scikit-learn; fashion-mnist and mnist are read from "
        "VOUCH_DATA_DIR or downloaded; a folder has one sub-folder of images for each label; "
        "vectors are a table of what another system has made of images."
    )
    path: FilePath | None = Field(
        None,
        description="The folder, or the table of vectors; a relative path is relative to the "
        "configuration file.",
    )
    items: FilePath | None = Field(
        None, description="For kind = 'vectors': a manifest, a line for each row of the table."
    )
    labels: Literal["folders", "none"] = Field(
        "folders",
        description="none: nobody knows what belongs together. Every image is a thing of its own, "
        "and views of it, made up, are what the gallery is calibrated with.",
    )
    withheld_labels: tuple[str, ...] = Field(
        (),
        description="Kept out of training and gallery. Half of their images calibrate as queries "
        "without a match, half evaluate.",
    )
    unseen_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the labels, the last by name, that train nothing: gallery and "
        "queries are of these alone (zero-shot retrieval). 0: of all labels.",
    )
    gallery_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Where the data has no split of its own: share of each label that is trained "
        "on and indexed. Half of the rest calibrates, half evaluates. Left out: all images where "
        "the last layer is fitted in closed form (each is then a query, searched for in the rest "
        "by a layer that has not seen it), 0.6 where it is trained.",
    )
    validation_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share of each label's gallery images that the encoder is not trained on: they "
        "decide on the prior precision.",
    )

    @field_validator("path", mode="before")
    @classmethod
    def _is_of_this_machine(cls, path: object) -> object:
        if "://" in str(path):
            raise ValueError("a build reads a folder; `vouch-build all --images URL` copies it")
        return path

    @model_validator(mode="after")
    def _folder_has_path(self) -> DatasetConfig:
        if (self.kind in {"folder", "vectors"}) != (self.path is not None):
            raise ValueError("`path` goes with kind = 'folder' or 'vectors', and only with these")
        if self.items is not None and self.kind != "vectors":
            raise ValueError("`items` goes with kind = 'vectors'")
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
    filter_fields: tuple[str, ...] | None = Field(
        None,
        description="Fields of the metadata to index for filters, as a filter names them: "
        '`["year", "brand.name"]`. Left out: those that most items have, in at most 256 bytes an '
        "item. Any other is indexed in memory when a filter first asks for it.",
    )

    previews: int | None = Field(
        None,
        gt=THUMBNAIL_SIDE,
        le=MOST_PREVIEW_SIDE,
        description="Longest side of pictures to compare by, pixels, such as 1024; they are kept "
        "in the bundle beside thumbnails, 100 to 250 kB a photograph at 1,024. Not with Milvus.",
    )

    @field_validator("filter_fields")
    @classmethod
    def _can_be_named(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            named_fields(names)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return names

    def settings(self, seed: int) -> IndexSettings:
        """Return the settings of an index.

        Raises
        ------
        ConfigError : there would be previews in Milvus.
        """
        if self.previews is not None and self.milvus_uri is not None:
            raise ConfigError(
                f"The index has previews = {self.previews} and a gallery in Milvus, which takes no "
                "pictures of that size. Leave one of them out."
            )
        return IndexSettings(
            self.kind,
            self.memory_budget_bytes,
            self.min_recall,
            seed,
            self.filter_fields,
            self.previews,
        )


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


class SampleConfig(Section):
    """A query image that visitors of the page can search with."""

    file: FilePath = Field(
        description="An image file; a relative path is relative to the configuration file."
    )
    caption: str = Field(min_length=1, description="What the image shows, for a person.")
    label: str | None = Field(
        None,
        description="The label of the gallery that it matches; left out: the gallery has no match.",
    )


class BuildConfig(EncoderConfig):
    """A whole build."""

    dataset: DatasetConfig
    outliers: OutlierConfig = OutlierConfig()
    index: IndexConfig = IndexConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    samples: tuple[SampleConfig, ...] = ()
    """Query images that come with the bundle; where there are none, a few evaluation queries."""

    @property
    def gallery_share(self) -> float | None:
        """Share of each label's images that is indexed; None for all, which are queries as well."""
        is_closed_form = self.training.epochs == 0 and self.network.last_layer == "whitening"
        if self.dataset.gallery_share is None and not (
            is_closed_form and not self.dataset.unseen_share
        ):
            return TRAINED_GALLERY_SHARE
        return self.dataset.gallery_share

    @model_validator(mode="before")
    @classmethod
    def _vectors_have_no_pictures_of_another_world(cls, fields: Any) -> Any:  # noqa: ANN401 - not validated yet
        dataset = fields.get("dataset") if isinstance(fields, Mapping) else None
        if isinstance(dataset, Mapping) and dataset.get("kind") == "vectors":
            return {"outliers": {"calibration": "none", "evaluation": "none"}, **fields}
        return fields

    @model_validator(mode="after")
    def _vectors_are_taken(self) -> BuildConfig:
        if self.dataset.kind != "vectors":
            return self
        if self.network.encoder is None:
            raise ValueError(
                "kind = 'vectors' goes with trunk = 'onnx' and, as `encoder`, what made the "
                "vectors: `vouch-build encoder --vectors TABLE --encoder-name NAME`"
            )
        if {self.outliers.calibration, self.outliers.evaluation} != {"none"}:
            raise ValueError("[outliers] are pictures, which an encoder of vectors cannot take")
        if self.samples:
            raise ValueError("[[samples]] are images, which an encoder of vectors cannot take")
        return self


def builtin_configs() -> list[str]:
    """Names of the configurations that come with the package."""
    folder = resources.files("index_builder") / "configs"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir())


def load_config(source: str | Path) -> BuildConfig:
    """Read a configuration: a TOML file, or the name of a built-in one.

    Relative paths in a file are relative to its folder.

    Raises
    ------
    ConfigError : no such file or name, not TOML, or a value that is missing or out of range.
    """
    folder = None
    if str(source) in builtin_configs():
        text = (resources.files("index_builder") / "configs" / f"{source}.toml").read_text("utf-8")
    elif Path(source).is_file():
        text = Path(source).read_text(encoding="utf-8")
        folder = Path(source).parent
    else:
        raise ConfigError(
            f"No configuration {str(source)!r}: neither a file nor a built-in name "
            f"({', '.join(builtin_configs())})."
        )
    try:
        return BuildConfig.model_validate(tomllib.loads(text), context={"folder": folder})
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


def parse_promises(options: Mapping[str, Any]) -> CalibrationConfig:
    """Return what calibrated answers shall promise, the rest as it is by default.

    Raises
    ------
    UsageError : a value is out of range.
    """
    try:
        return CalibrationConfig.model_validate(options)
    except ValidationError as error:
        named = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
        raise UsageError(f"What answers shall promise, {named}: {in_words(error)}.") from error
