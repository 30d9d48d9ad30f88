"""Other places for bundles: a folder, a bucket of a real S3 server, a Hub in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.support.build_command import Done, vouch_build
from tests.support.hub_server import TOKEN, Hub
from tests.support.s3_server import BUCKET, S3Server, s3_server

NUMBERS = itertools.count()


@dataclass
class Elsewhere:
    """A place that the command line is given."""

    address: str
    here: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, **more: str) -> Done:
        """Run ``vouch-build``."""
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (self.environment | more).items():
                patch.setenv(name, value)
            return vouch_build(*arguments, cwd=self.here)

    def push(self, bundle: Path) -> Done:
        return self.run("push", str(bundle), self.address)

    def pull(self, root: Path, *options: str, **more: str) -> Done:
        return self.run("pull", self.address, str(root), *options, **more)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture
def bucket(s3: S3Server, tmp_path: Path) -> Elsewhere:
    """A part of a bucket, of this test alone."""
    return Elsewhere(f"s3://{BUCKET}/{next(NUMBERS)}/galleries", tmp_path, s3.environment)


@pytest.fixture
def repository(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Elsewhere:
    """A repository; huggingface_hub has read its environment when it was imported."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    return Elsewhere("hf://me/small", tmp_path, {"HF_TOKEN": TOKEN})


@pytest.fixture
def folder(tmp_path: Path) -> Elsewhere:
    return Elsewhere(str(tmp_path / "share" / "bundles"), tmp_path)


@pytest.fixture(params=["folder", "bucket", "repository"])
def elsewhere(request: pytest.FixtureRequest) -> Elsewhere:
    """Each of them."""
    place: Elsewhere = request.getfixturevalue(request.param)
    return place
