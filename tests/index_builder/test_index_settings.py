"""The index that a configuration asks for is the one in the run directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from index_builder.commands.index import IndexOptions
from index_builder.configuration.build import load_config
from index_builder.datasets.images import from_arrays
from index_builder.pipeline.build import build_gallery
from index_builder.vectors.encoder import StoredEncoder, batch_size
from index_builder.vectors.images import VectorFile
from model_store.encoder.contract import Embeddings
from model_store.errors import ConfigError, OutputError
from model_store.gallery import FaissGallery, IndexSettings
from model_store.gallery.files.gallery import GALLERY_FILES
from tests.support.fakes import FakeEncoder

IMAGES = from_arrays(
    "x",
    np.random.default_rng(0).integers(0, 255, (300, 5, 5), dtype=np.uint8),
    [f"label-{number % 7}" for number in range(300)],
)


def test_an_index_of_another_kind_leaves_nothing_of_the_one_before(tmp_path: Path) -> None:
    encoder = FakeEncoder()
    work, tmp_path = tmp_path / "work", tmp_path / "staging"
    tmp_path.mkdir()
    build_gallery(work, tmp_path, encoder, IMAGES, IndexSettings("ivf_sq8", preview_side=500))
    assert FaissGallery(tmp_path).index.kind == "ivf_sq8"
    assert {path.name for path in tmp_path.iterdir()} == set(GALLERY_FILES)
    assert not work.exists()
    build_gallery(work, tmp_path, encoder, IMAGES)
    assert FaissGallery(tmp_path).index.kind == "flat"
    assert set(GALLERY_FILES) - {path.name for path in tmp_path.iterdir()} == {
        "directions.npy",
        "variance_scales.npy",
        "previews.sqlite",
    }


@pytest.mark.parametrize("labelled", [False, True])
def test_a_run_that_failed_leaves_nothing_to_the_next(tmp_path: Path, *, labelled: bool) -> None:
    """Its shards are of other images, by the same names."""
    encoder = FakeEncoder()
    pixels = np.arange(25, dtype=np.uint8).reshape(1, 5, 5)
    before, now = (from_arrays("x", one, ["owl"]) for one in (pixels[:, ::-1], 10 * pixels))
    with pytest.raises(OutputError):
        build_gallery(tmp_path / "work", tmp_path / "not there", encoder, before)
    (tmp_path / "staging").mkdir()
    build_gallery(tmp_path / "work", tmp_path / "staging", encoder, now, labelled=labelled)
    gallery = FaissGallery(tmp_path / "staging")
    assert [one.label for one in gallery.items(np.arange(1))] == ["owl" if labelled else None]
    mean = encoder.encode(np.repeat(10 * pixels[..., None], 3, axis=3)).mean[0]
    np.testing.assert_allclose(
        gallery.directions(np.arange(1))[0], mean / np.linalg.norm(mean), atol=1e-3
    )


class Counted(FakeEncoder):
    """Counts the batches that it encodes."""

    n = 0

    def encode(self, images: NDArray[np.uint8], at_once: int | None = None) -> Embeddings:
        self.n += 1
        return super().encode(images, at_once)


def test_what_an_encoder_knows_is_not_encoded_again(tmp_path: Path) -> None:
    encoder = Counted()
    known = StoredEncoder(encoder, VectorFile(None))
    for n in (-(-len(IMAGES) // batch_size(encoder)), 0):
        encoder.n = 0
        (tmp_path / "staging").mkdir(exist_ok=True)
        build_gallery(tmp_path / "work", tmp_path / "staging", known, IMAGES)
        assert encoder.n == n


def test_a_configuration_says_which(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    text = '[index]\nkind = "hnsw"\nmin_recall = 0.9\nmemory_budget_bytes = 1000000\n'
    text += 'filter_fields = ["brand.name"]\npreviews = 800\n'
    path.write_text('name = "x"\n[dataset]\nkind = "digits"\n' + text)
    assert load_config(path).index.settings(4) == IndexSettings(
        "hnsw", 1_000_000, 0.9, 4, ("brand.name",), 800
    )
    path.write_text(path.read_text() + 'milvus_uri = "http://milvus.example"\n')
    with pytest.raises(ConfigError, match="stores no previews"):
        load_config(path).index.settings(4)


def test_a_field_that_no_filter_can_name_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('name = "x"\n[dataset]\nkind = "digits"\n[index]\nfilter_fields = ["a..b"]\n')
    with pytest.raises(ConfigError, match=r"filter_fields.*'a\.\.b' cannot be named"):
        load_config(path)
    with pytest.raises(ConfigError, match=r"--filter-field.*'a\.\.b' cannot be named"):
        _ = IndexOptions(filter_field=["a..b"]).settings
    assert IndexOptions(filter_field=["year, id"]).settings.filter_fields == ("year", "id")
    assert IndexOptions(filter_field=["year", "id"]).settings.filter_fields == ("year", "id")
