"""What all tests share: their tiers, a real bundle, built once, and the place of the real data.

A test is `bundle` if it trains or needs a bundle, `process` if it starts a process, and `slow` if
it takes more than a second for another reason; all others are unit tests, which `make check` runs.
Nothing here imports torch before a test needs it.
"""

from __future__ import annotations

import gc
import hashlib
import json
import multiprocessing.process
import os
import shutil
import subprocess
from collections.abc import Callable, Generator, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import settings

from index_builder.configuration.build import BuildConfig, load_config
from model_store.bundles.directory import locate
from model_store.bundles.manifest import MANIFEST_FILE, Manifest, SampleQuery
from model_store.bundles.publish import publish
from model_store.decision.calibration import ARRAYS_FILE, CALIBRATION_FILE
from model_store.files import lock_between_processes
from tests.support.build_command import vouch_build

# A busy machine may take any time for an example. A test that hangs ends with pytest's timeout.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

ROOT = Path(__file__).parents[1]
BUILT = ROOT / "build" / "tests"
"""What earlier runs of the suite have built, by what it was built from."""

STARTED_BY = {"redis_server", "page", "chromium"}
"""Fixtures that start a process."""

LONGEST = (
    "test_steps.py",
    "test_doors.py",
    "test_readme.py",
    "test_docs.py",
    "test_real_data.py",
    "test_reproduce.py",
    "test_own_queries.py",
    "test_several_processes.py",
    "test_any_request.py",
    "test_milvus.py",
    "test_postgres.py",
    "test_postgres_gallery.py",
    "test_torture.py",
    "test_page_first.py",
    "test_wheel.py",
    "test_floods.py",
    "test_without_torch.py",
    "test_online_laplace.py",
    "test_generated_clients.py",
    "test_read_only.py",
    "test_house.py",
    "test_hot_swap.py",
    "test_survival.py",
    "test_chart.py",
)
"""Files that take half a minute or more. Two of the first do not need the bundles that all others
wait for at first, and the next two build one each."""

LONG = ("end_to_end", "torture", "index_builder")
"""Folders whose files take longest: what is begun first does not keep the others waiting."""

LIBRARIES = ("torch", "onnx", "numpy", "scipy", "scikit-learn", "faiss-cpu", "pillow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and mark tests by what they ask for; see `pyproject.toml`."""
    items.sort(key=_begun_early)
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & {"built_digits", "built_demo"}:
            item.add_marker(pytest.mark.bundle)
        if fixtures & STARTED_BY or "end_to_end" in item.path.parts:
            item.add_marker(pytest.mark.process)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Have Python look for no garbage while it reads the tests: nearly all of it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Have Python look for no garbage among the tests themselves and what they import."""
    gc.collect()
    gc.freeze()


def _begun_early(item: pytest.Item) -> tuple[int, int]:
    name, folder = item.path.name, item.path.relative_to(ROOT / "tests").parts[0]
    return _place(LONGEST, name), _place(LONG, folder)


def _place(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else len(names)


@pytest.fixture(autouse=True)
def _unit_tests_start_no_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail a test that starts a process and does not say so: it would slow down `make check`."""
    marks = {mark.name for mark in request.node.iter_markers()}
    if marks & {"process", "bundle"}:
        return

    def refused(*_: object, **__: object) -> None:
        pytest.fail("This test starts a process: mark it with @pytest.mark.process.")

    monkeypatch.setattr(subprocess.Popen, "__init__", refused)
    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", refused)


@pytest.fixture(scope="session")
def digits_config() -> BuildConfig:
    """The demo's configuration, trained for less long.

    Its owner names the share of absent queries: an estimate would change answers as queries come.
    """
    config = load_config("digits")
    short = config.training.model_copy(update={"epochs": 3})
    share = config.calibration.model_copy(update={"expected_absent": 0.05})
    return config.model_copy(update={"training": short, "calibration": share})


@pytest.fixture(scope="session")
def built_digits(digits_config: BuildConfig) -> Path:
    """The folder with the run and the bundles of `digits_config`; it is shared, so only read it.

    It is built again only when code, libraries or configuration are others than when it was built,
    and not where VOUCH_BUILT_DIGITS names such a folder (`make mutants`).
    """
    if given := os.environ.get("VOUCH_BUILT_DIGITS"):
        return Path(given)

    def build(making: Path) -> None:
        from index_builder.pipeline.build import build_all
        from index_builder.pipeline.run import Run

        build_all(digits_config, Run(making / "run"), making / "bundles")

    return _built_once(BUILT, digits_config, build)


@pytest.fixture(scope="session")
def built_demo() -> Path:
    """Bundles of the demo, built by its command and kept like `built_digits`; only read them."""
    demo = ROOT / "docs" / "demo"
    config = str(demo / "photographs.toml")

    def build(making: Path) -> None:
        making.mkdir()
        done = vouch_build("all", "--config", config, cwd=making)
        assert done.returncode == 0, done.stderr

    photographs = sorted(demo.rglob("*.webp"))
    folder = _built_once(BUILT / "photographs", load_config(config), build, photographs)
    return folder / "bundles" / "demo"


def _built_once(
    place: Path, config: BuildConfig, build: Callable[[Path], None], images: Sequence[Path] = ()
) -> Path:
    """Return the folder in ``place`` of what is built from these sources; build it if needed."""
    folder = place / _built_from(config, images)
    place.mkdir(parents=True, exist_ok=True)
    with lock_between_processes(place / "lock"):  # several processes run the suite
        if not folder.exists():
            for old in place.glob("[0-9a-f]*"):
                shutil.rmtree(old)
            making = place / "making"
            shutil.rmtree(making, ignore_errors=True)
            build(making)
            making.rename(folder)
    return folder


def _built_from(config: BuildConfig, images: Sequence[Path]) -> str:
    digest = hashlib.sha256(config.model_dump_json().encode())
    # With another number of threads sums are rounded otherwise, and the bundle is another.
    digest.update(os.environ.get("OMP_NUM_THREADS", "").encode())
    for package in ("index_builder", "model_store"):
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(path.read_bytes())
    for path in images:
        digest.update(path.read_bytes())
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}".encode())
    return digest.hexdigest()[:16]


@pytest.fixture(scope="session")
def digits_run(built_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory behind `digits_bundle`: checkpoint and posterior."""
    run = tmp_path_factory.mktemp("run") / "run"
    return Path(shutil.copytree(built_digits / "run", run))


@pytest.fixture(scope="session")
def digits_bundle(built_digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A published bundle of scikit-learn's digits. Copy it before damaging it."""
    bundles = tmp_path_factory.mktemp("bundles") / "bundles"
    return locate(Path(shutil.copytree(built_digits / "bundles", bundles)))


@pytest.fixture(scope="session")
def uncalibrated_bundle(digits_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same gallery without a decision layer."""
    staging = tmp_path_factory.mktemp("uncalibrated") / "staging"
    shutil.copytree(digits_bundle, staging)
    fields = json.loads((staging / MANIFEST_FILE).read_text(encoding="utf-8"))
    for name in (CALIBRATION_FILE, ARRAYS_FILE, MANIFEST_FILE):
        (staging / name).unlink()
    for name in ("id", "files", "schema_version"):
        del fields[name]
    samples = tuple(SampleQuery(**sample) for sample in fields.pop("samples"))
    manifest = Manifest(samples=samples, **{**fields, "calibration": None, "metrics": None})
    return publish(staging, manifest, staging.parent / "published")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data; a test that needs it is skipped where there is none."""
    configured = os.environ.get("VOUCH_DATA_DIR")
    if not configured:
        pytest.skip("VOUCH_DATA_DIR is not set: the real data is not here")
    return Path(configured)
