"""Errors of configurations: place, value received, values accepted, and a suggestion."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from index_builder.configuration.build import load_config, parse_promises
from index_builder.configuration.problems import Problems, lines_of
from index_builder.configuration.schema import FilePath, Section, keys_of, schema_of
from index_builder.reproduction.protocols import protocol_config
from model_store.errors import ConfigError

DIGITS = 'name = "x"\n[dataset]\nkind = "digits"\n'
FOLDER = '[dataset]\npath = "photographs"\n'
OF_VALIDATORS = ("Extra inputs", "Input should", "constrained", "literal[", "Value error", "tag")
"""Words of pydantic, which say nothing to the author of a file."""

TYPOS = [
    # file, place, received, accepted or suggested
    (
        DIGITS + "[training]\nepoch = 5",
        "5: training.epoch",
        "5",
        "unknown key. Did you mean `epochs`",
    ),
    (
        DIGITS + "[trainin]\nepochs = 5",
        "4: [trainin]",
        "",
        "unknown table. Did you mean [training]",
    ),
    (DIGITS + "label = 3", "4: dataset.label", "3", "Did you mean `labels`"),
    (DIGITS + "[network]\nepochs = 5", "5: network.epochs", "5", "It belongs to [training]"),
    (DIGITS + "colour = 1", "4: dataset.colour", "1", "[dataset] has kind, path, items"),
    ("title = 1\n" + DIGITS, "1: title", "1", "A file has name, description, seed"),
    ('[dataset]\nkind = "dgits"', "2: dataset.kind", '"dgits"', 'Did you mean "digits"'),
    (
        DIGITS + '[network]\ntrunk = "resnet19"',
        "5: network.trunk",
        '"resnet19"',
        '"mobilenet_v3_large", "googlenet", "vit_b_16" or "onnx". Did you mean "resnet18"',
    ),
    (
        DIGITS + '[network]\ntrunk = "resnet50"\nweights = "IMAGENET_V1"',
        "6: network.weights",
        '"IMAGENET_V1"',
        "a file (.safetensors, .pth, .pt, .npz) for resnet50. Did you mean IMAGENET1K_V1",
    ),
    (
        DIGITS + '[training]\nobjective = "tripplet"',
        "5: training.objective",
        '"tripplet"',
        '"simclr" or "mc_info_nce". Did you mean "triplet"',
    ),
    (
        DIGITS + '[training.objective]\nkind = "proxy_anker"',
        "5: training.objective.kind",
        '"proxy_anker"',
        'Did you mean "proxy_anchor"',
    ),
    (DIGITS + '[training.objective]\nform = "soft"', "4: training.objective.kind", "", '"spce"'),
    (
        DIGITS + '[training.objective]\nkind = "spce"\nmargin = 1',
        "6: training.objective.margin",
        "1",
        'It goes with kind = "triplet" or kind = "margin"',
    ),
    (
        DIGITS + '[posterior]\nmethod = "laplac"',
        "5: posterior.method",
        '"laplac"',
        '"pfe" or "hib". Did you mean "laplace"',
    ),
    (
        DIGITS + "[posterior]\nmemory_factor = 0.1",
        "5: posterior.memory_factor",
        "0.1",
        'It goes with method = "online_laplace"',
    ),
    (
        DIGITS + '[posterior]\ntemperature = "valdation"',
        "5: posterior.temperature",
        '"valdation"',
        'a number above 0 or "validation". Did you mean "validation"',
    ),
    ("posterior = 'pfe'\n" + DIGITS, "1: posterior", '"pfe"', "a table with `method`"),
    ("dataset = 'photographs'", "1: dataset", '"photographs"', "a table"),
    (
        DIGITS + "[training]\nepochs = 2.5",
        "5: training.epochs",
        "2.5",
        "a whole number of at least 0",
    ),
    (DIGITS + '[training]\nflip = "yes"', "5: training.flip", '"yes"', "true or false"),
    (DIGITS + "[training]\nlearning_rate = inf", "5: training.learning_rate", "Inf", "above 0"),
    (
        DIGITS + "[calibration]\nmax_error = 7",
        "5: calibration.max_error",
        "7",
        "above 0 and below 1",
    ),
    (DIGITS + '[calibration]\nalpha = "0.1"', "5: calibration.alpha", '"0.1"', "a number above 0"),
    (DIGITS + "[index]\nmin_recall = 1.5", "5: index.min_recall", "1.5", "above 0 and at most 1"),
    (DIGITS + '[index]\nkind = "hsnw"', "5: index.kind", '"hsnw"', 'Did you mean "hnsw"'),
    (
        DIGITS + '[index]\nfilter_fields = ["a..b"]',
        "5: index.filter_fields",
        '["a..b"]',
        "'a..b' cannot be named",
    ),
    (
        DIGITS + "[network]\ninput_size = 100",
        "5: network.input_size",
        "100",
        "a whole number of at least 32 and a multiple of 32",
    ),
    (DIGITS + "withheld_labels = '3'", "4: dataset.withheld_labels", '"3"', 'such as ["a", "b"]'),
    (DIGITS + "withheld_labels = [3]", "4: dataset.withheld_labels", "[3]", 'such as ["a", "b"]'),
    ('name = "My Photos"\n' + FOLDER, "1: name", '"My Photos"', "up to 64 lower-case letters"),
    ('[dataset]\npath = "s3://a/b"', "2: dataset.path", '"s3://a/b"', "all --images URL"),
    ("[dataset]\nlabels = 'none'", "1: dataset.kind", "", 'one of "folder", "vectors", "digits"'),
    ('name = "x"', "[dataset]", "", "missing. Set `path`"),
]


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    return str(error.value).replace(str(path), "mine.toml")


@pytest.mark.parametrize(("text", "place", "received", "accepted"), TYPOS)
def test_load_config_typo_says_place_received_and_accepted(
    tmp_path: Path, text: str, place: str, received: str, accepted: str
) -> None:
    said = refusal(tmp_path, text)
    given = f"{place} = {received}" if received else place
    assert said.startswith(f"mine.toml:{' ' if place[0] == '[' else ''}{given}"), said
    assert accepted in said
    assert len(said.splitlines()) == 1
    assert not any(word in said for word in OF_VALIDATORS), said


CONTRADICTIONS = [
    (DIGITS + "labels = 'none'", "4: dataset.labels", 'needs kind = "folder"'),
    (FOLDER + "labels = 'none'\nunseen_share = 0.5", "4: dataset.unseen_share", "no labels"),
    (
        '[dataset]\nkind = "mnist"\nunseen_share = 0.5',
        "3: dataset.unseen_share",
        "predefined split",
    ),
    ('[dataset]\nkind = "folder"', "1: dataset.path", "needs `path`"),
    (DIGITS + 'path = "photographs"', "4: dataset.path", "has no path"),
    (FOLDER + "items = 'a.csv'\nkind = 'folder'", "3: dataset.items", 'kind = "vectors"'),
    (DIGITS + "[network]\nfrozen = true", "5: network.frozen", "needs `weights`"),
    (DIGITS + '[network]\nlast_layer = "loaded"', "5: network.last_layer", "needs `weights`"),
    (DIGITS + '[network]\nweights = "w.npz"', "5: network.weights", "a file (.safetensors)"),
    (DIGITS + "[network]\ninput_size = 64", "5: network.input_size", "Drop `input_size`"),
    (DIGITS + '[network]\npooling = "gem"', "5: network.pooling", "Drop `pooling`"),
    (FOLDER + '[network]\npooling = "gem"', "4: network.pooling", "set `trunk`"),
    (FOLDER + '[network]\nweights = "w.pth"', "4: network.weights", "set `trunk`"),
    (
        FOLDER + '[network]\ntrunk = "resnet18"\nencoder = "timm:x"',
        "4: network.trunk",
        "Drop `trunk` or `encoder`",
    ),
    (FOLDER + '[network]\ntrunk = "onnx"', "3: network.encoder", "needs `encoder`"),
    (
        DIGITS + '[network]\nlast_layer = "whitening"\nembedding_dim = 10000',
        "6: network.embedding_dim",
        "small_cnn has 9216 features",
    ),
    (DIGITS + "[training]\nepochs = 0", "5: training.epochs", "must be trained"),
    (
        DIGITS + '[network]\nweights = "w.safetensors"\n[training]\nepochs = 0',
        "7: training.epochs",
        'network.last_layer = "whitening"',
    ),
    (FOLDER + "[training]\nflip = true", "4: training.flip", "Drop `flip`"),
    (
        DIGITS + '[training]\nobjective = "simclr"',
        "5: training.objective",
        "Set training.crop",
    ),
    (
        DIGITS + 'validation_share = 0.0\n[posterior]\nprior_chosen_by = "validation"',
        "6: posterior.prior_chosen_by",
        "dataset.validation_share",
    ),
    (
        DIGITS + '[network]\ndropout = 0.1\n[posterior]\nmethod = "online_laplace"',
        "5: network.dropout",
        "Drop `dropout`",
    ),
    (DIGITS + '[posterior]\nmethod = "mc_dropout"', "5: posterior.method", "example 0.2"),
    (
        DIGITS + '[network]\ndropout = 0.2\n[posterior]\nmethod = "mc_dropout"\nn_passes = 9',
        "8: posterior.n_passes",
        "Drop `n_passes`",
    ),
    (DIGITS + "[network]\ndropout_inside = true", "5: network.dropout_inside", "`dropout`"),
    (
        DIGITS + '[network]\ntrunk = "resnet18"\ndropout = 0.2\ndropout_inside = true',
        "7: network.dropout_inside",
        '"small_cnn"',
    ),
    (FOLDER + '[posterior]\nmethod = "ensemble"', "4: posterior.method", "Set network.trunk"),
    (
        FOLDER + '[training]\nepochs = 0\n[posterior]\nmethod = "hib"',
        "6: posterior.method",
        "Set training.epochs",
    ),
    (
        DIGITS + '[training]\nobjective = "supcon"\n[posterior]\nmethod = "hib"',
        "5: training.objective",
        "its own loss",
    ),
    (
        DIGITS + '[training.objective]\nkind = "triplet"\nform = "soft"\nmining = "semihard"',
        "7: training.objective.mining",
        '"all" or "hard"',
    ),
    (
        DIGITS + '[posterior]\nmethod = "bayesian_triplet"\nprior = "von_mises_fisher"',
        "6: posterior.prior",
        'variance = "isotropic"',
    ),
    ('[dataset]\npath = "v.npy"', " network.encoder", "vouch-build encoder --vectors"),
    (
        '[dataset]\npath = "v.npy"\n[network]\nencoder = "e"\n[outliers]\nevaluation = "digits"',
        "6: outliers.evaluation",
        'Set "none"',
    ),
    (
        DIGITS + '[index]\ndatabase_uri = "http://m:19530"\npreviews = 800',
        "6: index.previews",
        "Drop `previews`",
    ),
    (
        DIGITS + '[index]\ndatabase_uri = "http://m:19530"\nkind = "ivf_pq"',
        "6: index.kind",
        "flat, hnsw, ivf_sq8",
    ),
]


@pytest.mark.parametrize(("text", "place", "advice"), CONTRADICTIONS)
def test_load_config_contradiction_is_refused_from_the_file_alone(
    tmp_path: Path, text: str, place: str, advice: str
) -> None:
    said = refusal(tmp_path, text)
    assert said.startswith(f"mine.toml:{place}"), said
    assert advice in said
    assert not any(word in said for word in OF_VALIDATORS), said


def test_load_config_reports_every_error_in_the_order_of_lines(tmp_path: Path) -> None:
    text = DIGITS + "[calibration]\nmax_eror = 1\nalpha = 2\n[network]\ntrunk = 3\n[indx]\n"
    lines = refusal(tmp_path, text).splitlines()
    assert lines[0] == "mine.toml has 4 errors:"
    assert [line.split(" ")[2] for line in lines[1:]] == [
        *("mine.toml:5:", "mine.toml:6:", "mine.toml:8:", "mine.toml:9:")
    ]


def test_load_config_reports_every_contradiction(tmp_path: Path) -> None:
    text = FOLDER + '[network]\npooling = "gem"\nfrozen = false\nfeature_norm = true\n'
    assert len(refusal(tmp_path, text).splitlines()) == 4


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'name = "x"\nname', "mine.toml:2: not valid TOML"),
        (b'name = "x"\nname = "y"', "mine.toml:2: not valid TOML"),
        (b'name = "\xff"', "mine.toml is not UTF-8"),
    ],
)
def test_load_config_of_no_toml_says_where(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    assert str(error.value).replace(str(path), "mine.toml").startswith(said)


def test_load_config_unknown_name_lists_the_known_and_suggests() -> None:
    with pytest.raises(ConfigError, match=r"\(digits, fashion-mnist.*\)\. Did you mean digits\?"):
        load_config("digit")


def test_load_config_error_repeats_no_password(tmp_path: Path) -> None:
    said = refusal(tmp_path, DIGITS + '[index]\ndatabase_uri = "http://root:swordfish@m:19530"\n')
    assert "swordfish" not in said
    assert "VOUCH_MILVUS_TOKEN" in said


def test_load_config_error_cuts_a_long_value_off(tmp_path: Path) -> None:
    said = refusal(tmp_path, DIGITS + f'[network]\ntrunk = "{"a" * 500}"\n')
    assert "a" * 50 in said
    assert "a" * 70 not in said


def test_parse_promises_out_of_range_names_options() -> None:
    with pytest.raises(ConfigError) as error:
        parse_promises({"max_error": 7.0})
    assert str(error.value) == "--max-error 7.0: wanted a number above 0 and below 1."
    with pytest.raises(ConfigError) as error:
        parse_promises({"max_false_match_rate": 0.0, "coverage": 2.0})
    assert "--max-false-match-rate 0.0: wanted" in str(error.value)
    assert "--coverage 2.0: wanted" in str(error.value)


def test_protocol_config_with_a_wrong_value_says_what_is_accepted() -> None:
    with pytest.raises(ConfigError, match=r'training.objective = "simclrr".*"simclr"'):
        protocol_config("digits", objective="simclrr")


def test_lines_of_finds_tables_and_keys() -> None:
    text = 'a = 1\n# b = 2\n[t]\n"c" = 3\nd.e = 4\n  [ t . u ] # a table\nf = [\n  "g = 1",\n]\n'
    assert lines_of(text) == {"a": 1, "t": 3, "t.c": 4, "t.d.e": 5, "t.u": 6, "t.u.f": 7}


class One(Section):
    """A table of a list."""

    file: FilePath
    caption: str = "a"
    weight: float = Field(0.5, gt=0)


class Several(Section):
    """A file with a list of tables."""

    samples: tuple[One, ...] = ()


def test_problems_in_a_list_of_tables_name_the_number(tmp_path: Path) -> None:
    text = '[[samples]]\nfile = "a.png"\n[[samples]]\nfil = "b.png"\nweight = "3"\n'
    fields = tomllib.loads(text)
    with pytest.raises(ValidationError) as error:
        Several.model_validate(fields)
    said = Problems(Several, fields, error.value, typed=True).of_file("mine.toml", text)
    assert said.splitlines() == [
        "mine.toml has 3 errors:",
        "  mine.toml:3: samples.2.file: missing. Wanted text in quotes.",
        '  mine.toml:4: samples.2.fil = "b.png": unknown key. Did you mean `file`?',
        '  mine.toml:5: samples.2.weight = "3": wanted a number above 0.',
    ]
    fields = {"samples": "a.png"}
    with pytest.raises(ValidationError) as error:
        Several.model_validate(fields)
    said = Problems(Several, fields, error.value, typed=True).of_file("mine.toml", "")
    assert said == 'mine.toml: samples = "a.png": wanted a list of tables.'
    assert [name for _, name, _, _ in keys_of(schema_of(Several))] == ["file", "caption", "weight"]
