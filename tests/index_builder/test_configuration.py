"""What a configuration means: defaults that follow from other keys, in a file and in options."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from index_builder.commands.all_steps import AllOptions
from index_builder.configuration.build import (
    BuildConfig,
    DatasetConfig,
    builtin_configs,
    encoder_config,
    in_database,
    load_config,
    vectors_config,
)
from index_builder.configuration.defaults import ENCODER_IN_THE_BOX, N_FEATURES, gallery_name
from index_builder.configuration.encoder import NAMED_WEIGHTS, NetworkConfig
from index_builder.networks import build_encoder
from model_store.errors import ConfigError

DIGITS = 'name = "x"\n[dataset]\nkind = "digits"\n'


def loaded(tmp_path: Path, text: str) -> BuildConfig:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return load_config(path)


@pytest.mark.parametrize("name", builtin_configs())
def test_built_in_configuration_is_valid(name: str) -> None:
    assert load_config(name).name == name


def test_load_config_reads_a_file(tmp_path: Path) -> None:
    config = loaded(tmp_path, 'name = "x"\nseed = 3\n[dataset]\nkind = "digits"\n')
    assert (config.name, config.seed, config.dataset.kind) == ("x", 3, "digits")


def test_a_folder_alone_means_the_encoder_in_the_box_with_a_fitted_layer(tmp_path: Path) -> None:
    config = loaded(tmp_path, '[dataset]\npath = "/data/My Photos (2026)"\n')
    assert (config.name, config.dataset.kind) == ("my-photos-2026", "folder")
    assert config.description == "My Photos (2026), encoder mobilenet_v2"
    network = config.network
    assert (network.encoder, network.trunk) == (ENCODER_IN_THE_BOX, "onnx")
    assert (network.frozen, network.last_layer, network.embedding_dim) == (True, "whitening", 256)
    assert config.training.epochs == 0
    assert config.posterior.model_dump()["prior_chosen_by"] == "validation"
    assert tuple(dict(config.outliers).values()) == ("digits", "digits", 60)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"images": "photographs"}, '[dataset]\npath = "photographs"'),
        (
            {"images": "photographs", "encoder": "timm:vit_small"},
            (
                '[dataset]\nkind = "folder"\npath = "photographs"\n'
                '[network]\nencoder = "timm:vit_small"'
            ),
        ),
        (
            {"images": "photographs", "encoder": "mobilenet_v2", "name": "mine"},
            'name = "mine"\n[dataset]\npath = "photographs"\n',
        ),
        (
            {"images": "photographs", "labels": False},
            '[dataset]\npath = "photographs"\nlabels = "none"',
        ),
        (
            {"vectors": Path("v.npy"), "items": Path("i.csv"), "encoder": "./encoders/theirs"},
            '[dataset]\npath = "v.npy"\nitems = "i.csv"\n[network]\nencoder = "encoders/theirs"',
        ),
    ],
)
def test_options_of_all_mean_what_the_same_words_mean_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert AllOptions(**options).build == loaded(tmp_path, text)


def test_options_of_all_with_a_wrong_value_name_the_option() -> None:
    with pytest.raises(ConfigError, match=r'^--name "My Photos": wanted up to 64 lower-case'):
        _ = AllOptions(images="photographs", name="My Photos").build


# What follows from [network]: last layer, dimensions, epochs, and the choice of the prior.
NETWORKS = [
    ("", ("random", 128, 10, "validation")),
    ('trunk = "small_cnn"', ("random", 128, 10, "validation")),
    ('encoder = "timm:x"', ("whitening", None, 0, "validation")),
    ('encoder = "timm:x"\nembedding_dim = 64', ("whitening", 64, 0, "validation")),
    ('encoder = "timm:x"\nlast_layer = "random"', ("random", 128, 10, "validation")),
    (
        'trunk = "resnet50"\nweights = "w.pth"\nfrozen = true',
        ("whitening", 256, 0, "validation"),
    ),
    ('trunk = "resnet50"\nweights = "w.pth"', ("random", 128, 10, "validation")),
    (
        'trunk = "resnet50"\nweights = "w.pth"\nlast_layer = "whitening"',
        ("whitening", 256, 0, "validation"),
    ),
    ('last_layer = "whitening"', ("whitening", 256, 10, "validation")),
    (
        'encoder = "timm:x"\n[training]\ndevice = "cpu"',
        ("whitening", None, 0, "validation"),
    ),
    ('encoder = "timm:x"\n[training]\nepochs = 5', ("whitening", None, 5, "validation")),
    ('encoder = "timm:x"\n[training]\nobjective = "supcon"', ("whitening", None, 10, "validation")),
    (
        'encoder = "timm:x"\n[posterior]\nprior_chosen_by = "curvature"',
        ("whitening", None, 0, "curvature"),
    ),
    ('encoder = "timm:x"\n[posterior]\nmethod = "hib"', ("whitening", None, 10, None)),
    ('encoder = "timm:x"\n[posterior]\nmethod = "pfe"', ("whitening", None, 0, None)),
]


@pytest.mark.parametrize(("text", "wanted"), NETWORKS)
def test_network_table_decides_on_what_is_left_out(
    tmp_path: Path, text: str, wanted: tuple[object, ...]
) -> None:
    config = loaded(tmp_path, f"{DIGITS}[network]\n{text}\n")
    found = config.network.last_layer, config.network.embedding_dim, config.training.epochs
    assert (*found, config.posterior.model_dump().get("prior_chosen_by")) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (DIGITS, ("photographs", "photographs", None)),
        ('[dataset]\npath = "p"\n[outliers]\nevaluation = "none"', ("digits", "none", 60)),
        ('[dataset]\npath = "p"\n[outliers]\nn_images = 30', ("digits", "digits", 30)),
        ('[dataset]\npath = "p.npy"\n[network]\nencoder = "e"', ("none", "none", None)),
    ],
)
def test_outliers_follow_the_kind_of_data(
    tmp_path: Path, text: str, wanted: tuple[object, ...]
) -> None:
    assert tuple(dict(loaded(tmp_path, text).outliers).values()) == wanted


@pytest.mark.parametrize(
    ("dataset", "kind", "name"),
    [
        ('path = "photos"', "folder", "photos"),
        ('path = "Фото"', "folder", "photographs"),
        (f'path = "{"a" * 99}"', "folder", "a" * 63),
        ('path = "theirs.NPY"', "vectors", "theirs"),
        ('path = "theirs.parquet"', "vectors", "theirs"),
        ('path = "theirs.npy"\nkind = "folder"', "folder", "theirs.npy"),
        ('kind = "digits"', "digits", "digits"),
    ],
)
def test_kind_and_name_follow_the_path(tmp_path: Path, dataset: str, kind: str, name: str) -> None:
    config = loaded(tmp_path, f'[dataset]\n{dataset}\n[network]\nencoder = "e"\n')
    assert (config.dataset.kind, config.name) == (kind, name)


def test_paths_of_a_file_start_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    text = '[dataset]\npath = "."\n[network]\nencoder = "here"\n'
    config = loaded(tmp_path / "here" / "..", text)
    assert config.dataset.path is not None
    assert config.dataset.path.samefile(tmp_path)
    assert Path(str(config.network.encoder)).samefile(tmp_path / "here")
    text = DIGITS + '[network]\nweights = "runs/a/checkpoint.safetensors"\n'
    assert loaded(tmp_path, text).network.weights == f"{tmp_path}/runs/a/checkpoint.safetensors"
    named = loaded(tmp_path, '[dataset]\npath = "."\n')
    assert (named.name, named.dataset.path) == (gallery_name(tmp_path.name), tmp_path)


def test_paths_of_options_start_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    config = encoder_config(Path("photographs"), "here")
    assert config.dataset.path == tmp_path / "photographs"
    assert config.network.encoder == str(tmp_path / "here")
    assert encoder_config(Path("~/photographs")).dataset.path == Path.home() / "photographs"


@pytest.mark.parametrize("spec", ["timm:a/b", "mobilenet_v2", "resnet50"])
def test_encoder_that_is_no_path_stays_as_it_is(spec: str) -> None:
    assert encoder_config(Path("photographs"), spec).network.encoder == spec


def test_vectors_of_a_named_encoder_are_described_by_it() -> None:
    config = vectors_config(Path("v.npy"), None, Path("runs/v/encoder.onnx"), "dinov2", "mine")
    assert (config.name, config.description) == ("mine", "v.npy, encoder dinov2")


def test_sections_as_objects_get_the_same_defaults() -> None:
    tables = BuildConfig.model_validate({"name": "x", "dataset": {"path": "p"}})
    objects = BuildConfig(name="x", dataset=DatasetConfig(kind="folder", path=Path("p")))
    assert objects == tables
    assert BuildConfig.model_validate(dict(tables)) == tables


def test_in_milvus_checks_the_index_against_milvus(tmp_path: Path) -> None:
    config = loaded(tmp_path, DIGITS + "[index]\npreviews = 800\n")
    assert in_database(config, None) is config
    with pytest.raises(ConfigError, match=r"index.previews = 800: a gallery in Milvus"):
        in_database(config, "http://milvus:19530")
    with pytest.raises(ConfigError, match=r"^--database .* names a user"):
        in_database(load_config("digits"), "http://root:swordfish@milvus:19530")


def test_in_postgres_checks_the_index_against_postgres(tmp_path: Path) -> None:
    config = loaded(tmp_path, DIGITS + '[index]\npreviews = 800\nkind = "hnsw"\n')
    uri = "postgresql://db.example/vouch"
    assert in_database(config, uri).index.database_uri == uri
    with pytest.raises(ConfigError, match=r"^--database .* names a user") as refused:
        in_database(config, "postgresql://root:swordfish@db.example/vouch")
    assert "swordfish" not in str(refused.value)
    inverted = loaded(tmp_path, DIGITS + '[index]\nkind = "ivf_sq8"\n')
    with pytest.raises(ConfigError, match="PostgreSQL supports flat, hnsw"):
        in_database(inverted, uri)


def test_earlier_name_of_the_database_is_read(tmp_path: Path) -> None:
    config = loaded(tmp_path, DIGITS + '[index]\nmilvus_uri = "http://milvus:19530"\n')
    assert config.index.database_uri == "http://milvus:19530"


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("", "laplace_kronecker_fixed_euclidean"),
        ('structure = "diagonal"\nsplit = "arccos"', "laplace_fixed_arccos"),
        (
            'method = "online_laplace"\napproximation = "positives"',
            "online_laplace_kronecker_positives_euclidean",
        ),
        ('scaling = "global"', "laplace_kronecker_fixed_euclidean"),
        ('method = "bayesian_triplet"', "bayesian_triplet_diagonal_gaussian"),
        (
            'method = "bayesian_triplet"\nnormalised = false',
            "bayesian_triplet_diagonal_gaussian_not_normalised",
        ),
        ('method = "deterministic"', "deterministic"),
        ('method = "pfe"', "pfe"),
        ('method = "hib"\nkl_weight = 0.01', "hib"),
        ('method = "ensemble"\nn_members = 3', "ensemble_of_3"),
    ],
)
def test_posterior_is_chosen_by_its_method(tmp_path: Path, table: str, name: str) -> None:
    config = loaded(tmp_path, f"{DIGITS}[posterior]\n{table}\n")
    assert config.posterior.name == name
    assert BuildConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_stored_configuration_without_a_new_key_has_its_default() -> None:
    config = load_config("digits")
    stored = config.model_dump(mode="json")
    del stored["training"]["precision"]
    assert config.changed_since(stored) == set()
    stored["training"]["margin"] = 0.1
    assert config.changed_since(stored) == {"training"}
    assert "network" in config.changed_since({**stored, "network": {"gone": 1}})


def test_features_of_trunks_are_as_many_as_the_configuration_says() -> None:
    import torch

    for trunk, n_features in N_FEATURES.items():
        if trunk == "vit_b_16":  # 86 million random numbers
            continue
        encoder = build_encoder(NetworkConfig(trunk=trunk), torch.Generator())
        assert encoder.trunk.n_features == n_features, trunk


def test_named_weights_are_torchvision_s() -> None:
    from torchvision import models

    for trunk, names in NAMED_WEIGHTS.items():
        assert names == tuple(models.get_model_weights(trunk).__members__), trunk


@pytest.mark.parametrize("name", ["digits", "fashion-mnist"])
def test_built_in_file_names_the_keys_whose_defaults_follow_from_others(name: str) -> None:
    text = (resources.files("index_builder") / "configs" / f"{name}.toml").read_text("utf-8")
    written = tomllib.loads(text)
    assert written["network"].keys() & {"trunk", "encoder"}
    assert {"calibration", "evaluation"} <= written["outliers"].keys()
    assert written["training"]["epochs"] > 0
