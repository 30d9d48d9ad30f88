"""Text towers through every door that has them: real libraries, random weights of real kinds."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from index_builder.commands.app import app
from index_builder.foreign_encoders.bundle import write_encoder
from index_builder.foreign_encoders.card import CARD_FILE
from index_builder.foreign_encoders.choices import Door, Pooling
from index_builder.foreign_encoders.doors import DOORS, EncoderChoices
from index_builder.foreign_encoders.parity import PARITY_TEXTS, ParityImage
from model_store.bundles.manifest import ENCODER_FILE
from model_store.encoder.contract import Embeddings, Tokens
from model_store.encoder.onnx import OnnxEncoder
from model_store.encoder.text import OnnxTextEncoder
from model_store.errors import ConfigError, EncoderSourceError, ParityError, VouchError

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("quiet")]

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
VISION = {"image_size": 32, "patch_size": 8, **SMALL}
TOWER = {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8}
TEXT = {"context_length": 40, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}


def open_clip_model(place: Path, **text: Any) -> str:
    import open_clip

    name = f"vouch-text-{place.parent.name}"
    place.mkdir()
    config = {"embed_dim": 16, "vision_cfg": TOWER, "text_cfg": {**TEXT, **text}}
    (place / f"{name}.json").write_text(json.dumps(config))
    open_clip.add_model_config(place)
    return name


def with_library_tokenizer(place: Path) -> str:
    words = place.with_name("words")
    words_of_one_language(words)
    return open_clip_model(
        place,
        vocab_size=300,
        hf_tokenizer_name=str(words),
        tokenizer_kwargs={"clean": "canonicalize"},
    )


def words_of_one_language(place: Path, **options: Any) -> None:
    """Write a tokenizer of pieces of words, as SigLIP's is, which ends a text and marks nothing."""
    import transformers as hf
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram
    from tokenizers.normalizers import Lowercase
    from tokenizers.pre_tokenizers import Metaspace
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import UnigramTrainer

    tokenizer = Tokenizer(Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Metaspace()
    trainer = UnigramTrainer(
        vocab_size=300, special_tokens=["<pad>", "<eos>", "<unk>"], unk_token="<unk>"
    )
    tokenizer.train_from_iterator(["a photo of a cat", "red shoes", "two dogs, one cat"], trainer)
    tokenizer.post_processor = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=24,
        model_input_names=["input_ids"],
        **options,
    ).save_pretrained(place)


def siglip(place: Path) -> str:
    import transformers as hf

    text = {**SMALL, "vocab_size": 300, "max_position_embeddings": 24, "projection_size": 32}
    config = hf.SiglipConfig(vision_config=VISION, text_config=text)
    hf.SiglipModel(config).save_pretrained(place)
    hf.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(place)
    words_of_one_language(place)
    return str(place)


def clip(place: Path) -> str:
    import transformers as hf
    from open_clip.tokenizer import SimpleTokenizer

    simple = SimpleTokenizer()
    special = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {special.get(piece, piece): n for piece, n in simple.encoder.items()}
    merges = sorted(simple.bpe_ranks, key=lambda pair: simple.bpe_ranks[pair])
    hf.CLIPTokenizer(vocab=vocabulary, merges=merges).save_pretrained(place)
    text = {**SMALL, "vocab_size": 49408, "bos_token_id": 49406, "eos_token_id": 49407}
    config = hf.CLIPConfig(vision_config=VISION, text_config=text, projection_dim=16)
    hf.CLIPModel(config).save_pretrained(place)
    hf.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(place)
    return str(place)


@pytest.mark.parametrize(
    ("door", "model", "length", "cleaning"),
    [
        ("open_clip", open_clip_model, 40, "lower"),
        ("open_clip", with_library_tokenizer, 40, "canonicalize"),
        ("hf", clip, 77, "none"),
        ("hf", siglip, 24, "none"),
    ],
)
def test_a_library_and_vouch_embed_texts_alike(
    door: str,
    model: Callable[[Path], str],
    length: int,
    cleaning: str,
    tmp_path: Path,
    images: list[ParityImage],
) -> None:
    choices = EncoderChoices(untrained=door != "hf", text=True)
    source = DOORS[Door(door)](model(tmp_path / "model"), choices)
    written = write_encoder(tmp_path / "e", source, images)
    assert source.text is not None
    assert written.text is not None
    assert written.text.parity.smallest_cosine >= 0.9999
    assert written.text.parity.smallest_centred_cosine is not None
    encoder = OnnxTextEncoder(tmp_path / "e")
    assert (encoder.context_length, encoder.metadata.cleaning) == (length, cleaning)
    assert encoder.dim == written.dim
    image_encoder = OnnxEncoder(tmp_path / "e" / ENCODER_FILE, "cpu")
    assert encoder.metadata.image_encoder == image_encoder.fingerprint
    texts = ["Two dogs, one CAT", "", "犬", "x " * 900]
    assert {"", "ソファの上の猫"} < set(PARITY_TEXTS)
    tokens = encoder.tokenize(texts)
    assert tokens.truncated.tolist() == [False, False, False, True]
    found = encoder.encode(tokens).mean
    for row, text in enumerate(texts):
        wanted = source.text.reference(text)
        cosine = found[row] @ wanted / np.linalg.norm(found[row]) / np.linalg.norm(wanted)
        assert cosine >= 0.9999, text
    card = json.loads((tmp_path / "e" / CARD_FILE).read_text())["text"]
    assert card["fingerprint"] == encoder.fingerprint
    assert card["parity"]["n_images"] == len(PARITY_TEXTS)


class TestWhatHasNoTower:
    def test_it_is_said(self, tmp_path: Path) -> None:
        from tests.index_builder.foreign_encoders.test_doors import vit

        place = vit(tmp_path / "model")
        with pytest.raises(EncoderSourceError, match="model has no text tower"):
            DOORS[Door.hf](place, EncoderChoices(text=True))

    def test_images_pooled_otherwise_are_no_neighbours_of_texts(self, tmp_path: Path) -> None:
        name = open_clip_model(tmp_path / "model")
        choices = EncoderChoices(untrained=True, text=True, pooling=Pooling.mean)
        with pytest.raises(EncoderSourceError, match="With --pooling mean, image vectors cannot"):
            DOORS[Door.open_clip](name, choices)

    def test_a_tokenizer_that_cannot_be_had(self, tmp_path: Path) -> None:
        name = open_clip_model(tmp_path / "model", hf_tokenizer_name="/no/tokenizer")
        with pytest.raises(EncoderSourceError, match="OpenCLIP cannot load the tokenizer"):
            DOORS[Door.open_clip](name, EncoderChoices(untrained=True, text=True))

    def test_a_tokenizer_without_words(self, tmp_path: Path) -> None:
        place = clip(tmp_path / "model")
        for file in (*Path(place).glob("*token*"), *Path(place).glob("vocab*")):
            file.unlink()
        with pytest.raises(EncoderSourceError, match="has no words: its files are missing"):
            DOORS[Door.hf](place, EncoderChoices(text=True))

    def test_one_that_drops_tokens_at_random(self, tmp_path: Path) -> None:
        options = {"reduction_mask": "random"}
        name = open_clip_model(tmp_path / "model", tokenizer_kwargs=options)
        with pytest.raises(EncoderSourceError, match="cannot be stored as a file"):
            DOORS[Door.open_clip](name, EncoderChoices(untrained=True, text=True))

    def test_the_library_is_not_installed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = open_clip_model(tmp_path / "model")
        monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
        with pytest.raises(ConfigError, match=r"pip install '\.\[text\]'"):
            DOORS[Door.open_clip](name, EncoderChoices(untrained=True, text=True))

    def test_doors_that_never_have_one(self) -> None:
        result = CliRunner().invoke(app, ["encoder", "--timm", "test_vit", "--text"])
        assert isinstance(result.exception, VouchError)
        assert "--text needs --open-clip, --hf or --torch" in str(result.exception)


class TestAModule:
    CODE = """
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

class Two(torch.nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.images = torch.nn.Linear(3, 6)
        self.text_tower = torch.nn.Sequential(
            torch.nn.Embedding(4, dim), torch.nn.Flatten(), torch.nn.Linear(5 * dim, dim)
        )
        self.tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "a": 1, "cat": 2, "photo": 3}, "[UNK]"))
        self.tokenizer.pre_tokenizer = Whitespace()
        self.tokenizer.enable_truncation(5)
        self.tokenizer.enable_padding(length=5)

    def forward(self, images):
        return self.images(images.mean((2, 3)))

class Certain(torch.nn.Module):
    def __init__(self, tower):
        super().__init__()
        self.tower = tower
    def forward(self, ids):
        mean = self.tower(ids)
        return mean, mean.square() + 0.5

def two():
    torch.manual_seed(0)
    return Two()

def uncertain():
    module = two()
    module.text_tower = Certain(module.text_tower)
    return module

def other_space():
    torch.manual_seed(0)
    return Two(7)

def any_length():
    module = two()
    module.tokenizer.no_padding()
    return module

def no_tokenizer():
    module = two()
    module.tokenizer = 7
    return module

class Made(torch.nn.Module):
    def __init__(self, made):
        super().__init__()
        self.words, self.made = torch.nn.Embedding(4, 6), made
    def forward(self, ids):
        return self.made(self.words(ids))

def towered(made):
    module = two()
    module.text_tower = Made(made)
    return module

def one_direction():
    return towered(lambda words: 0 * words.sum(1) + torch.ones(6))

def invalid():
    return towered(lambda words: words.sum(1) * float("nan"))

def not_pooled():
    return towered(lambda words: words)

def longer():
    return towered(lambda words: words.sum(1) + torch.ones(9) @ words)

def few_words():
    module = two()
    module.text_tower[0] = torch.nn.Embedding(2, 6)
    return module

def equal_images():
    module = two()
    module.forward = lambda images: 0 * images.mean((2, 3)).repeat(1, 2) + torch.ones(6)
    return module

def no_tower():
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
"""

    def write(self, factory: str, place: Path, images: list[ParityImage]) -> OnnxTextEncoder:
        (place / "mine.py").write_text(self.CODE)
        how = '{"input_size": [3, 8, 8], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}'
        (place / "config.json").write_text(how)
        source = DOORS[Door.torch](f"{place / 'mine.py'}:{factory}", EncoderChoices(text=True))
        write_encoder(place / "e", source, images)
        return OnnxTextEncoder(place / "e")

    def test_it_brings_its_own(self, tmp_path: Path, images: list[ParityImage]) -> None:
        encoder = self.write("two", tmp_path, images)
        assert (encoder.dim, encoder.context_length) == (6, 5)
        found = encoder.encode(encoder.tokenize(["a photo", "a cat"]))
        assert not found.variance.any()
        assert np.abs(found.mean[0] - found.mean[1]).max() > 0.1

    def test_with_a_variance_of_its_own(self, tmp_path: Path, images: list[ParityImage]) -> None:
        encoder = self.write("uncertain", tmp_path, images)
        found = encoder.encode(encoder.tokenize(["a photo"]))
        np.testing.assert_allclose(found.variance, found.mean**2 + 0.5, rtol=1e-5)
        assert encoder.metadata.posterior == "own"

    @pytest.mark.parametrize(
        ("factory", "reason"),
        [
            ("other_space", "vectors of 7 numbers, but the image tower gives 6"),
            ("any_length", "pad and truncate to one length"),
            ("no_tokenizer", "`tokenizer` a int; wanted"),
            ("no_tower", "mine.py:no_tower has no text tower"),
            ("one_direction", "vectors of the same direction for all texts"),
            ("invalid", "not finite, or only zeros, for the text 'a photo of a cat'"),
            ("not_pooled", r"an array of shape \(5, 6\) for a text; wanted a vector"),
            ("longer", "does not take the tokens of 'a photo of a cat'. RuntimeError"),
            ("few_words", "does not take the tokens of 'a photo of a cat'. IndexError"),
        ],
    )
    def test_what_is_no_tower(
        self, factory: str, reason: str, tmp_path: Path, images: list[ParityImage]
    ) -> None:
        with pytest.raises(EncoderSourceError, match=reason):
            self.write(factory, tmp_path, images)
        assert not (tmp_path / "e").exists()

    def test_equal_vectors_of_all_images_are_refused(
        self, tmp_path: Path, images: list[ParityImage]
    ) -> None:
        with pytest.raises(EncoderSourceError, match="of the same direction for different images"):
            self.write("equal_images", tmp_path, images)
        assert not (tmp_path / "e").exists()

    def test_without_the_option_it_stays_away(
        self, tmp_path: Path, images: list[ParityImage]
    ) -> None:
        self.write("two", tmp_path, images)
        source = DOORS[Door.torch](f"{tmp_path / 'mine.py'}:two", EncoderChoices())
        assert write_encoder(tmp_path / "e", source, images).text is None
        assert {path.name for path in (tmp_path / "e").iterdir()} == {ENCODER_FILE, CARD_FILE}

    def test_what_disagrees_is_refused(
        self, tmp_path: Path, images: list[ParityImage], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tokenize, encode = OnnxTextEncoder.tokenize, OnnxTextEncoder.encode

        def other_texts(self: OnnxTextEncoder, texts: Sequence[str]) -> Tokens:
            return tokenize(self, [text + " cat" for text in texts])

        monkeypatch.setattr(OnnxTextEncoder, "tokenize", other_texts)
        with pytest.raises(ParityError, match="The text '' has the tokens"):
            self.write("two", tmp_path, images)
        monkeypatch.undo()

        def last_first(self: OnnxTextEncoder, tokens: Tokens) -> Embeddings:
            found = encode(self, tokens)
            return found.at(slice(None, None, -1)) if len(found) > 1 else found

        monkeypatch.setattr(OnnxTextEncoder, "encode", last_first)
        with pytest.raises(ParityError, match="the smallest cosine is"):
            self.write("two", tmp_path, images)
        assert not (tmp_path / "e").exists()
