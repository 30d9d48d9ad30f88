"""Local galleries: `open` reads a bundle, `Gallery` searches it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self, Unpack, get_args
from uuid import uuid4

from model_store import open_bundle
from model_store.bundles.bundle import Bundle
from model_store.bundles.directory import OperatorSettings, read_operator
from model_store.errors import ItemNotFound
from model_store.gallery import Filter, read_filter
from model_store.gallery.opening import DatabaseAccess
from model_store.image_inputs import ImageInput, image_file
from model_store.images import decode_image
from model_store.machine import ProviderChoice, usable_processors
from model_store.predictive import Predictive
from model_store.queries import embed_text, text_id
from model_store.retriever import Retriever
from model_store.search import Diversity
from service import schemas, serializers
from service.schemas.keywords import QueryOptions
from vouch_search.answers import Answer, Answers, Picture
from vouch_search.protocol import (
    ErrorChoice,
    checked_options,
    checked_text,
    images_of,
    in_threads,
    query_name,
    require_path,
)

_DATABASE_TIMEOUT_S = 5.0
"""Seconds to wait for an answer of a gallery's database; as the service waits."""

_PAGE = 1000
"""Number of items read from the bundle at a time."""


def open_gallery(
    path: str | os.PathLike[str],
    *,
    provider: ProviderChoice = "auto",
    trusted: Collection[str] = (),
) -> Gallery:
    """Open a local gallery that ``vouch-build`` or `build` made.

    For a gallery in a database, set ``VOUCH_POSTGRES_URI`` or ``VOUCH_MILVUS_URI``.

    Parameters
    ----------
    path : a bundle, or a directory of bundles; its current bundle is opened.
    provider : where the encoder runs: ``auto``, ``cpu``, ``cuda``, ``tensorrt``, ``openvino`` or
        ``coreml``.
    trusted : public keys; one of them must have signed the bundle. Empty accepts unsigned bundles.

    Raises
    ------
    TypeError : ``path`` is not a path.
    ValueError : ``path`` is the address of a service, or ``provider`` is unknown.
    VouchError : the bundle is missing or was changed, or its encoder does not run here.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"path: received {type(path).__name__} {repr(path)[:80]}, wanted the path of a folder, "
            "such as 'bundles/mine'."
        )
    require_path("path", path)
    if str(path).lower().startswith(("http://", "https://")):
        raise ValueError(
            f"path: received the address {path!r}, wanted a folder. A service is reached by "
            "vouch.Client(address).open(name)."
        )
    providers = get_args(ProviderChoice)
    if provider not in providers:
        *others, last = map(repr, providers)
        raise ValueError(f"provider: received {provider!r}, wanted {', '.join(others)} or {last}.")
    return opened(Path(path).expanduser(), provider, trusted)


def opened(
    path: Path,
    provider: ProviderChoice = "auto",
    trusted: Collection[str] = (),
    database: str | None = None,
) -> Gallery:
    """Open a local gallery, see `open_gallery`.

    Parameters
    ----------
    database : address of the gallery's database. The variables of the service, for example
        ``VOUCH_POSTGRES_URI``, override it.
    """
    access = DatabaseAccess.of_environment(database, _DATABASE_TIMEOUT_S)
    return Gallery(open_bundle(path, provider, access=access, trusted=trusted))


class _Asked(NamedTuple):
    """An embedded query, and its description in the answer."""

    query_id: str
    predictive: Predictive
    where: Filter | None
    image: schemas.QueryImage | None
    text: schemas.QueryText | None
    started: float
    seconds: dict[str, float]


class Gallery:
    """A local gallery. Threads can share it; close it after use.

    An open gallery does not show later changes of its folder. To see these changes, open the
    gallery again.
    """

    def __init__(self, bundle: Bundle) -> None:
        self._opened: Bundle | None = bundle
        self._name, self._description = bundle.name, bundle.description
        self._bundle_id, self._n_items = bundle.manifest.id, bundle.retriever.gallery.n_items
        root = bundle.root
        self._operator = OperatorSettings() if root is None else read_operator(root)

    @property
    def name(self) -> str:
        """The name of the gallery."""
        return self._name

    @property
    def bundle_id(self) -> str:
        """The id of the bundle. Every change that can affect answers changes the id."""
        return self._bundle_id

    @property
    def description(self) -> str:
        """The description of the gallery's content."""
        return self._description

    @property
    def labels(self) -> Sequence[str]:
        """The distinct labels of the gallery's items."""
        return tuple(self._bundle.retriever.gallery.held_labels)

    def __len__(self) -> int:
        return self._n_items

    def __repr__(self) -> str:
        if self._opened is None:
            return f"<Gallery {self.name!r}, closed>"
        return f"<Gallery {self.name!r}, {len(self)} items of {len(self.labels)} labels>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the encoder and the files of the bundle; later searches raise `RuntimeError`."""
        bundle, self._opened = self._opened, None
        if bundle is None:
            return
        bundle.retriever.encoder.close()
        for part in (bundle.live, bundle.hold):
            if part is not None:
                part.close()

    @property
    def _bundle(self) -> Bundle:
        """The open bundle.

        Raises
        ------
        RuntimeError : the gallery is closed.
        """
        if self._opened is None:
            raise RuntimeError(f"The gallery {self.name!r} is closed. Open it again.")
        return self._opened

    def search(self, image: ImageInput, k: int = 10, **options: Unpack[QueryOptions]) -> Answer:
        """Find the items most similar to an image, with match probabilities and a verdict.

        Parameters
        ----------
        image : a path, bytes, an open file, a Pillow image or an array.
        k : number of results, 1 to 100.
        **options : see `service.schemas.keywords.QueryOptions`.

        Raises
        ------
        TypeError, ValueError : an argument is wrong; the message names it.
        OSError : the file cannot be read.
        VouchError : the image cannot be decoded, or the filter cannot be read.
        """
        checked = checked_options(k, options)
        return self._answer(image, checked)

    def search_text(self, text: str, k: int = 10, **options: Unpack[QueryOptions]) -> Answer:
        """Find the items most similar to a text. The gallery needs a text encoder.

        Parameters
        ----------
        text : the description of an image, 1 to 2,000 characters.
        k, **options : see `search`.

        Raises
        ------
        TypeError, ValueError : an argument is wrong; the message names it.
        VouchError : the gallery has no text encoder, the text is empty or too long, or the filter
            cannot be read.

        Examples
        --------
        >>> gallery.search_text("a red shoe", k=5).results  # doctest: +SKIP
        """
        checked, text = checked_options(k, options), checked_text(text)
        where = None if checked.filter is None else read_filter(checked.filter)
        retriever = self._bundle.retriever
        started = time.perf_counter()
        found = embed_text(retriever, text)
        seconds = {"encode": time.perf_counter() - started}
        described = schemas.QueryText(n_tokens=found.n_tokens, warnings=list(found.warnings))
        asked = _Asked(text_id(text), found.predictive, where, None, described, started, seconds)
        record = self._searched(retriever.for_kind("text"), asked, checked)
        return Answer.of(record, text, self.thumbnail)

    def search_many(
        self,
        images: str | os.PathLike[str] | Iterable[ImageInput],
        k: int = 10,
        *,
        progress: bool = False,
        n_jobs: int | None = None,
        errors: ErrorChoice = "keep",
        **options: Unpack[QueryOptions],
    ) -> Answers:
        """Search with many images.

        Parameters
        ----------
        images : a list of images as `search` takes them, or a folder of image files.
        progress : show a progress bar.
        n_jobs : number of threads; if None, one thread runs for each processor.
        errors : ``keep`` returns a `Failure` for an image whose search fails; ``raise`` raises the
            error.

        Raises
        ------
        TypeError, ValueError : an argument is wrong; the message names it.
        OSError, VouchError : a search fails, and ``errors`` is ``raise``.
        """
        checked = checked_options(k, options)

        def one(image: ImageInput) -> Answer:
            return self._answer(image, checked)

        n_jobs = usable_processors() if n_jobs is None else n_jobs
        return in_threads(one, images_of(images), n_jobs, errors, progress=progress)

    def _answer(self, image: ImageInput, options: schemas.SearchFields) -> Answer:
        _, data = image_file(image)
        started = time.perf_counter()
        retriever = self._bundle.retriever
        preprocessing = retriever.encoder.metadata.preprocessing
        where = None if options.filter is None else read_filter(options.filter)
        decoded = decode_image(data, smallest_side=preprocessing.smallest_side)
        at_pixels = time.perf_counter()
        predictive = retriever.embed(preprocessing(decoded.pixels)[None])[0]
        at_embedding = time.perf_counter()
        seconds = {"decode": at_pixels - started, "encode": at_embedding - at_pixels}
        described = schemas.QueryImage(
            format=decoded.format,
            width=decoded.width,
            height=decoded.height,
            warnings=list(decoded.warnings),
        )
        query_id = hashlib.sha256(data).hexdigest()
        asked = _Asked(query_id, predictive, where, described, None, started, seconds)
        record = self._searched(retriever, asked, options)
        return Answer.of(record, query_name(image), self.thumbnail)

    def _searched(
        self, retriever: Retriever, asked: _Asked, options: schemas.SearchFields
    ) -> schemas.SearchAnswer:
        share, origin = self._absent_share(options.expected_absent)
        answer = retriever.find(
            asked.predictive,
            options.limit,
            options.alpha,
            options.coverage,
            where=asked.where,
            diversity=Diversity(options.group_by == "label", options.duplicate_similarity),
            expected_absent=share,
            source=options.source,
            filter_means=options.filter_means,
            order=options.order,
        )
        seconds = asked.seconds | answer.seconds
        seconds["total"] = time.perf_counter() - asked.started
        return serializers.search_answer(
            answer,
            retriever,
            serializers.bundle_state(
                self.bundle_id, retriever.calibration, retriever.stale, retriever.not_guaranteed
            ),
            gallery=self.name,
            request_id=uuid4().hex,
            query_id=asked.query_id,
            image=asked.image,
            text=asked.text,
            share_origin=origin,
            adopted_at=self._operator.adopted_at,
            urls=lambda _: (None, None),
            seconds=seconds,
            refused=serializers.is_refused(answer, options.on_uncertain),
        )

    def _absent_share(self, requested: float | None) -> tuple[float | None, schemas.ShareOrigin]:
        """Return the share of absent queries and its origin, by the same rule as the service."""
        if requested is not None:
            return requested, "request"
        if self._operator.absent_share is not None:
            return self._operator.absent_share, "adopted"
        return None, "bundle"

    def items(self) -> Iterator[schemas.ItemDetail]:
        """Yield all items in the order of their ids.

        For a table of the items, use ``vouch.to_pandas(gallery.items())``.
        """
        gallery = self._bundle.retriever.gallery
        rows = gallery.page(None, _PAGE)
        while len(rows):
            for item in gallery.items(rows):
                yield schemas.ItemDetail(
                    id=item.id,
                    label=item.label,
                    metadata=dict(item.metadata),
                    thumbnail_url=None,
                    preview_url=None,
                )
            rows = gallery.page(int(rows[-1]), _PAGE)

    def thumbnail(self, item_id: str) -> Picture | None:
        """Return the picture of an item and its media type; None if there is none."""
        if not self._bundle.retriever.encoder.metadata.takes_images:
            return None
        try:
            thumbnail = self._bundle.retriever.gallery.thumbnail(item_id)
        except ItemNotFound:
            return None
        return thumbnail.data, thumbnail.media_type
