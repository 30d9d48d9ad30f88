"""Builds a gallery from the images of a configuration, with the modules of batch indexing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from index_builder.datasets import LabelledImages
from index_builder.indexing.assemble import assemble
from index_builder.indexing.blocks import BLOCK, NONE, Block, Entry, Place, PreparedBlock
from index_builder.indexing.catalogue import Catalogue
from index_builder.indexing.engines import DecoderThreads, LocalEngine, Progress, embed_catalogue
from index_builder.indexing.prepare import prepare_pixels
from index_builder.indexing.workdir import occupied
from index_builder.output import writing
from index_builder.vectors.encoder import stored
from model_store.encoder.contract import Embeddings, Encoder
from model_store.gallery import IndexSettings
from model_store.gallery.files.gallery import GALLERY_FILES
from model_store.gallery.index.plan import DEFAULT_SETTINGS
from model_store.gallery.opening import DATABASE_FILES
from model_store.processors import usable_processors

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
