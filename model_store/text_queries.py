"""Text queries, for encoders with a text encoder: the same search with a separate calibration.

The calibration of images is not valid for texts, because their similarities have another
distribution.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Unpack

from model_store.answers import Answer
from model_store.encoder.contract import TextEncoder
from model_store.errors import InvalidText, TextUnavailable
from model_store.predictive import Predictive
from model_store.retriever import FindOptions, Retriever
from model_store.verdicts import MAX_TEXT_CHARACTERS


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """A text as a query.

    Attributes
    ----------
    predictive : predictive distribution of the text. The distribution has no uncertainty if the
        text encoder gives no variance.
    n_tokens : number of tokens that were used, including the start and end tokens.
    warnings : sentences about the text, for example if it was cut.
    """

    predictive: Predictive
    n_tokens: int
    warnings: tuple[str, ...]


def text_encoder(retriever: Retriever) -> TextEncoder:
    """Return the text encoder.

    Raises
    ------
    TextUnavailable : there is none.
    """
    if retriever.text is None:
        raise TextUnavailable(
            "The gallery's encoder has no text encoder, so text queries are not possible. Send an "
            "image, or index the gallery with an encoder from "
            "`vouch-build encoder --open-clip … --text` or `--hf … --text`."
        )
    return retriever.text


def embed_text(retriever: Retriever, text: str) -> EmbeddedText:
    """Embed a text as a query.

    Raises
    ------
    TextUnavailable : the gallery has no text encoder, or its libraries are not installed.
    InvalidText : the text is empty, longer than `MAX_TEXT_CHARACTERS`, or has invalid characters.
    """
    encoder = text_encoder(retriever)
    _require_words(text)
    tokens = encoder.tokenize([text])
    predictive = retriever.for_kind("text").predictives(encoder.encode(tokens))[0]
    cut = (
        f"The encoder reads at most {encoder.context_length} tokens. The text has more tokens, so "
        "its end was ignored. Use fewer words."
    )
    warnings = (cut,) if tokens.truncated[0] else ()
    return EmbeddedText(predictive, int(tokens.mask[0].sum()), warnings)


def text_id(text: str) -> str:
    """Return the id of a text query: a hash of the text."""
    return hashlib.sha256(b"text" + text.encode(errors="surrogatepass")).hexdigest()


def search_text(
    retriever: Retriever,
    text: str,
    limit: int = 10,
    **options: Unpack[FindOptions],
) -> Answer:
    """Search with a text; options as in `Retriever.find`.

    The verdict is ``not_calibrated`` until `vouch-build calibrate BUNDLES --captions` has run.

    Raises
    ------
    TextUnavailable, InvalidText : see `embed_text`.
    OrderUnavailable : the gallery is not calibrated for texts, so there are no probabilities for
        the order.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = search_text(bundle.retriever, "a red chair", limit=5)
    """
    return retriever.find(embed_text(retriever, text).predictive, limit, **options)


def _require_words(text: str) -> None:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidText(
            f"The text has {len(text):,} characters; at most {MAX_TEXT_CHARACTERS:,} are allowed. "
            "Describe the image in one sentence."
        )
    if not text.strip():
        raise InvalidText("The text is empty. Describe the image in a few words.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # an unpaired surrogate, which JSON can contain
        raise InvalidText(
            f"The text has an invalid character at position {error.start}. Send valid Unicode."
        ) from error
