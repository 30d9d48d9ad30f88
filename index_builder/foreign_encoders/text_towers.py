"""Exports text towers in torch, with their tokenizers; see `model_store.encoder.text`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from index_builder.foreign_encoders.parity import TextSource
from index_builder.pipeline.export import traced
from model_store.encoder.contract import (
    OUTPUT_NAMES,
    TEXT_ENCODER_FILE,
    TEXT_INPUT_NAMES,
    TEXT_METADATA_KEY,
    TOKENIZER_FILE,
    Cleaning,
    TextMetadata,
)

_WORDS_OF_CLIP = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
"""Pattern of a word. CLIP's tokenizer merges bytes only within a word."""


def text_source(
    tower: nn.Module,
    tokenizer: Tokenizer,
    cleaning: Cleaning,
    ids: Callable[[str], NDArray[np.int64]],
    reference: Callable[[str], NDArray[np.float32]],
    *,
    reads_mask: bool = False,
) -> TextSource:
    """Return the source of a text tower.

    Parameters
    ----------
    tower : token ids (B, L) int64 → embedding mean (B, D). If the tower predicts its uncertainty,
        it returns embedding mean and embedding variance. If ``reads_mask`` is true, the tower also
        takes the attention mask.
    tokenizer : tokenizer that pads and truncates to L.
    cleaning, ids, reference : see `TextSource`.
    """

    def write(directory: Path, image_encoder: str) -> None:
        content = tokenizer.to_str().encode()
        (directory / TOKENIZER_FILE).write_bytes(content)
        read = tokenizer.encode_batch(["two", "texts"])
        examples = [torch.tensor([one.ids for one in read])]
        if reads_mask:
            examples.append(torch.tensor([one.attention_mask for one in read]))
        module = _Contract(tower)
        with torch.inference_mode():
            outputs = OUTPUT_NAMES[: len(module(*examples))]
        file = traced(module, tuple(examples), outputs, TEXT_INPUT_NAMES[: len(examples)])
        posterior = "deterministic" if len(outputs) == 1 else "own"
        metadata = TextMetadata(
            image_encoder, hashlib.sha256(content).hexdigest(), cleaning, posterior
        )
        onnx.helper.set_model_props(file, {TEXT_METADATA_KEY: metadata.to_json()})
        (directory / TEXT_ENCODER_FILE).write_bytes(file.SerializeToString(deterministic=True))

    return TextSource(write, cleaning, ids, reference)


class _Contract(nn.Module):
    """A tower whose output is a tuple of float32 tensors."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(
        self, token_ids: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        given = (token_ids,) if attention_mask is None else (token_ids, attention_mask)
        found = self.tower(*given)
        return tuple(one.float() for one in (found if isinstance(found, tuple) else (found,)))


def clip_tokenizer(simple: Any) -> Tokenizer:  # noqa: ANN401 - OpenCLIP's
    """Convert OpenCLIP's ``SimpleTokenizer``, without text cleaning, to a `Tokenizer`."""
    ranks: dict[tuple[str, str], int] = simple.bpe_ranks
    merges = sorted(ranks, key=lambda pair: ranks[pair])
    tokenizer = Tokenizer(
        BPE(
            vocab=dict(simple.encoder),
            merges=merges,
            continuing_subword_prefix="",
            end_of_word_suffix="</w>",
        )
    )
    tokenizer.pre_tokenizer = Sequence(
        [
            Split(Regex(_WORDS_OF_CLIP), "removed", invert=True),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    special = [simple.decoder[number] for number in simple.all_special_ids]
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in special])
    begin, end = special[:2]
    tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(one, simple.encoder[one]) for one in special]
    )
    tokenizer.enable_truncation(simple.context_length)
    tokenizer.enable_padding(length=simple.context_length, pad_id=0, pad_token=simple.decoder[0])
    return tokenizer


def library_tokenizer(tokenizer: Any, context_length: int) -> Tokenizer | None:  # noqa: ANN401
    """Return a transformers tokenizer as a `Tokenizer` that pads and truncates to a context length.

    None if the tokenizer is not based on the `tokenizers` library, or has no padding token.
    """
    behind = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(behind, Tokenizer) or tokenizer.pad_token_id is None:
        return None
    copy: Tokenizer = Tokenizer.from_str(behind.to_str())
    copy.enable_truncation(context_length, direction=tokenizer.truncation_side)
    copy.enable_padding(
        direction=tokenizer.padding_side,
        length=context_length,
        pad_id=tokenizer.pad_token_id,
        pad_token=tokenizer.pad_token,
    )
    return copy
