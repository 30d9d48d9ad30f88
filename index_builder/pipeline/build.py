"""The steps of a build: index, calibrate, evaluate, sample queries, publish; and all in order.

These steps need no torch. `steps_for` imports torch only for an encoder that needs it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index_builder.calibration import corrected_by_feedback
from index_builder.calibration.calibrate import N_DETECTOR_IMAGES, calibrate_gallery
from index_builder.calibration.evaluate import evaluate
from index_builder.calibration.inputs import GalleryQueries
from index_builder.calibration.item_queries import ItemQueries, cross_fitted_items, whole_groups
from index_builder.calibration.kept_queries import keep
from index_builder.calibration.plan import Plan
from index_builder.configuration.build import BuildConfig, SampleConfig
from index_builder.configuration.encoder import EncoderConfig
from index_builder.configuration.environment import database_access, signing
from index_builder.configuration.posterior import LaplaceConfig
from index_builder.datasets import LabelledImages, SplitChoices, Splits, load_splits
from index_builder.indexing.assemble import Check, accept_any, assemble, describe
from index_builder.indexing.blocks import BLOCK, NONE, Block, Entry, Place, PreparedBlock
from index_builder.indexing.catalogue import Catalogue
from index_builder.indexing.engines import (
    DecoderThreads,
    LocalEngine,
    Progress,
    embed_catalogue,
    open_encoder,
)
from index_builder.indexing.prepare import prepare_pixels
from index_builder.indexing.sources import open_vectors
from index_builder.indexing.workdir import occupied
from index_builder.output import CALIBRATION_TABLE, write_table, writing
from index_builder.pipeline.run import EVALUATION_TABLE, POSTERIOR_REPORT, Run, forget, write_json
from index_builder.progress import timed_step
from index_builder.vectors.encoder import Halves, StoredEncoder, stored
from index_builder.vectors.encoder_file import encoder_on_cpu, opened_once
from index_builder.vectors.images import VectorFile
from model_store.bundles.bundle import open_parts
from model_store.bundles.manifest import ENCODER_FILE, EVALUATION_FILE, SAMPLES_FOLDER, SampleQuery
from model_store.bundles.publish import publish
from model_store.decision import Calibration, outcome_of
from model_store.decision.calibration import CALIBRATION_FILE
from model_store.encoder.contract import Embeddings, Encoder
from model_store.errors import ConfigError, DatasetError, ImageError, StepNotReady
from model_store.feedback import FeedbackLog, require_feedback_file
from model_store.gallery import Gallery, IndexSettings, open_gallery
from model_store.gallery.files.fields import ITEMS_FILE
from model_store.gallery.files.gallery import GALLERY_FILES
from model_store.gallery.index.plan import DEFAULT_SETTINGS
from model_store.gallery.opening import (
    DATABASE_FILES,
    DatabaseAccess,
    database_of,
    index_description,
    is_in_database,
)
from model_store.images import decode_image
from model_store.items import check_item_id, check_label
from model_store.machine import PROVIDERS, ProviderChoice, one_blas_thread, usable_processors
from model_store.retriever import Retriever

__all__ = [
    "build_all",
    "calibrate_step",
    "evaluate_step",
    "index_step",
    "plan_of",
    "publish_step",
    "splits_of",
    "steps_for",
]

N_MATCHED = 4

_Sample = tuple[NDArray[np.uint8], str, bool]
"""A sample query: its pixels, its caption, and whether the gallery has a true match."""


def write_samples(
    directory: Path, splits: Splits, configured: Sequence[SampleConfig]
) -> tuple[SampleQuery, ...]:
    """Write sample queries into ``directory``.

    If no samples are configured, a few evaluation queries become the samples.

    Raises
    ------
    ConfigError : see `read_samples`.
    """
    chosen = read_samples(configured, splits) if configured else _evaluation_queries(splits)
    folder = directory / SAMPLES_FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    samples = []
    for number, (pixels, caption, belongs) in enumerate(chosen, start=1):
        name = f"{number}.png"
        Image.fromarray(pixels).save(folder / name)
        samples.append(SampleQuery(str(number), f"{SAMPLES_FOLDER}/{name}", caption, belongs))
    return tuple(samples)


def read_samples(configured: Sequence[SampleConfig], splits: Splits) -> list[_Sample]:
    """Return the samples of a configuration.

    Raises
    ------
    ConfigError : a file is missing or is not an image, or a label is not in the gallery.
    """
    known = set(splits.gallery.labels)
    samples: list[_Sample] = []
    for number, sample in enumerate(configured, start=1):
        if sample.label is not None and sample.label not in known:
            raise ConfigError(
                f"samples.{number}.label is {sample.label!r}, which is not a label of the gallery. "
                f"Set one of {', '.join(sorted(known))}; or leave `label` out."
            )
        try:
            pixels = decode_image(sample.file.read_bytes()).pixels
        except OSError as error:
            raise ConfigError(
                f"samples.{number}.file cannot be read: {sample.file}: {error.strerror}. "
                "Name an image file."
            ) from error
        except ImageError as error:
            raise ConfigError(f"samples.{number}.file is {sample.file}: {error}") from error
        samples.append((pixels, sample.caption, sample.label is not None))
    return samples


def _evaluation_queries(splits: Splits) -> list[_Sample]:
    """Return a few evaluation queries: some have a match, two have no match."""
    queries = splits.evaluation
    chosen = [
        (queries.matched, position, _caption(label, labelled=splits.labelled), True)
        for label, position in _first_of_each_label(queries.matched)[:N_MATCHED]
    ]
    chosen += [
        (queries.withheld, position, f"{label}: not in the collection", False)
        for label, position in _first_of_each_label(queries.withheld)[:1]
    ]
    if queries.outliers is not None:
        caption = f"{queries.outliers.labels[0]}: another kind of image"
        chosen.append((queries.outliers, 0, caption, False))
    return [
        (images.pixels(position), caption, belongs) for images, position, caption, belongs in chosen
    ]


def _caption(label: str, *, labelled: bool) -> str:
    return f"{label}: a new photo" if labelled else f"a view of {label}"


def _first_of_each_label(images: LabelledImages) -> list[tuple[str, int]]:
    first: dict[str, int] = {}
    for position, label in enumerate(images.labels):
        first.setdefault(label, position)
    return sorted(first.items())


_OF_POSTERIOR = ("method", "prior_share", "norm_correlation", "temperature")
"""Keys of the posterior's report that are also stored in the bundle."""


def index_step(config: BuildConfig, run: Run) -> None:
    """Embed the gallery images and build the index; write the files of the gallery."""
    splits = splits_of(config)
    encoder = _exported(run)
    settings = config.index.settings(config.seed)
    work = run.directory / "index"
    forget(run.staging / EVALUATION_FILE, run.staging / CALIBRATION_FILE)
    build_gallery(
        work,
        run.staging,
        encoder,
        splits.gallery,
        settings,
        labelled=splits.labelled,
        database_uri=config.index.database_uri,
        owner=f"{config.name} in {run.directory.resolve()}",
    )


def calibrate_step(config: BuildConfig, run: Run, feedback: Path | None = None) -> Calibration:
    """Calibrate the gallery; write calibration.json and calibration.npz.

    Parameters
    ----------
    feedback : the feedback file of the service. The reviewer decisions in this file correct the
        match probabilities. None for no correction.
    """
    if feedback is not None:
        require_feedback_file(feedback)
    encoder = _exported(run)
    gallery = _indexed(run)
    splits = splits_of(config)
    order = np.random.default_rng(config.seed).permutation(len(splits.gallery))
    chosen = whole_groups(splits.gallery.groups, order, N_DETECTOR_IMAGES)
    images = splits.gallery.at(chosen)
    with one_blas_thread():  # with one thread, sums are equal on all machines
        items = _item_queries(config, run, splits, images, encoder)
        inputs = GalleryQueries(
            *(encoder, gallery, images, splits.calibration, config.seed),
            are_views=not splits.labelled,
            unseen=splits.gallery_unseen,
            items=items,
        )
        calibration = calibrate_gallery(inputs, config.calibration)
        forget(run.staging / EVALUATION_FILE, run.staging / CALIBRATION_FILE)
        keep(run.staging, inputs)
    if feedback is not None:
        calibration = corrected_by_feedback(calibration, FeedbackLog(feedback))
    calibration.save(run.staging)
    title = f"Calibration of {config.name}"
    write_table(run.directory / CALIBRATION_TABLE, title, calibration.report)
    return calibration


def _item_queries(
    config: BuildConfig, run: Run, splits: Splits, images: LabelledImages, encoder: StoredEncoder
) -> ItemQueries | None:
    """Return gallery items as queries; each item is embedded by a layer fitted without the item.

    Parameters
    ----------
    images : gallery images in random order.

    Returns
    -------
    None if the build holds out images as queries.
    """
    if not splits.items_are_queries:
        return None
    from safetensors.numpy import load_file  # noqa: PLC0415 - not where only vectors are indexed

    weight = load_file(run.require(run.checkpoint, "train"))["last_layer.weight"]
    return cross_fitted_items(encoder, splits.gallery, splits.training, images, weight, config.seed)


def evaluate_step(config: BuildConfig, run: Run) -> dict[str, Any]:
    """Evaluate the staged bundle; write evaluation.json to the run and to the bundle."""
    run.require(run.staging / CALIBRATION_FILE, "calibrate")
    with one_blas_thread():  # as the service searches
        report = evaluate(_opened(run), splits_of(config).evaluation, config.seed)
    if (run.directory / POSTERIOR_REPORT).exists():  # missing for a foreign encoder
        posterior = run.read_json(POSTERIOR_REPORT)
        report["posterior"] = {name: posterior[name] for name in _OF_POSTERIOR if name in posterior}
    run.write_json(EVALUATION_FILE, report)
    write_json(run.staging / EVALUATION_FILE, report)
    write_table(run.directory / EVALUATION_TABLE, f"Evaluation of {config.name}", report)
    return report


def publish_step(config: BuildConfig, run: Run, bundles: Path) -> Path:
    """Publish the staged bundle in ``bundles``, where it becomes the current bundle."""
    report = run.require(run.staging / EVALUATION_FILE, "evaluate")
    retriever = _opened(run)
    of_images = retriever.encoder.metadata.takes_images
    splits = splits_of(config)
    samples = write_samples(run.staging, splits, config.samples) if of_images else ()
    metrics = json.loads(report.read_text(encoding="utf-8"))
    index = index_description(run.staging)
    manifest = describe(retriever, index, config.name, config.description, metrics, samples)
    return publish(run.staging, manifest, bundles, signing=signing())


def plan_of(config: BuildConfig) -> Plan:
    """Read the data of a build, without the cache, and count the queries."""
    _loaded.cache_clear()  # a folder may have changed since the last read
    return planned(splits_of(config), config)


def planned(splits: Splits, config: BuildConfig) -> Plan:
    """Return the plan of a build with this data."""
    of_vectors = config.dataset.kind == "vectors"
    return Plan.of_splits(splits, config.calibration, of_vectors=of_vectors)


def splits_of(config: BuildConfig) -> Splits:
    """Return the data of a build. The process caches the data, because reading the data is slow."""
    return _loaded(SplitChoices.of(config))


@lru_cache(maxsize=1)
def _loaded(choices: SplitChoices) -> Splits:
    vectors = None
    if choices.dataset.kind == "vectors":
        assert choices.dataset.path is not None  # noqa: S101 - the configuration has checked it
        vectors = open_vectors(choices.dataset.path, choices.dataset.items).labelled_vectors()
    splits = load_splits(choices, vectors)
    for name in splits.gallery.ids:  # before training, which can take hours
        try:
            check_item_id(name)
        except ValueError as error:
            raise DatasetError(
                f"{name!r} cannot be the id of an item: it {error}. Rename the file or folder, or "
                "give the item another id."
            ) from error
    for label in {*splits.gallery.labels} if splits.labelled else ():
        try:
            check_label(label)
        except ValueError as error:
            raise DatasetError(f"{label!r} cannot be a label: it {error}. Rename it.") from error
    return splits


def _exported(run: Run) -> StoredEncoder:
    """Return the encoder that `export_step` wrote, with the run's cache of embeddings."""
    path = run.require(run.staging / ENCODER_FILE, "export")
    return _stored(run, opened_once(open_encoder, path))


def _opened(run: Run) -> Retriever:
    """Open the staged bundle, with the run's cache of embeddings."""

    def stored(path: Path, _provider: ProviderChoice, _threads: int) -> Encoder:
        return _stored(run, encoder_on_cpu(path))

    retriever = open_parts(run.staging, "cpu", 1, stored, access=_access(run))
    _require_unchanged(retriever.gallery)
    return retriever


def _indexed(run: Run) -> Gallery:
    """Return the gallery that `index_step` wrote."""
    if not is_in_database(run.staging):
        run.require(run.staging / ITEMS_FILE, "index")
    gallery = open_gallery(run.staging, _access(run))
    _require_unchanged(gallery)
    return gallery


def _require_unchanged(gallery: Gallery) -> None:
    """Raise `StepNotReady` if items of a gallery in a database were changed after `index_step`."""
    if gallery.n_changed:
        raise StepNotReady(
            f"{gallery.n_changed} items have been changed in the database since the gallery was "
            "built. Run `vouch-build index` again, which writes a new gallery."
        )


def _access(run: Run) -> DatabaseAccess:
    """Return the access to the database to which `index_step` has written."""
    return database_access(database_of(run.staging))


def _stored(run: Run, encoder: Encoder) -> StoredEncoder:
    """Return ``encoder`` with the run's cache of embeddings."""
    on_cpu = encoder.provider == PROVIDERS["cpu"]
    halves = Halves.of(run.trunk, run.head, encoder.fingerprint) if on_cpu else None
    return StoredEncoder(encoder, VectorFile(run.vectors), halves)


def steps_for(config: EncoderConfig) -> ModuleType:
    """Return the module with the functions `train_step`, `fit_step` and `export_step`.

    torch is imported only for an encoder that needs it.
    """
    posterior, one_process = config.posterior, int(os.environ.get("WORLD_SIZE", "1")) == 1
    is_closed_form = (
        config.network.encoder is not None
        and config.network.last_layer == "whitening"
        and not config.training.epochs
        and isinstance(posterior, LaplaceConfig)
        and posterior.structure == "kronecker"
        and posterior.approximation != "full"
        and one_process
    )
    name = "closed_form" if is_closed_form else "steps"
    return import_module(f"{__package__}.{name}")


def build_all(
    config: BuildConfig, run: Run, bundles: Path, check: Check = accept_any
) -> tuple[Path, dict[str, Any]]:
    """Run all steps in order; the staging directory is emptied first.

    Parameters
    ----------
    check : see `Check`.
    """
    splits = splits_of(config)
    planned(splits, config).require_feasible()
    read_samples(config.samples, splits)
    shutil.rmtree(run.staging, ignore_errors=True)
    of_encoder = steps_for(config)
    steps: Mapping[str, Callable[[], object]] = {
        "train": lambda: of_encoder.train_step(config, run, splits),
        "fit": lambda: of_encoder.fit_step(config, run, splits),
        "export": lambda: of_encoder.export_step(config, run, splits),
        "index": lambda: index_step(config, run),
        "calibrate": lambda: calibrate_step(config, run),
        "evaluate": lambda: evaluate_step(config, run),
    }
    for number, (name, step) in enumerate(steps.items(), start=1):
        with timed_step(f"{name} ({number} of {len(steps)})"):
            step()
    report = run.read_json(EVALUATION_FILE)
    check(outcome_of(Calibration.load(run.staging), report))
    return publish_step(config, run, bundles), report


_IN_MEMORY = Place("", None, 0, 0)


def build_gallery(
    directory: Path,
    staging: Path,
    encoder: Encoder,
    images: LabelledImages,
    settings: IndexSettings = DEFAULT_SETTINGS,
    *,
    labelled: bool = True,
    database_uri: str | None = None,
    owner: str = "",
) -> None:
    """Embed ``images`` (or vectors), and write the files of a gallery to ``staging``.

    If ``labelled`` is true, the gallery stores the labels of the images.

    Parameters
    ----------
    directory : run directory; it is removed at the end. A run cannot be resumed, because the images
        of a configuration are unknown until they are read.
    encoder : the encoder. Embeddings in the encoder's cache are not computed again.
    database_uri, owner : see `assemble`.

    Raises
    ------
    DatasetError : an image can no longer be read.
    """
    known = stored(encoder)
    cached: dict[int, Embeddings] = {}

    def contents(block: Block | PreparedBlock) -> Sequence[bytes] | None:
        first = block.number * BLOCK
        return images.at(range(first, first + len(block.ids))).contents()

    def prepare(block: Block) -> PreparedBlock:
        found = known.cached(contents(block))
        if found is not None:
            cached[block.number] = found
        return prepare_pixels(
            block,
            images.pixels,
            block.number * BLOCK,
            encoder.metadata.input,
            settings.preview_side,
            is_encoded=found is not None,
        )

    def encode(prepared: PreparedBlock) -> Embeddings:
        if prepared.number in cached:
            return cached.pop(prepared.number)
        return known.encode_known(prepared.images, contents(prepared))

    with occupied(directory) as work, writing(f"the gallery in {staging}"):
        work.begin(resume=False)
        catalogue = Catalogue(work.catalogue, _entries(images, labelled=labelled))
        n = usable_processors()
        progress = Progress(len(images))
        with closing(LocalEngine(DecoderThreads(prepare, n), encoder, n, encode)) as engine:
            embed_catalogue(catalogue, work.store, encoder, engine, NONE, progress)
        content = work, catalogue.n_blocks, encoder.dim, encoder.fingerprint, settings
        assemble(*content, database_uri, owner=owner)
        catalogue.close()
        for name in (*GALLERY_FILES, *DATABASE_FILES):  # files of an earlier index
            (staging / name).unlink(missing_ok=True)
        for path in work.bundle.iterdir():
            path.replace(staging / path.name)
    shutil.rmtree(directory)


def _entries(images: LabelledImages, *, labelled: bool) -> Iterator[Entry]:
    known = images.metadata or ({},) * len(images)
    for name, label, metadata in zip(images.ids, images.labels, known, strict=True):
        yield Entry(name, _IN_MEMORY, label if labelled else None, metadata, name)
