"""Compares Vouch's vectors of texts with the library's vectors; see `parity` for images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index_builder.foreign_encoders.parity import (
    MIN_CENTRED_COSINE,
    MIN_COSINE,
    Parity,
    agreement,
)
from model_store.encoder.contract import Cleaning
from model_store.encoder.text import OnnxTextEncoder
from model_store.errors import EncoderSourceError, ParityError

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
    EncoderSourceError : the graph cannot be run, or vectors of texts and of images differ in size.
    """
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
    return WrittenText(
        encoder.fingerprint, encoder.context_length, source.cleaning, _parity(encoder, source)
    )


def _parity(encoder: OnnxTextEncoder, source: TextSource) -> Parity:
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
    theirs = np.stack([source.reference(text) for text in PARITY_TEXTS])
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
