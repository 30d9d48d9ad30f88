"""Methods by name: what implements each, and the configuration that it stands for."""

from __future__ import annotations

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from index_builder.configuration.build import BuildConfig
from index_builder.configuration.posterior import (
    OF_ANY_OBJECTIVE,
    LaplaceConfig,
    OnlineLaplaceConfig,
    PosteriorConfig,
)
from index_builder.methods import METHODS as IMPLEMENTED
from index_builder.methods import class_of
from index_builder.reproduction.methods import METHODS, configured
from model_store.errors import ConfigError


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_a_valid_configuration_that_keeps_the_data(
    name: str, digits_config: BuildConfig
) -> None:
    config = configured(digits_config, name)
    assert config.posterior.method == METHODS[name].posterior["method"]
    expected = digits_config.training.model_copy(update={"objective": config.training.objective})
    assert config.training == expected
    taken = config.training.objective == digits_config.training.objective
    assert taken == (config.posterior.method in OF_ANY_OBJECTIVE)
    assert (config.dataset, config.seed) == (digits_config.dataset, digits_config.seed)


def test_no_two_methods_are_the_same(digits_config: BuildConfig) -> None:
    configs = [configured(digits_config, name).model_dump_json() for name in METHODS]
    assert len(set(configs)) == len(configs)
    assert len({method.title for method in METHODS.values()}) == len(METHODS)


def test_post_hoc_methods_take_an_encoder_that_is_there(digits_config: BuildConfig) -> None:
    checkpoint = Path("/run/checkpoint.safetensors")
    taken = configured(digits_config, "lam_posthoc_full_arccos", checkpoint)
    assert (taken.network.weights, taken.training.epochs) == (str(checkpoint), 0)
    own = configured(digits_config, "btl", checkpoint)
    assert own == configured(digits_config, "btl")


def test_an_unknown_method_lists_the_known(digits_config: BuildConfig) -> None:
    with pytest.raises(ConfigError, match=r"No method 'lam'. There are: .*lam_posthoc_fixed.*btl"):
        configured(digits_config, "lam")


def test_a_method_that_does_not_go_with_the_build_says_why(digits_config: BuildConfig) -> None:
    network = digits_config.network.model_copy(update={"dropout": 0.1})
    base = digits_config.model_copy(update={"network": network})
    with pytest.raises(
        ConfigError, match=r"^lam_online_full: network.dropout = 0.1: .*Drop `dropout`"
    ):
        configured(base, "lam_online_full")


def test_prior_and_temperature_are_those_of_the_comparison(digits_config: BuildConfig) -> None:
    posterior = LaplaceConfig(prior_precision=3.0, temperature="validation")
    base = digits_config.model_copy(update={"posterior": posterior})
    for name in ("lam_posthoc_full", "lam_online_sampled"):
        asked = configured(base, name).posterior
        assert isinstance(asked, LaplaceConfig | OnlineLaplaceConfig)
        assert (asked.prior_precision, asked.temperature) == (3.0, "validation")
    assert configured(base, "btl") == configured(digits_config, "btl")


def test_every_posterior_of_a_configuration_has_a_method() -> None:
    union, _ = get_args(PosteriorConfig)
    sections = [get_args(tagged)[0] for tagged in get_args(union)]
    named = {get_args(one.model_fields["method"].annotation)[0]: one for one in sections}
    assert set(IMPLEMENTED) == set(named)
    for name, section in named.items():
        assert get_type_hints(class_of(name))["settings"] is section
