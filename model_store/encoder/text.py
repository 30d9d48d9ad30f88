"""The text encoder: it embeds texts in the space of an image encoder.

The text encoder has two files, which are stored beside the image encoder. `tokenizer.json` is read
by the `tokenizers` library, with truncation and padding to the context length L.
`text_encoder.onnx` has this graph:

===================  ==============  =========================================================
name                 shape, type     meaning
===================  ==============  =========================================================
token_ids            (B, L) int64    ids from the tokenizer
attention_mask       (B, L) int64    1 for a token, 0 for padding; only if the graph reads it
embedding_mean       (B, D) float32  mean of the embedding, before normalisation
embedding_variance   (B, D) float32  its variance; missing if the encoder gives none
===================  ==============  =========================================================

The metadata of the graph has the fingerprints of its image encoder and its tokenizer.
"""

from __future__ import annotations

import hashlib
import html
import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from model_store.encoder.contract import (
    OUTPUT_NAMES,
    TEXT_ENCODER_FILE,
    TEXT_INPUT_NAMES,
    TEXT_METADATA_KEY,
    TOKENIZER_FILE,
    Cleaning,
    Embeddings,
    TextMetadata,
    Tokens,
)
from model_store.encoder.onnx import open_graph
from model_store.errors import BundleMismatch, EncoderContractError, TextUnavailable
from model_store.installation import how_to_install

if TYPE_CHECKING:
    from tokenizers import Tokenizer  # an extra


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


class OnnxTextEncoder:
    """The text encoder in a directory.

    The encoder runs on the CPU, which is fast enough for short texts. The encoder can be opened
    without the `tokenizers` library, so that image queries work. Without this library, every text
    is refused.

    Parameters
    ----------
    directory : directory of both files.
    threads : CPU threads of one call; 0 for all processors of this process.

    Raises
    ------
    EncoderContractError : inputs, outputs or metadata differ from the contract, or the tokenizer is
        missing.
    BundleMismatch : the tokenizer belongs to another encoder.
    """

    def __init__(self, directory: Path, threads: int = 0) -> None:
        content = (directory / TEXT_ENCODER_FILE).read_bytes()
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self._session = open_graph(content, "cpu", threads)
        inputs = {node.name: node.shape for node in self._session.get_inputs()}
        outputs = {node.name: node.shape for node in self._session.get_outputs()}
        text = self._session.get_modelmeta().custom_metadata_map.get(TEXT_METADATA_KEY)
        mean, variance = OUTPUT_NAMES[:2]
        if (
            not {TEXT_INPUT_NAMES[0]} <= set(inputs) <= set(TEXT_INPUT_NAMES)
            or mean not in outputs
            or text is None
        ):
            raise EncoderContractError(
                f"{TEXT_ENCODER_FILE} has inputs {sorted(inputs)} and outputs {sorted(outputs)}; "
                f"wanted {' and maybe '.join(TEXT_INPUT_NAMES)}, {mean}, and metadata "
                f"`{TEXT_METADATA_KEY}`. Make it again with `vouch-build encoder --text`."
            )
        self.metadata = TextMetadata.from_json(text)
        self.context_length = int(inputs[TEXT_INPUT_NAMES[0]][1])
        self.dim = int(outputs[mean][1])
        self._inputs = list(inputs)
        self._outputs = [name for name in (mean, variance) if name in outputs]
        self._tokenizer = self._open_tokenizer(directory / TOKENIZER_FILE)

    def _open_tokenizer(self, path: Path) -> Tokenizer | None:
        """Return the tokenizer; None if its library is not installed."""
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise EncoderContractError(
                f"{path} does not exist, but {TEXT_ENCODER_FILE} needs it. Make both again with "
                "`vouch-build encoder --text`."
            ) from error
        if hashlib.sha256(content).hexdigest() != self.metadata.tokenizer:
            raise BundleMismatch(
                f"{TOKENIZER_FILE} is not the tokenizer that {TEXT_ENCODER_FILE} was made with. "
                "Make both again with `vouch-build encoder --text`."
            )
        try:
            from tokenizers import Tokenizer  # noqa: PLC0415 - an extra
        except ImportError:
            return None
        tokenizer: Tokenizer = Tokenizer.from_str(content.decode())
        padding, truncation = tokenizer.padding, tokenizer.truncation
        lengths = padding and padding["length"], truncation and truncation["max_length"]
        if lengths != (self.context_length, self.context_length):
            raise EncoderContractError(
                f"{TOKENIZER_FILE} pads and truncates to {lengths} tokens; the encoder reads "
                f"{self.context_length}. Make both again with `vouch-build encoder --text`."
            )
        return tokenizer

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Clean, tokenize, cut and pad B texts.

        Raises
        ------
        TextUnavailable : `tokenizers` is not installed.
        """
        if self._tokenizer is None:
            raise TextUnavailable(
                f"The library `tokenizers` is not installed, so texts cannot be embedded. "
                f"{how_to_install('text')}"
            )
        # One text per call: for several texts, the library would start threads.
        read = [self._tokenizer.encode(cleaned(text, self.metadata.cleaning)) for text in texts]
        shape = len(read), self.context_length
        return Tokens(
            np.array([one.ids for one in read], np.int64).reshape(shape),
            np.array([one.attention_mask for one in read], np.int64).reshape(shape),
            np.array([bool(one.overflowing) for one in read], np.bool_),
        )

    def encode(self, tokens: Tokens) -> Embeddings:
        """Embed B texts; the mean is also used as features.

        If the encoder gives no variance, the variance is zero.
        """
        given = dict(zip(TEXT_INPUT_NAMES, (tokens.ids, tokens.mask), strict=True))
        found = self._session.run(self._outputs, {name: given[name] for name in self._inputs})
        mean = found[0]
        variance = found[1] if len(found) > 1 else np.zeros_like(mean)
        return Embeddings(mean, variance, mean)


def open_text_encoder(directory: Path, threads: int = 0) -> OnnxTextEncoder | None:
    """Open the text encoder in a directory; None if the directory has no text encoder."""
    if not (directory / TEXT_ENCODER_FILE).exists():
        return None
    return OnnxTextEncoder(directory, threads)


def cleaned(text: str, cleaning: Cleaning) -> str:
    """Clean a text before tokenization, as OpenCLIP does.

    Raises
    ------
    TextUnavailable : `ftfy` is not installed.
    """
    if cleaning == "none":
        return text
    try:
        import ftfy  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TextUnavailable(
            f"The library `ftfy` is not installed, so texts cannot be embedded. "
            f"{how_to_install('text')}"
        ) from error
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    if cleaning == "canonicalize":
        text = text.replace("_", " ").translate(_NO_PUNCTUATION)
    joined = " ".join(text.split())
    return joined if cleaning == "whitespace" else joined.lower()
