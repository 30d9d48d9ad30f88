"""The configuration of a build: read from TOML, checked whole before anything runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from index_builder.configuration.defaults import of_build
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.objective import OF_VIEWS
from index_builder.configuration.problems import Problems, did_you_mean
from index_builder.configuration.section import (
    Contradiction,
    FilePath,
    Section,
    derived,
    folder_of,
)
from model_store.errors import ConfigError, UsageError
from model_store.gallery.filters.grammar import named_fields
from model_store.gallery.index.plan import DEFAULT_SETTINGS, IndexKind, IndexSettings
from model_store.images import MOST_PREVIEW_SIDE, THUMBNAIL_SIDE
from model_store.verdicts import Order

OutlierKind = Literal["none", "photographs", "digits", "mnist"]

_CONFIGS = Path(__file__).parents[1] / "configs"
_OUTLIER_RULE = "`digits` with a folder, `none` with vectors, else `photographs`"


TRAINED_GALLERY_SHARE = 0.6
"""Share of each label's images that a trained encoder learns from; the rest are queries."""


class DatasetConfig(Section):
    """The images of a build, and their division by purpose."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["kind"]}, {"required": ["path"]}]}
    )

    kind: Literal["folder", "vectors", "digits", "fashion-mnist", "mnist"] = derived(
        ...,
        "`folder` with a `path`, or `vectors` where it ends in .npy, .npz, .parquet or .arrow",
        description="folder: one sub-folder of images for each label. vectors: a table of "
        "embeddings that another system has made. digits come with scikit-learn; fashion-mnist and "
        "mnist are read from VOUCH_DATA_DIR, or downloaded.",
    )
    path: FilePath | None = Field(
        None,
        description="The folder of images, or the table of vectors. A relative path starts from "
        "the folder of the file.",
    )
    items: FilePath | None = Field(
        None,
        examples=["items.csv"],
        description="With vectors: a manifest (id, label, metadata), a line for each row.",
    )
    labels: Literal["folders", "none"] = Field(
        "folders",
        description="none: labels are unknown. Each image is its own class, and calibration uses "
        "augmented views.",
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
        examples=[0.6],
        gt=0,
        lt=1,
        description="If the data has no predefined split: share of each label that is trained "
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
            raise ValueError("a build reads a folder. `vouch-build all --images URL` copies it.")
        return path

    def contradictions(self) -> Iterator[Contradiction]:
        """Give the keys that go with another kind."""
        if self.kind in {"folder", "vectors"} and self.path is None:
            yield "path", f'kind = "{self.kind}" needs `path`.'
        if self.kind not in {"folder", "vectors"} and self.path is not None:
            yield "path", f'kind = "{self.kind}" has no path. Drop `path` or `kind`.'
        if self.items is not None and self.kind != "vectors":
            yield "items", 'it goes with kind = "vectors". Drop it.'
        if self.labels == "none":
            if self.kind != "folder":
                yield "labels", 'labels = "none" is for kind = "folder". Drop it.'
            for key in ("withheld_labels", "unseen_share"):
                if getattr(self, key):
                    yield key, f'labels = "none" leaves no labels to divide. Drop `{key}`.'
        if self.unseen_share and self.kind in {"fashion-mnist", "mnist"}:
            yield "unseen_share", f'kind = "{self.kind}" has a predefined split. Drop it.'


class OutlierConfig(Section):
    """Images of another kind than the gallery's, to calibrate and to evaluate with."""

    calibration: OutlierKind = derived(
        "photographs",
        _OUTLIER_RULE,
        description="photographs: grey crops of the two that come with scikit-learn.",
    )
    evaluation: OutlierKind = derived(
        "photographs", _OUTLIER_RULE, description="Other images than those for calibration."
    )
    n_images: int | None = derived(
        None, "60 with a folder, else all", ge=1, description="Images of each of the two, at most."
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
        examples=["http://127.0.0.1:19530"],
        description="Address of the Milvus that holds the gallery in place of the bundle's files: "
        "http://host:19530, or a file that ends in .db for milvus-lite.",
    )
    memory_budget_bytes: int = Field(
        DEFAULT_SETTINGS.memory_budget_bytes, gt=0, description="Memory of the index, in bytes."
    )
    min_recall: float = Field(
        DEFAULT_SETTINGS.min_recall,
        gt=0,
        le=1,
        description="Share of the ten nearest items that a search finds, on average.",
    )
    filter_fields: tuple[str, ...] | None = Field(
        None,
        examples=[["year", "brand.name"]],
        description="Fields of the metadata to index for filters, as a filter names them: "
        '`["year", "brand.name"]`. Left out: those that most items have, in at most 256 bytes an '
        "item. Any other is indexed in memory when a filter first asks for it.",
    )

    previews: int | None = Field(
        None,
        examples=[1024],
        gt=THUMBNAIL_SIDE,
        le=MOST_PREVIEW_SIDE,
        description="Longest side, in pixels, of pictures for comparison that the bundle keeps "
        "beside thumbnails: 100 to 250 kB a photograph at 1,024. Not with Milvus.",
    )

    @field_validator("filter_fields")
    @classmethod
    def _can_be_named(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            named_fields(names)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return names

    def contradictions(self) -> Iterator[Contradiction]:
        """Give the keys that a gallery in Milvus has no use for."""
        if self.milvus_uri is None:
            return
        from model_store.gallery.milvus.collection import require_bare  # noqa: PLC0415 - slow
        from model_store.gallery.milvus.writer import INDEX_TYPES  # noqa: PLC0415

        try:
            require_bare(self.milvus_uri)
        except ConfigError as error:
            yield "milvus_uri", str(error)
        if self.previews is not None:
            yield (
                "previews",
                (
                    "a gallery in Milvus takes no pictures of that size. Drop `previews` or "
                    "`milvus_uri`."
                ),
            )
        if self.kind != "auto" and self.kind not in INDEX_TYPES:
            yield "kind", f"Milvus has {', '.join(INDEX_TYPES)}. Take one, or auto."

    def settings(self, seed: int) -> IndexSettings:
        """Return the settings of an index."""
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
        0.05,
        gt=0,
        lt=1,
        description="Highest share of in-distribution queries that are called outliers.",
    )
    coverage: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Share of result sets with a true match, where the gallery has one.",
    )
    max_error: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Highest share of wrong verdicts among `match` verdicts. Where the calibration "
        "has too few queries to bound it, no `match` is given.",
    )
    max_false_match_rate: float | None = Field(
        None,
        examples=[0.01],
        gt=0,
        lt=1,
        description="Highest share of `match` verdicts among absent queries (FPIR), with the "
        "same confidence. Left out: not bounded.",
    )
    delta: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="Each bound holds with probability 1 − delta over calibrations.",
    )
    expected_absent: float | None = Field(
        None,
        examples=[0.02],
        gt=0,
        lt=1,
        description="Share of absent queries among in-distribution queries, which probabilities "
        "and guarantees are for. Left out: 0.05.",
    )
    order: Order = Field(
        "similarity",
        description="Order of results where a request names none. similarity: nearest first. "
        "probability: by match probability, items of one label nearest first.",
    )


class SampleConfig(Section):
    """A query image that visitors of the page can search with."""

    file: FilePath = Field(
        examples=["query.jpg"],
        description="An image file; a relative path is relative to the configuration file.",
    )
    caption: str = Field(
        min_length=1, examples=["a new photo"], description="What the image shows, for a person."
    )
    label: str | None = Field(
        None,
        examples=["crab"],
        description="The label of the gallery that it matches; left out: the gallery has no match.",
    )


class BuildConfig(EncoderConfig):
    """A whole build."""

    dataset: DatasetConfig = Field(description="Give `path`, the folder of your images, or `kind`.")
    outliers: OutlierConfig = OutlierConfig()
    index: IndexConfig = IndexConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    samples: tuple[SampleConfig, ...] = Field(
        (), description="Query images for the page. Left out: a few evaluation queries."
    )

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
    def _defaults(cls, fields: Any, info: ValidationInfo) -> Any:  # noqa: ANN401 - not validated yet
        return of_build(fields, folder_of(info)) if isinstance(fields, Mapping) else fields

    def contradictions(self) -> Iterator[Contradiction]:
        """Give the keys that contradict those of another table."""
        yield from super().contradictions()
        if self.dataset.kind == "vectors":
            yield from self._of_vectors()
        objective, training = self.training.objective.kind, self.training
        two_views = objective in OF_VIEWS and self.dataset.labels != "none"
        if training.epochs and two_views and not training.augmented:
            yield (
                "training.objective",
                (
                    f'"{objective}" compares two views of each image, and there is one of each. '
                    "Train a trunk with training.crop, such as 0.3, jitter, flip or shift."
                ),
            )
        is_asked = "prior_chosen_by" in self.posterior.model_fields_set
        if (
            is_asked
            and getattr(self.posterior, "prior_chosen_by", None) == "validation"
            and (
                training.epochs
                and not self.dataset.validation_share
                and self.dataset.labels != "none"
            )
        ):
            yield (
                "posterior.prior_chosen_by",
                "dataset.validation_share = 0 leaves no images for it. Give a share, such as 0.05.",
            )

    def _of_vectors(self) -> Iterator[Contradiction]:
        if self.network.encoder is None:
            yield (
                "network.encoder",
                (
                    'kind = "vectors" needs the encoder that made them, as `vouch-build encoder '
                    "--vectors TABLE --encoder-name NAME` writes it."
                ),
            )
        for key in ("calibration", "evaluation"):
            if getattr(self.outliers, key) != "none":
                yield f"outliers.{key}", 'an encoder of vectors takes no images. Give "none".'
        if self.samples:
            yield "samples", "an encoder of vectors takes no images. Drop [[samples]]."


def builtin_configs() -> list[str]:
    """Names of the configurations that come with the package."""
    return sorted(entry.stem for entry in _CONFIGS.iterdir())


def load_config(source: str | Path) -> BuildConfig:
    """Read a configuration: a TOML file, or the name of a built-in one.

    Relative paths in a file start from its folder.

    Raises
    ------
    ConfigError : no such file or name, not TOML, or keys or values that are wrong: all of them, a
        line for each with its place.
    """
    if str(source) in builtin_configs():
        file = _CONFIGS / f"{source}.toml"
    elif Path(source).is_file():
        file = Path(source)
    else:
        known = builtin_configs()
        raise ConfigError(
            f"No configuration {str(source)!r}: neither a file nor a built-in name "
            f"({', '.join(known)}).{did_you_mean(str(source), known)}"
        )
    try:
        text = file.read_text(encoding="utf-8")
        fields = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8 text, as TOML is.") from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line = found[1] if found else text.count("\n") + 1
        raise ConfigError(f"{source}:{line}: not valid TOML: {error}.") from error
    config, refused = None, None
    try:
        config = BuildConfig.model_validate(fields, context={"folder": Path(source).parent})
    except ValidationError as error:
        refused = error
    problems = Problems(BuildConfig, fields, refused, typed=True)
    if config is None or problems.found:
        raise ConfigError(problems.of_file(source, text)) from refused
    return config


def build_config(fields: Mapping[str, Any], options: Mapping[str, str]) -> BuildConfig:
    """Return the build that options of a command line describe.

    Parameters
    ----------
    fields : the tables of its file.
    options : the option that each key comes from, such as ``--encoder`` for ``network.encoder``.

    Raises
    ------
    UsageError : a value is out of range.
    """
    try:
        return BuildConfig.model_validate(fields)
    except ValidationError as error:
        raise UsageError(Problems(BuildConfig, fields, error).of_options(options)) from error


def in_milvus(config: BuildConfig, uri: str | None) -> BuildConfig:
    """The same build with its gallery in the Milvus at ``uri``; None keeps it.

    Raises
    ------
    ConfigError : the index has settings that are not for Milvus.
    """
    if uri is None:
        return config
    index = {**config.index.model_dump(), "milvus_uri": uri}
    return build_config({**dict(config), "index": index}, {"index.milvus_uri": "--milvus"})


def parse_promises(options: Mapping[str, Any]) -> CalibrationConfig:
    """Return what calibrated answers shall promise, the rest by default.

    Raises
    ------
    UsageError : a value is out of range.
    """
    try:
        return CalibrationConfig.model_validate(options)
    except ValidationError as error:
        named = {name: f"--{name.replace('_', '-')}" for name in options}
        problems = Problems(CalibrationConfig, options, error)
        raise UsageError(problems.of_options(named)) from error
