from __future__ import annotations

from pathlib import Path

import pytest

from index_builder.configuration.build import BuildConfig, builtin_configs, load_config
from index_builder.configuration.photographs import encoder_config
from model_store.errors import ConfigError


@pytest.mark.parametrize("name", builtin_configs())
def test_every_built_in_configuration_is_valid(name: str) -> None:
    assert load_config(name).name == name


DIGITS = 'name = "x"\n[dataset]\nkind = "digits"\n'


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, 'name = "x"\nseed = 3\n[dataset]\nkind = "digits"\n'))
    assert (config.name, config.seed, config.dataset.kind) == ("x", 3, "digits")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "x"', "dataset: Field required"),
        ('name = "x"\n[dataset]\nkind = "cats"', "dataset.kind"),
        ('name = "x"\n[dataset]\nkind = "digits"\nlabel = 3', "dataset.label: Extra inputs"),
        ('name = "x"\n[dataset]\nkind = "folder"', "`path` goes with kind = 'folder'"),
        ('name = "../x"\n[dataset]\nkind = "digits"', "name: String should match"),
        ('name = "x"\n[dataset]\nkind = "digits"\n[training]\nmargin = 5', "training.margin"),
        ("name = ", "not valid TOML"),
        (DIGITS + "labels = 'none'", "is for a folder"),
        (DIGITS + "[network]\nfrozen = true", "need `weights`"),
        (DIGITS + '[network]\nlast_layer = "loaded"', "need `weights`"),
        (DIGITS + "[network]\ninput_size = 100", "network.input_size"),
        (DIGITS + "[network]\ninput_size = 64", "drop `input_size`"),
        (DIGITS + '[network]\npooling = "gem"', "drop `pooling`"),
        (DIGITS + "[training]\nepochs = 0", "must not be 'random'"),
        (
            DIGITS + '[network]\nlast_layer = "whitening"\n[training]\nepochs = 0\n'
            '[posterior]\nmethod = "bayesian_triplet"',
            "'bayesian_triplet' needs training.epochs",
        ),
        (
            DIGITS + '[network]\ntrunk = "resnet18"\nweights = "w.pth"\nfrozen = true\n'
            "[training]\nflip = true",
            "drop flip, shift, crop and jitter",
        ),
        (
            DIGITS + '[network]\ndropout = 0.1\n[posterior]\nmethod = "online_laplace"',
            "no dropout",
        ),
        (DIGITS + '[posterior]\nmethod = "astrology"', "posterior"),
        (DIGITS + '[posterior]\nmethod = "ensemble"\nn_members = 1', "n_members"),
        (DIGITS + '[posterior]\nmethod = "mc_dropout"', "needs network.dropout, e.g. 0.2"),
        (
            DIGITS + '[network]\ndropout = 0.2\n[posterior]\nmethod = "mc_dropout"\nn_passes = 9',
            "needs no passes",
        ),
        (DIGITS + "[network]\ndropout_inside = true", "and needs `dropout`"),
        (DIGITS + '[posterior]\nmethod = "pfe"\nepochs = 0', "posterior.pfe.epochs"),
        (DIGITS + '[posterior]\nmethod = "hib"\nn_samples = 0', "posterior.hib.n_samples"),
        (
            DIGITS + '[network]\ntrunk = "resnet18"\ndropout = 0.2\ndropout_inside = true',
            "is for trunk = 'small_cnn'",
        ),
        (
            DIGITS + '[network]\nlast_layer = "whitening"\n[training]\nepochs = 0\n'
            '[posterior]\nmethod = "ensemble"',
            "'ensemble' needs training.epochs",
        ),
        (DIGITS + "[posterior]\nmemory_factor = 0.1", "memory_factor: Extra inputs"),
        (
            DIGITS + '[posterior]\nmethod = "bayesian_triplet"\nprior = "von_mises_fisher"',
            "needs variance = 'isotropic'",
        ),
        (
            DIGITS + '[posterior]\nmethod = "bayesian_triplet"\nprior = "von_mises_fisher"\n'
            'variance = "isotropic"\nnormalised = false',
            "drop `normalised`",
        ),
        ('name = "x"\n[dataset]\nkind = "mnist"\nunseen_share = 0.5', "split of its own"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, text))
    assert said in str(error.value)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="digits, fashion-mnist"):
        load_config("cats")


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
def test_the_posterior_is_chosen_by_its_method(tmp_path: Path, table: str, name: str) -> None:
    config = load_config(write(tmp_path, f"{DIGITS}[posterior]\n{table}\n"))
    assert config.posterior.name == name
    assert BuildConfig.model_validate(config.model_dump(mode="json")) == config


def test_a_folder_and_an_encoder_are_a_whole_configuration(tmp_path: Path) -> None:
    folder, encoder = tmp_path / "My Photos (2026)", Path("encoders") / "a"
    config = encoder_config(folder, encoder, 1280)
    assert config.name == "my-photos-2026"
    assert config.dataset.path == folder
    assert (config.training.epochs, config.network.last_layer) == (0, "whitening")
    assert config.network.embedding_dim == 256
    assert encoder_config(folder, encoder, 64).network.embedding_dim == 64
    assert encoder_config(tmp_path / "Фото", encoder, 64).name == "photographs"
    assert len(encoder_config(tmp_path / ("a" * 99), encoder, 64).name) == 63
    assert encoder_config(folder, encoder, 64, "mine").name == "mine"
    with pytest.raises(ConfigError, match=r"network.embedding_dim.*greater than or equal to 2"):
        encoder_config(folder, encoder, 1)


def test_what_was_stored_before_a_key_existed_had_its_default() -> None:
    config = load_config("digits")
    stored = config.model_dump(mode="json")
    del stored["training"]["precision"]
    assert config.changed_since(stored) == set()
    stored["training"]["margin"] = 0.1
    assert config.changed_since(stored) == {"training"}
    assert "network" in config.changed_since({**stored, "network": {"gone": 1}})
