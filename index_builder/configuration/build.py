"""The configuration of a build, read from TOML and fully checked before the build runs."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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
from index_builder.configuration.schema import (
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
from model_store.messages import Order

if TYPE_CHECKING:
    from model_store.decision import Calibration

OutlierKind = Literal["none", "photographs", "digits", "mnist"]

_CONFIGS = Path(__file__).parents[1] / "configs"
_OUTLIER_RULE = "`digits` with a folder, `none` with vectors, else `photographs`"


TRAINED_GALLERY_SHARE = 0.6
"""Share of each label's images that train the encoder and are indexed. The other images are
queries."""


class DatasetConfig(Section):
    """The images of a build, and their division by purpose."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["kind"]}, {"required": ["path"]}]}
    )

    kind: Literal["folder", "vectors", "digits", "fashion-mnist", "mnist"] = derived(
        ...,
        "`folder` with a `path`, or `vectors` if it ends in .npy, .npz, .parquet or .arrow",
        description="folder: one sub-folder of images for each label. vectors: a table of "
        "embeddings from another system. digits: data set of scikit-learn. fashion-mnist and "
        "mnist: read from VOUCH_DATA_DIR, or downloaded.",
    )
    path: FilePath | None = Field(
        None,
        description="The folder of images, or the table of vectors. A relative path starts from "
        "the folder of the configuration file.",
    )
    items: FilePath | None = Field(
        None,
        examples=["items.csv"],
        description="With vectors: a manifest (id, label, metadata) with one line for each row of "
        "the table.",
    )
    labels: Literal["folders", "none"] = Field(
        "folders",
        description="none: labels are unknown. Each image is its own class, and calibration uses "
        "augmented views.",
    )
    withheld_labels: tuple[str, ...] = Field(
        (),
        description="Labels that are neither trained on nor indexed. Images of these labels are "
        "queries without a match, half for calibration and half for evaluation.",
    )
    unseen_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of labels that the encoder is not trained on: the last labels in "
        "alphabetical order. Gallery and queries have only these labels (zero-shot "
        "retrieval). 0: the encoder is trained on all labels.",
    )
    gallery_share: float | None = Field(
        None,
        examples=[0.6],
        gt=0,
        lt=1,
        description="For each label, the share of its images that are used for training and "
        "indexed. Only for data without a predefined split. The other images are queries, half "
        "for calibration and half for evaluation. If not set: 0.6 if the last layer is trained. "
        "If the last layer is fitted in closed form, all images are indexed. Each image is then "
        "also a query. The query is embedded by a last layer that was fitted without this image.",
    )
    validation_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="For each label, the share of its gallery images that are held out from "
        "training. The prior precision is chosen with these images.",
    )

    @field_validator("path", mode="before")
    @classmethod
    def _is_of_this_machine(cls, path: object) -> object:
        if "://" in str(path):
            raise ValueError(
                "a build reads a local folder. `vouch-build all --images URL` copies the images."
            )
        return path

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the keys that do not fit the kind of the data."""
        if self.kind in {"folder", "vectors"} and self.path is None:
            yield "path", f'kind = "{self.kind}" needs `path`.'
        if self.kind not in {"folder", "vectors"} and self.path is not None:
            yield "path", f'kind = "{self.kind}" has no path. Drop `path` or `kind`.'
        if self.items is not None and self.kind != "vectors":
            yield "items", '`items` needs kind = "vectors". Drop `items`.'
        if self.labels == "none":
            if self.kind != "folder":
                yield "labels", 'labels = "none" needs kind = "folder". Drop `labels`.'
            for key in ("withheld_labels", "unseen_share"):
                if getattr(self, key):
                    yield key, f'labels = "none" leaves no labels to divide. Drop `{key}`.'
        if self.unseen_share and self.kind in {"fashion-mnist", "mnist"}:
            yield (
                "unseen_share",
                f'kind = "{self.kind}" has a predefined split. Drop `unseen_share`.',
            )


class OutlierConfig(Section):
    """Images of another type than the gallery's images, for the evaluation."""

    calibration: OutlierKind = derived(
        "photographs",
        _OUTLIER_RULE,
        description="Images that `evaluation` does not use. No calibration uses them since 0.3.",
    )
    evaluation: OutlierKind = derived(
        "photographs",
        _OUTLIER_RULE,
        description="photographs: grey crops of the two photographs of scikit-learn. digits: the "
        "digits of scikit-learn. mnist: the test images of MNIST.",
    )
    n_images: int | None = derived(
        None,
        "60 with a folder, else all",
        ge=1,
        description="Maximum number of outliers.",
    )


DATABASE_OPTIONS = ("--database", "--milvus")
"""Names of the option for `database_uri`; the second is the name in release 0.2."""


class IndexConfig(Section):
    """The index of the gallery."""

    kind: Literal["auto"] | IndexKind = Field(
        DEFAULT_SETTINGS.kind,
        description="auto: exact search (flat) if the vectors take at most 32 MiB. Larger "
        "galleries get inverted lists with 8 bits per dimension (ivf_sq8). If ivf_sq8 exceeds the "
        "memory budget, the gallery gets product codes (ivf_pq). hnsw: a graph, as fast as "
        "ivf_sq8, but with more memory.",
    )
    database_uri: str | None = Field(
        None,
        examples=["postgresql://db.example/vouch"],
        description="Address of the database that stores the gallery instead of the bundle: "
        "postgresql://host/database for PostgreSQL with pgvector, http://host:19530 for Milvus, or "
        "a file with suffix .db for milvus-lite. If VOUCH_POSTGRES_URI or VOUCH_MILVUS_URI is set, "
        "the gallery is written to its address, and this address is only stored in the bundle. "
        "User and password come from VOUCH_POSTGRES_URI, the token of Milvus from "
        "VOUCH_MILVUS_TOKEN.",
    )
    memory_budget_bytes: int = Field(
        DEFAULT_SETTINGS.memory_budget_bytes,
        gt=0,
        description="Maximum memory of the index in bytes.",
    )
    min_recall: float = Field(
        DEFAULT_SETTINGS.min_recall,
        gt=0,
        le=1,
        description="Minimum mean recall of the index. Recall is the share of the ten nearest "
        "items that a search finds.",
    )
    filter_fields: tuple[str, ...] | None = Field(
        None,
        examples=[["year", "brand.name"]],
        description="Metadata fields to index for filters, for example "
        '`["year", "brand.name"]`. If not set: the fields that most items have, in at most 256 '
        "bytes per item. Other fields are indexed in memory at their first use in a filter.",
    )

    previews: int | None = Field(
        None,
        examples=[1024],
        gt=THUMBNAIL_SIDE,
        le=MOST_PREVIEW_SIDE,
        description="Longest side of previews in pixels. The bundle stores previews in addition to "
        "thumbnails. At 1,024 pixels, the preview of a photograph takes 100 to 250 kB. Not "
        "supported with Milvus.",
    )

    @model_validator(mode="before")
    @classmethod
    def _with_earlier_name(cls, fields: Any) -> Any:  # noqa: ANN401 - whatever the file has
        """Accept ``milvus_uri``, the name of ``database_uri`` in release 0.2."""
        if isinstance(fields, Mapping) and "milvus_uri" in fields and "database_uri" not in fields:
            return {
                "database_uri" if key == "milvus_uri" else key: value
                for key, value in fields.items()
            }
        return fields

    @field_validator("filter_fields")
    @classmethod
    def _can_be_named(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        try:
            named_fields(names)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return names

    def require_client(self) -> None:
        """Raise `ConfigError` if the client of the database is not installed."""
        if self.database_uri is not None:
            from model_store.gallery.opening import engine_at  # noqa: PLC0415 - slow

            engine_at(self.database_uri).require_client()

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the keys that the database of the gallery does not support."""
        if self.database_uri is None:
            return
        from model_store.gallery.opening import engine_at  # noqa: PLC0415 - slow

        try:
            engine = engine_at(self.database_uri)
        except ConfigError as error:
            yield "database_uri", str(error)
            return
        try:
            engine.require_address(self.database_uri)
        except ConfigError as error:
            yield "database_uri", str(error)
        if self.previews is not None and not engine.has_previews:
            problem = f"a gallery in {engine.name} stores no previews. Drop `previews`."
            yield "previews", problem
        kinds = engine.index_kinds
        if self.kind != "auto" and self.kind not in kinds:
            yield "kind", f"{engine.name} supports {', '.join(kinds)}. Use one of these, or auto."

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
    """The error bounds of calibrated answers."""

    alpha: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Maximum share of in-distribution queries that are flagged as outliers.",
    )
    coverage: float = Field(
        0.95,
        gt=0,
        lt=1,
        description="Minimum share of queries with a match whose result set contains a true match.",
    )
    max_error: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="Maximum share of wrong verdicts among `match` verdicts. If the calibration "
        "has too few queries to guarantee this share, no query gets a `match`.",
    )
    max_false_match_rate: float | None = Field(
        None,
        examples=[0.01],
        gt=0,
        lt=1,
        description="Maximum share of absent queries with the verdict `match` (FPIR). This bound "
        "also holds with probability 1 − delta. If not set: not bounded.",
    )
    delta: float = Field(
        0.1,
        gt=0,
        lt=0.5,
        description="Each error bound holds with probability 1 − delta over calibrations.",
    )
    expected_absent: float | None = Field(
        None,
        examples=[0.02],
        gt=0,
        lt=1,
        description="Assumed share of absent queries among all queries, for probabilities and "
        "guarantees. If not set: 0.05.",
    )
    order: Order = Field(
        "similarity",
        description="Default order of results. similarity: nearest first. probability: highest "
        "match probability first; among items of one label, the nearest first.",
    )


class SampleConfig(Section):
    """A sample query image for the page."""

    file: FilePath = Field(
        examples=["query.jpg"],
        description="An image file; a relative path is relative to the configuration file.",
    )
    caption: str = Field(
        min_length=1, examples=["a new photo"], description="Caption of the image on the page."
    )
    label: str | None = Field(
        None,
        examples=["crab"],
        description="Label of the sample in the gallery. If not set: the gallery has no match.",
    )


class BuildConfig(EncoderConfig):
    """A whole build."""

    dataset: DatasetConfig = Field(description="Set `path`, the folder of your images, or `kind`.")
    outliers: OutlierConfig = OutlierConfig()
    index: IndexConfig = IndexConfig()
    calibration: CalibrationConfig = CalibrationConfig()
    samples: tuple[SampleConfig, ...] = Field(
        (), description="Sample queries for the page. If not set: a few evaluation queries."
    )

    @property
    def gallery_share(self) -> float | None:
        """Share of each label's images that are indexed.

        None if every image is both an item and a query.
        """
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
        """Yield the keys that contradict other tables."""
        yield from super().contradictions()
        if self.dataset.kind == "vectors":
            yield from self._of_vectors()
        objective, training = self.training.objective.kind, self.training
        two_views = objective in OF_VIEWS and self.dataset.labels != "none"
        if training.epochs and two_views and not training.augmented:
            yield (
                "training.objective",
                (
                    f'"{objective}" compares two views of each image, but no augmentation is set. '
                    "Set training.crop, for example 0.3, or jitter, flip or shift."
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
                "dataset.validation_share = 0 leaves no images. Set a share, such as 0.05.",
            )

    def _of_vectors(self) -> Iterator[Contradiction]:
        if self.network.encoder is None:
            yield (
                "network.encoder",
                (
                    'kind = "vectors" needs an encoder file. Write it with `vouch-build encoder '
                    "--vectors TABLE --encoder-name NAME`."
                ),
            )
        for key in ("calibration", "evaluation"):
            if getattr(self.outliers, key) != "none":
                yield f"outliers.{key}", 'an encoder of vectors takes no images. Set "none".'
        if self.samples:
            yield "samples", "an encoder of vectors takes no images. Drop [[samples]]."


def builtin_configs() -> list[str]:
    """Return the names of the built-in configurations."""
    return sorted(entry.stem for entry in _CONFIGS.iterdir())


def load_config(source: str | Path) -> BuildConfig:
    """Read a configuration: a TOML file, or the name of a built-in one.

    Relative paths in a file start from the folder of the file.

    Raises
    ------
    ConfigError : the file or name does not exist, the file is not TOML, or keys or values are
        wrong. The message lists all errors, one per line.
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
        raise ConfigError(f"{source} is not UTF-8 text. TOML files are UTF-8.") from error
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
    """Return the build that the options of a command line describe.

    Parameters
    ----------
    fields : tables as in a configuration file.
    options : the option of each key, for example ``--encoder`` for ``network.encoder``.

    Raises
    ------
    UsageError : a value is out of range.
    """
    try:
        return BuildConfig.model_validate(fields)
    except ValidationError as error:
        raise UsageError(Problems(BuildConfig, fields, error).of_options(options)) from error


def in_database(config: BuildConfig, uri: str | None) -> BuildConfig:
    """Return the build with its gallery in the database at ``uri``.

    If ``uri`` is None, the build does not change.

    Raises
    ------
    ConfigError : the database does not support a setting of the index.
    """
    if uri is None:
        return config
    index = {**config.index.model_dump(), "database_uri": uri}
    return build_config({**dict(config), "index": index}, {"index.database_uri": "--database"})


def parse_promises(
    options: Mapping[str, Any], before: Calibration | None = None
) -> CalibrationConfig:
    """Return the given error bounds; all other bounds keep their value in ``before``.

    Without ``before``, all other bounds have their defaults.

    Raises
    ------
    UsageError : a value is out of range.
    """
    if before is not None:
        kept = {name: getattr(before, name) for name in CalibrationConfig.model_fields}
        options = {**kept, **options}
    try:
        return CalibrationConfig.model_validate(options)
    except ValidationError as error:
        named = {name: f"--{name.replace('_', '-')}" for name in options}
        problems = Problems(CalibrationConfig, options, error)
        raise UsageError(problems.of_options(named)) from error


_OPTION_OF = {
    "name": "--name",
    "dataset.path": "--images",
    "dataset.items": "--items",
    "network.encoder": "--encoder",
}
"""For each key that an option sets, the option; errors name the option."""


def encoder_config(
    images: Path,
    encoder: Path | str | None = None,
    name: str | None = None,
    *,
    labelled: bool = True,
) -> BuildConfig:
    """Return the configuration of `vouch-build all --images`.

    Parameters
    ----------
    images : folder with a sub-folder for each label. If ``labelled`` is false, any folder of images
        is accepted.
    encoder : see `NetworkConfig.encoder`; None for the built-in encoder.
    name : name of the gallery; None for the folder's name.

    Raises
    ------
    ConfigError : a value is out of range.
    """
    tables: dict[str, Any] = {"dataset": {"kind": "folder", "path": images}}
    if not labelled:
        tables["dataset"]["labels"] = "none"
    if encoder is not None:
        tables["network"] = {"encoder": encoder}
    if name is not None:
        tables["name"] = name
    return build_config(tables, _OPTION_OF)


def vectors_config(
    table: Path,
    items: Path | None,
    encoder: Path | str,
    made_by: str | None = None,
    name: str | None = None,
) -> BuildConfig:
    """Return the configuration of `vouch-build all --vectors`.

    Parameters
    ----------
    items : manifest with the fields of each row; None if the table itself has the fields.
    encoder : encoder that takes the vectors.
    made_by : name of the model that produced the vectors; None if ``encoder`` stores this name.
    name : name of the gallery; None for the table's name.

    Raises
    ------
    ConfigError : a value is out of range.
    """
    tables: dict[str, Any] = {
        "dataset": {"kind": "vectors", "path": table, "items": items},
        "network": {"encoder": encoder},
    }
    if made_by is not None:
        tables["description"] = f"{table.name}, encoder {made_by}"
    if name is not None:
        tables["name"] = name
    return build_config(tables, _OPTION_OF | {"dataset.path": "--vectors"})
