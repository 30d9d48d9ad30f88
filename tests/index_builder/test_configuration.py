from __future__ import annotations

from pathlib import Path

import pytest

from index_builder.configuration import builtin_configs, load_config
from model_store.errors import ConfigError


@pytest.mark.parametrize("name", builtin_configs())
def test_every_built_in_configuration_is_valid(name: str) -> None:
    assert load_config(name).name == name


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
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, text))
    assert said in str(error.value)


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="digits, fashion-mnist"):
        load_config("cats")
