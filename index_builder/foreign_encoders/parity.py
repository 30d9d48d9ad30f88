"""Compares Vouch's vectors of real images and of texts with the library's vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from index_builder.datasets.image_files import LeftOut, image_files
from model_store.encoder.contract import Cleaning, Encoder
from model_store.encoder.text import OnnxTextEncoder
from model_store.errors import EncoderSourceError, ImageError, ParityError
from model_store.images import Preprocessing, decode_image

Reference = Callable[[Image.Image], NDArray[np.float32]]
"""A library's pipeline from an upright RGB image to the vector (D,) of the image."""

MIN_COSINE = 0.9999
"""Minimum cosine between Vouch's vector and the library's vector of an image."""

MIN_CENTRED_COSINE = 0.999
"""Minimum cosine between Vouch's vector and the library's vector of an image after centring.
Centring subtracts the mean over all images from each vector. Without centring, even wrong vectors
would agree if all vectors had nearly the same direction."""

_SAME_DIRECTION = 1e-5
"""Maximum rounding error: larger differences between unit vectors are not rounding errors."""

_ROUNDING = 1e-4
"""Maximum rounding error, relative to the largest absolute value of all vectors. If a vector
differs from the mean by less than this error, its centred cosine is not measured."""

MIN_IMAGES = 5
"""Minimum number of images. The export is checked with batches of up to five images."""

MOST_IMAGES = 32
"""Maximum number of images to compare. More images would take minutes and add nothing."""


@dataclass(frozen=True, slots=True)
class ParityImage:
    """An image for the comparison.

    Attributes
    ----------
    name : name of the file.
    data : content of the file.
    label : the first sub-folder; None without a sub-folder.
    """

    name: str
    data: bytes
    label: str | None = None

    @property
    def upright(self) -> Image.Image:
        """The upright RGB image, as input of a library's pipeline."""
        return ImageOps.exif_transpose(Image.open(BytesIO(self.data))).convert("RGB")


@dataclass(frozen=True, slots=True)
class Parity:
    """The agreement of both pipelines.

    Attributes
    ----------
    n_images : number of compared images or texts.
    smallest_cosine : minimum over all images or texts, see `MIN_COSINE`.
    smallest_centred_cosine : minimum over all images or texts, see `MIN_CENTRED_COSINE`. None if
        all embeddings are nearly equal, which is possible for untrained encoders.
    worst : name of the image with the smallest cosine.
    """

    n_images: int
    smallest_cosine: float
    smallest_centred_cosine: float | None
    worst: str

    @property
    def holds(self) -> bool:
        """True if both cosines are large enough."""
        centred = self.smallest_centred_cosine
        return self.smallest_cosine >= MIN_COSINE and (
            centred is None or centred >= MIN_CENTRED_COSINE
        )


def parity_images(folder: Path | None, most: int = MOST_IMAGES) -> list[ParityImage]:
    """Return real images from a folder, or the photographs of scikit-learn.

    Parameters
    ----------
    most : maximum number of images from the folder. The file names of these images are evenly
        spread over the sorted names of all files.

    Raises
    ------
    EncoderSourceError : the folder has fewer than `MIN_IMAGES` readable images.
    """
    if folder is None:
        return list(_sample_images())
    found: list[ParityImage] = []
    names = image_files(folder, LeftOut()) if folder.is_dir() else ()
    files = [folder / name for name in names]
    for path in files[:: max(1, len(files) // most)]:
        data = path.read_bytes()
        try:
            decode_image(data)
        except ImageError:
            continue
        name = path.relative_to(folder)
        label = name.parts[0] if len(name.parts) > 1 else None
        found.append(ParityImage(name.as_posix(), data, label))
    if len(found) < MIN_IMAGES:
        raise EncoderSourceError(
            f"{folder} has {len(found)} readable images; the comparison needs {MIN_IMAGES}."
        )
    return found[:most]


def labels_of(images: Sequence[ParityImage]) -> list[str] | None:
    """Return the images' labels; None if a label is missing, or if recall cannot be measured."""
    labels = [one.label for one in images if one.label is not None]
    if len(labels) < len(images) or not 1 < len(set(labels)) < len(labels):
        return None
    return labels


@cache
def _sample_images() -> tuple[ParityImage, ...]:
    """Return eight images: two photographs of scikit-learn, and three crops of each photograph."""
    from sklearn.datasets import load_sample_images  # noqa: PLC0415 - slow

    found = []
    for name, pixels in zip(("china", "flower"), load_sample_images().images, strict=True):
        whole = Image.fromarray(pixels)
        for size in ((640, 427), (301, 427), (640, 200), (97, 131)):
            file = BytesIO()
            whole.crop((0, 0, *size)).save(file, "PNG")
            found.append(ParityImage(f"{name} {size[0]} × {size[1]}", file.getvalue()))
    return tuple(found)


def prepared(images: Sequence[ParityImage], preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Return the images after preprocessing, (n, H, W, 3)."""
    decoded = (decode_image(one.data, None, preprocessing.smallest_side) for one in images)
    return np.stack([preprocessing(one.pixels) for one in decoded])


def require_parity(
    encoder: Encoder,
    reference: Reference,
    images: Sequence[ParityImage],
    pixels: NDArray[np.uint8],
) -> Parity:
    """Compare the mean embedding of each image with the library's vector.

    Parameters
    ----------
    pixels : the same images after preprocessing, see `prepared`.

    Raises
    ------
    ParityError : a cosine of an image is below `MIN_COSINE` or `MIN_CENTRED_COSINE`, or a
        vector is zero or not finite.
    """
    ours = encoder.encode(pixels, at_once=4).mean
    theirs = np.stack([reference(one.upright) for one in images])
    if ours.shape != theirs.shape:
        raise ParityError(
            f"The exported encoder gives vectors of {ours.shape[1]} numbers, but its source gives "
            f"{theirs.shape[1]}. Nothing was written."
        )
    for whose, vectors in (("source of the encoder", theirs), ("exported encoder", ours)):
        bad = [one.name for one, row in zip(images, vectors, strict=True) if not _is_sound(row)]
        if bad:
            raise ParityError(
                f"The {whose} gives numbers that are not finite, or only zeros, for {len(bad)} of "
                f"{len(images)} images, for example {bad[0]!r}. Check its weights and its "
                "preprocessing. Nothing was written."
            )
    parity = agreement(ours, theirs, [one.name for one in images])
    if not parity.holds:
        raise ParityError(
            f"The vectors of the exported encoder differ from those of its source: the smallest "
            f"cosine is {parity.smallest_cosine:.6f}, for {parity.worst!r} (wanted {MIN_COSINE}), "
            f"and {parity.smallest_centred_cosine} after subtracting the mean (wanted "
            f"{MIN_CENTRED_COSINE}). Nothing was written."
        )
    return parity


def _is_sound(vector: NDArray[np.float32]) -> bool:
    return bool(np.isfinite(vector).all() and vector.any())


def require_telling(reference: Reference, preprocessing: Preprocessing) -> None:
    """Refuse an encoder that gives invalid vectors, or equal vectors for different images.

    Raises
    ------
    EncoderSourceError : a vector is zero or not finite, or different images have the same vector.
    """
    noise = np.random.default_rng(0).integers(0, 256, preprocessing.shape, np.uint8)
    grey = np.full(preprocessing.shape, 128, np.uint8)
    vectors = np.stack([reference(Image.fromarray(one)) for one in (noise, grey)])
    if not np.isfinite(vectors).all():
        raise EncoderSourceError(
            "The encoder gives numbers that are not finite (NaN or infinity). Check its weights "
            "and its preprocessing. If it is in half precision, export it in float32."
        )
    if not vectors.any(axis=1).all():
        raise EncoderSourceError(
            "The encoder gives a vector of zeros, which has no direction. Check its weights and "
            "the chosen output (`--output`)."
        )
    if of_one_direction(vectors):
        raise EncoderSourceError(
            "The encoder gives vectors of the same direction for different images. Check its "
            "weights and the chosen output (`--output`)."
        )


def of_one_direction(vectors: NDArray[np.float32]) -> bool:
    """Return whether n vectors (n, F) all have the same direction, or the opposite direction."""
    directions = vectors.astype(np.float64)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    apart = [np.abs(directions - sign * directions[0]).max(axis=1) for sign in (1, -1)]
    return bool((np.minimum(*apart) <= _SAME_DIRECTION).all())


def agreement(
    ours: NDArray[np.float32], theirs: NDArray[np.float32], names: Sequence[str]
) -> Parity:
    """Compare two encoders' vectors (n, D) of the same n images or texts."""
    one, other = ours.astype(np.float64), theirs.astype(np.float64)
    cosines = _cosines(one, other)
    spread = other - other.mean(0)
    telling = np.abs(spread).max(1) > _ROUNDING * np.abs(other).max()
    centred = _cosines((one - other.mean(0))[telling], spread[telling])
    worst = int(np.argmin(cosines))
    smallest = float(centred.min()) if telling.any() else None
    return Parity(len(names), float(cosines[worst]), smallest, names[worst])


def _cosines(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine between row i of ``a`` and row i of ``b``, for all i; −1 replaces NaN."""
    norms = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines: NDArray[np.float64] = np.nan_to_num((a * b).sum(1) / norms, nan=-1.0)
    return cosines


PARITY_TEXTS = (
    "a photo of a cat",
    "A Photo of TWO cats!",
    "red shoe, size 42½",
    "",
    "  white\tspace \n everywhere  ",
    "it isn't what they've said: “naïve” – café",
    "Straßenbahn über dem Fluß",
    "рыжая кошка на диване",
    "ソファの上の猫",
    "قطة على الأريكة",
    "😀 👩\u200d👩\u200d👧 family",
    "fish &amp; chips &lt;b&gt; snake_case_name",
    "schÃ¶n ＦＵＬＬ ﬁne",
    "a very long description of nothing in particular, " * 60,
)
"""Texts for the comparison: texts in several scripts, an empty text, a text longer than any
context, and characters that libraries clean differently (entities, ligatures, wrongly decoded
characters)."""


@dataclass(frozen=True)
class TextSource:
    """A text tower from a library, before it is written.

    Attributes
    ----------
    write : function of a directory and the fingerprint of the image encoder. The function writes
        the ONNX file, with metadata, and the tokenizer.
    cleaning : kind of cleaning of a text before tokenizing.
    ids : the library's pipeline from a text to token ids (L,).
    reference : the library's pipeline from a text to a vector (D,).
    """

    write: Callable[[Path, str], None]
    cleaning: Cleaning
    ids: Callable[[str], NDArray[np.int64]]
    reference: Callable[[str], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A text tower that was written, and how well it agrees with the library's text tower."""

    fingerprint: str
    context_length: int
    cleaning: Cleaning
    parity: Parity


def write_text_encoder(
    directory: Path, source: TextSource, image_encoder: str, dim: int
) -> WrittenText:
    """Write a text tower to the directory of its encoder, and compare the tower with its source.

    Parameters
    ----------
    image_encoder, dim : fingerprint of the image encoder, and dimension of its vectors.

    Raises
    ------
    ParityError : the tokens or the vector of a text differ from those of the library.
    EncoderSourceError : the tower or its graph cannot be run, its vectors do not tell texts apart,
        or vectors of texts and of images differ in size.
    """
    theirs = _vectors_of(source)
    source.write(directory, image_encoder)
    try:
        encoder = OnnxTextEncoder(directory)
    except Exception as error:  # ONNX Runtime's
        raise EncoderSourceError(f"ONNX Runtime cannot load the text tower: {error}") from error
    if encoder.dim != dim:
        raise EncoderSourceError(
            f"The text tower gives vectors of {encoder.dim} numbers, but the image tower gives "
            f"{dim}. Such vectors cannot be compared."
        )
    parity = _parity(encoder, source, theirs)
    return WrittenText(encoder.fingerprint, encoder.context_length, source.cleaning, parity)


def _vectors_of(source: TextSource) -> NDArray[np.float32]:
    """Return the library's vectors (n, D) of `PARITY_TEXTS`.

    Raises
    ------
    EncoderSourceError : the tower does not take a text, gives no vector (D,) or an invalid vector,
        or gives vectors of the same direction for all texts.
    """
    found = []
    for text in PARITY_TEXTS:
        try:
            vector = source.reference(text)
        except Exception as error:  # the library's or the user's own code
            raise EncoderSourceError(
                f"The text tower does not take the tokens of {text[:50]!r}. "
                f"{type(error).__name__}: {error}"
            ) from error
        if vector.ndim != 1:
            raise EncoderSourceError(
                f"The text tower gives an array of shape {vector.shape} for a text; wanted a "
                "vector, (D,)."
            )
        if not _is_sound(vector):
            raise EncoderSourceError(
                "The text tower gives numbers that are not finite, or only zeros, for the text "
                f"{text[:50]!r}. Check its weights."
            )
        found.append(vector)
    vectors = np.stack(found)
    if of_one_direction(vectors):
        raise EncoderSourceError(
            "The text tower gives vectors of the same direction for all texts. Check its weights "
            "and its tokenizer."
        )
    return vectors


def _parity(encoder: OnnxTextEncoder, source: TextSource, theirs: NDArray[np.float32]) -> Parity:
    tokens = encoder.tokenize(PARITY_TEXTS)
    for text, ours in zip(PARITY_TEXTS, tokens.ids, strict=True):
        wanted = source.ids(text)
        if not np.array_equal(ours, wanted):
            raise ParityError(
                f"The text {text[:50]!r} has the tokens {_some(ours)}, but {_some(wanted)} in its "
                "library. Nothing was written."
            )
    together = encoder.encode(tokens).mean
    alone = [encoder.encode(encoder.tokenize([text])).mean[0] for text in PARITY_TEXTS]
    for vectors in (together, np.stack(alone)):
        parity = agreement(vectors, theirs, PARITY_TEXTS)
        if not parity.holds:
            raise ParityError(
                "The vectors of the exported text tower differ from those of its source: the "
                f"smallest cosine is {parity.smallest_cosine:.6f}, for {parity.worst[:50]!r} "
                f"(wanted {MIN_COSINE}), and {parity.smallest_centred_cosine} after subtracting "
                f"the mean (wanted {MIN_CENTRED_COSINE}). Nothing was written."
            )
    return parity


def _some(ids: NDArray[np.int64]) -> str:
    return f"{ids[:12].tolist()}… ({len(ids)})"
