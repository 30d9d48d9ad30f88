"""Queries in words, for encoders with a text tower: the same search, judged by its own calibration.

What images were calibrated with says nothing of texts, whose similarities to images are others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

from model_store.answers import Answer
from model_store.encoder.contract import TextEncoder
from model_store.errors import InvalidText, TextUnavailable
from model_store.predictive import Predictive
from model_store.retriever import Retriever, SearchOptions
from model_store.verdicts import MAX_TEXT_CHARACTERS


@dataclass(frozen=True, slots=True)
class EmbeddedText:
    """A text as a query.

    Attributes
    ----------
    predictive : of the text; without an uncertainty where its encoder gives no variance.
    n_tokens : that were read, those for beginning and end with them.
    warnings : what is to be known of them, in sentences.
    """

    predictive: Predictive
    n_tokens: int
    warnings: tuple[str, ...]


def text_encoder(retriever: Retriever) -> TextEncoder:
    """Return the encoder of texts.

    Raises
    ------
    TextUnavailable : there is none.
    """
    if retriever.text is None:
        raise TextUnavailable(
            "The gallery's encoder has no text tower, so that nothing can be searched in words. "
            "Send an image; or have the gallery indexed with an encoder that was made by "
            "`vouch-build encoder --open-clip … --text` or `--hf … --text`."
        )
    return retriever.text


def embed_text(retriever: Retriever, text: str) -> EmbeddedText:
    """Embed a text as a query.

    Raises
    ------
    TextUnavailable : the gallery has no text encoder, or its libraries are not installed.
    InvalidText : there are no words, more than `MAX_TEXT_CHARACTERS`, or no valid characters.
    """
    encoder = text_encoder(retriever)
    _require_words(text)
    tokens = encoder.tokenize([text])
    predictive = retriever.for_kind("text").predictives(encoder.encode(tokens))[0]
    cut = (
        f"The encoder reads {encoder.context_length} tokens. The text has more, and its end had no "
        "part in the search: use fewer words."
    )
    warnings = (cut,) if tokens.truncated[0] else ()
    return EmbeddedText(predictive, int(tokens.mask[0].sum()), warnings)


def search_text(
    retriever: Retriever,
    text: str,
    limit: int = 10,
    **options: Unpack[SearchOptions],
) -> Answer:
    """Answer for a query in words; see `Retriever.find`, which takes the same options.

    The verdict is ``not_calibrated`` until `vouch-build calibrate BUNDLES --captions` has been run.

    Raises
    ------
    TextUnavailable, InvalidText : see `embed_text`.
    OrderUnavailable : texts are not calibrated, so that no probabilities exist to order by.

    Examples
    --------
    >>> bundle = open_bundle(Path("bundles/demo"))
    >>> answer = search_text(bundle.retriever, "a red chair", limit=5)
    """
    return retriever.find(embed_text(retriever, text).predictive, limit, **options)


def _require_words(text: str) -> None:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise InvalidText(
            f"The text has {len(text):,} characters; at most {MAX_TEXT_CHARACTERS:,} are taken. "
            "Say in a sentence what the image shows."
        )
    if not text.strip():
        raise InvalidText("The text is empty. Say in a few words what the image shows.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half of a pair, which JSON can hold
        raise InvalidText(
            f"The text has an invalid character at place {error.start}. Send valid Unicode."
        ) from error
