"""What encoders of libraries are tried with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from index_builder.foreign_encoders.parity import ParityImage, parity_images


@pytest.fixture
def quiet() -> Iterator[None]:
    """Libraries warn of what is theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def images() -> list[ParityImage]:
    """The photographs that come with scikit-learn."""
    return parity_images(None)
