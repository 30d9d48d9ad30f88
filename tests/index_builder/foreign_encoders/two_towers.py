"""Two small towers, trained to put scikit-learn's digits where their names are (CLIP's loss).

Brought by `vouch-build encoder --torch two_towers.py:digits --text`, as a user's own module is.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn

NAMES = [
    ("zero", "null", "0"),
    ("one", "eins", "1"),
    ("two", "zwei", "2"),
    ("three", "drei", "3"),
    ("four", "vier", "4"),
    ("five", "fünf", "5"),
    ("six", "sechs", "6"),
    ("seven", "sieben", "7"),
    ("eight", "acht", "8"),
    ("nine", "neun", "9"),
]
FRAMES = ("{}", "the digit {}", "a photo of a {}", "a handwritten {}", "number {} on paper")
LENGTH = 8
TRAINED_FROM = 900
"""Images from here on are learned from; those before make a gallery."""


class ImageTower(nn.Module):
    """Standardised images (B, 3, 8, 8) to vectors (B, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.layers(images[:, 0].flatten(1))
        return vectors


class TextTower(nn.Module):
    """Token ids (B, L) to vectors (B, 32): words, less padding, through a linear layer."""

    def __init__(self, n_words: int) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(n_words, 32), nn.Linear(32, 32)

    def forward(self, ids: Tensor) -> Tensor:
        real = (ids > 0).float()[..., None]
        found: Tensor = self.last((self.words(ids) * real).sum(1) / (real.sum(1) + 1e-3))
        return found


class TwoTowers(nn.Module):
    """A module as the door wants it."""

    def __init__(self) -> None:
        super().__init__()
        words = " ".join([*FRAMES, *(" ".join(names) for names in NAMES)]).replace("{}", "").split()
        vocabulary = {"[PAD]": 0, "[UNK]": 1} | {
            word: 2 + n for n, word in enumerate(dict.fromkeys(words))
        }
        self.tokenizer = Tokenizer(WordLevel(vocabulary, "[UNK]"))
        self.tokenizer.normalizer, self.tokenizer.pre_tokenizer = Lowercase(), Whitespace()
        self.tokenizer.enable_truncation(LENGTH)
        self.tokenizer.enable_padding(length=LENGTH)
        self.images, self.text_tower = ImageTower(), TextTower(len(vocabulary))

    def forward(self, images: Tensor) -> Tensor:
        vectors: Tensor = self.images(images)
        return vectors


def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 8, 8) uint8 and labels (N,)."""
    found = load_digits()
    return (found.images * 15.9).astype(np.uint8), found.target


def caption(label: int, generator: np.random.Generator) -> str:
    """Name a digit, in one of two languages or as a numeral, in some frame."""
    return str(generator.choice(FRAMES)).format(generator.choice(NAMES[label]))


def digits() -> TwoTowers:
    """Train both towers: in each batch an image belongs to the texts that name its digit."""
    generator, images_and_labels = np.random.default_rng(0), pictures()
    images, labels = (part[TRAINED_FROM:] for part in images_and_labels)
    torch.manual_seed(0)
    module = TwoTowers()
    optimiser = torch.optim.Adam(module.parameters(), 3e-3)
    for _ in range(250):
        rows = generator.integers(len(images), size=64)
        texts = [caption(int(labels[row]), generator) for row in rows]
        ids = torch.tensor([module.tokenizer.encode(text).ids for text in texts])
        grey = torch.tensor(images[rows] / 255, dtype=torch.float32)[:, None]
        of_images = nn.functional.normalize(module((grey.repeat(1, 3, 1, 1) - 0.5) / 0.5))
        of_texts = nn.functional.normalize(module.text_tower(ids))
        own = torch.tensor(labels[rows])
        wanted = (own[:, None] == own).float()
        wanted /= wanted.sum(1, keepdim=True)
        logits = 10 * of_images @ of_texts.T
        loss = nn.functional.cross_entropy(logits, wanted)
        loss = loss + nn.functional.cross_entropy(logits.T, wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module.eval()
