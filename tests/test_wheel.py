"""The wheel: what it installs, that it is built twice the same, and that it works alone."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

import vouch_search
from tests.end_to_end.processes import Service

ROOT = Path(__file__).parents[1]
EXTRAS = ("serve", "build", "client", "tables")
"""What `make demo` installs."""


@pytest.fixture(scope="session")
def hook() -> ModuleType:
    spec = spec_from_file_location("wheel_hook", ROOT / ".ci" / "wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class TestRenaming:
    MODULES = ("service", "service.client", "model_store", "model_store.errors")

    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            ("from service.client import A\n", "from vouch_search.service.client import A\n"),
            ("def f():\n    from model_store import b\n", None),
            (
                "x = import_module('service.client')",
                "x = import_module('vouch_search.service.client')",
            ),
            (
                'é = 1; x = ["a", "service.client"]',
                'é = 1; x = ["a", "vouch_search.service.client"]',
            ),
            (
                "x = 'service.name', 'service', 'model_store'",
                "x = 'service.name', 'service', 'model_store'",
            ),
            (
                "from services import a\nfrom .service import b\n",
                "from services import a\nfrom .service import b\n",
            ),
            (
                "'''from service.client import A'''\n# from service import b\n",
                "'''from service.client import A'''\n# from service import b\n",
            ),
        ],
    )
    def test_modules_and_nothing_else_are_renamed(
        self, hook: ModuleType, source: str, expected: str | None
    ) -> None:
        renamed = hook.renamed(source, self.MODULES, "file.py")
        assert renamed == (expected or source.replace("from model", "from vouch_search.model"))

    @pytest.mark.parametrize(
        "source",
        [
            "import service.client",
            "import os, model_store",
            "import_module(f'service.{name}')",
            "import_module('service.' 'client')",
        ],
    )
    def test_other_way_to_name_a_module_is_refused(self, hook: ModuleType, source: str) -> None:
        with pytest.raises(ValueError, match=r"file\.py:1: "):
            hook.renamed(source, self.MODULES, "file.py")


def test_extras_that_messages_advise_exist() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    advised = set()
    for package in ("model_store", "service", "index_builder", "vouch_search"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and getattr(node.func, "id", None) == "how_to_install"
                    and isinstance(node.args[0], ast.Constant)
                ):
                    advised.add(str(node.args[0].value))
    assert len(advised) > 5
    for extra in advised:
        assert f"\n{extra} = [\n" in text, f"{extra} is no extra"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.mark.process
class TestVersion:
    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for name in ("Makefile", "pyproject.toml", "vouch_search/__init__.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(ROOT / name, tmp_path / name)
        return tmp_path

    def make(self, tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = f"HATCHLING={sys.executable} -m hatchling"
        command = ["make", "--silent", "--old-file=.venv/bin/uv", "version", program, *arguments]
        return subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)

    def test_version_of_a_tag_is_that_of_package_and_distribution(self, tree: Path) -> None:
        for _ in range(2):  # again for the same tag
            done = self.make(tree, "TAG=v12.3.4")
            assert done.returncode == 0, done.stderr
        assert '\n__version__ = "12.3.4"\n' in (tree / "vouch_search/__init__.py").read_text(
            "utf-8"
        )
        ask = [sys.executable, "-m", "hatchling", "version"]
        said = subprocess.run(ask, cwd=tree, check=True, capture_output=True, text=True)
        assert said.stdout == "12.3.4\n"

    @pytest.mark.parametrize("arguments", [("TAG=v12.three",), ("TAG=latest",), ()])
    def test_other_tag_is_refused_and_nothing_is_written(
        self, tree: Path, arguments: tuple[str, ...]
    ) -> None:
        assert self.make(tree, *arguments).returncode != 0
        written = (tree / "vouch_search/__init__.py").read_bytes()
        assert written == (ROOT / "vouch_search/__init__.py").read_bytes()


def test_npm_package_has_the_version_of_the_release() -> None:
    package = json.loads((ROOT / "service/client/element/package.json").read_text("utf-8"))
    assert package["version"] == vouch_search.__version__.partition(".dev")[0]


@pytest.mark.process
@pytest.mark.slow
class TestDistribution:
    def test_wheel_has_the_version_of_the_package(self, wheel: Path) -> None:
        assert wheel.name == f"vouch_search-{vouch_search.__version__}-py3-none-any.whl"

    def test_wheel_installs_one_name_without_documentation_or_tests(self, wheel: Path) -> None:
        names = zipfile.ZipFile(wheel).namelist()
        tops = {name.partition("/")[0] for name in names}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"vouch_search"}
        assert not [name for name in names if name.endswith(("README.md", ".pyc"))]
        page = [name for name in names if name.startswith("vouch_search/service/http/page/")]
        assert len(page) > 30

    def test_wheel_of_the_sdist_is_the_same_file(
        self, built: Path, wheel: Path, tmp_path: Path
    ) -> None:
        (sdist,) = built.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(tmp_path, filter="data")
        (source,) = tmp_path.iterdir()
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
        subprocess.run(command, cwd=source, check=True, capture_output=True)
        (again,) = tmp_path.glob("*.whl")
        digests = {hashlib.sha256(one.read_bytes()).hexdigest() for one in (wheel, again)}
        assert len(digests) == 1

    def test_package_index_would_take_it(self, built: Path, wheel: Path) -> None:
        files = map(str, built.iterdir())
        subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
        subprocess.run([sys.executable, "-m", "check_wheel_contents", str(wheel)], check=True)


@pytest.fixture(scope="session")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel and what its extras name, and nothing else.

    Distributions are linked from where the tests run: this takes neither a network nor minutes.
    """
    place = tmp_path_factory.mktemp("alone") / "env"
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    (info,) = site.glob("vouch_search-*.dist-info")
    for found in needed_by(Distribution.at(info)):
        for name in {file.parts[0] for file in found.files or () if ".." not in file.parts}:
            target, link = Path(str(found.locate_file(name))), site / name
            if target.exists() and not link.exists() and not name.endswith(".pth"):
                link.symlink_to(target)
    programs = place / "bin"
    for point in Distribution.at(info).entry_points:
        start = f"import sys; from {point.module} import {point.attr}; sys.exit({point.attr}())"
        script = programs / point.name
        script.write_text(f"#!{programs / 'python'}\n{start}\n", "utf-8")
        script.chmod(0o755)
    return programs


def needed_by(wheel: Distribution) -> Iterator[Distribution]:
    """Yield what the extras need, and what that needs, as the metadata say."""
    seen: set[tuple[str, str]] = set()
    waiting = [(wheel, extra) for extra in ("", *EXTRAS)]
    while waiting:
        found, extra = waiting.pop()
        for line in found.requires or ():
            wanted = Requirement(line)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
                continue
            try:
                needed = wheel if wanted.name == "vouch-search" else distribution(wanted.name)
            except PackageNotFoundError:
                continue  # of a GPU, which this environment leaves out
            for one in ("", *wanted.extras):
                if (needed.name, one) not in seen:
                    seen.add((needed.name, one))
                    waiting.append((needed, one))
                    if needed is not wheel:
                        yield needed


@pytest.mark.process
@pytest.mark.slow
def test_wheel_builds_serves_and_searches_without_the_checkout(alone: Path, tmp_path: Path) -> None:
    environment = {"PATH": f"{alone}:/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    own = (
        "import vouch_search, sys; sys.exit(str(vouch_search.__file__).startswith(sys.prefix) - 1)"
    )
    run("python", "-c", own)
    for name in ("service", "model_store", "index_builder", "pytest"):
        missing = (
            f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{name}') is not None)"
        )
        run("python", "-c", missing)
    assert run("vouch-build", "--version").startswith("vouch-build ")
    for kind in ("airplane", "camera", "dolphin", "flamingo", "lobster", "umbrella"):
        shutil.copytree(ROOT / "docs/demo/photographs" / kind, tmp_path / "photographs" / kind)
    built = json.loads(run("vouch-build", "all", "--images", "photographs", "--json"))
    assert built["bundle"].startswith("bundles/photographs/")
    # Five: after more items of the gallery itself, a service takes its caller's queries for drift,
    # and withdraws `guaranteed`. The library keeps no record of its caller.
    (tmp_path / "asked").mkdir()
    for path in sorted((tmp_path / "photographs" / "camera").iterdir())[:5]:
        shutil.copy(path, tmp_path / "asked")
    run("vouch-search", "asked", "--gallery", "bundles/photographs", "--out", "a.csv")
    program = ("env", "-u", "PYTHONPATH", str(alone / "vouch-serve"))
    bundles, log = tmp_path / "bundles" / "photographs", tmp_path / "service.log"
    with Service(bundles, log, {"PATH": environment["PATH"]}, program) as service:
        url = f"{service.http.base_url}/v1/galleries/photographs"
        run("vouch-search", "asked", "--gallery", url, "--out", "b.csv")
        assert "Vouch" in service.http.get("/").text
    assert (tmp_path / "a.csv").read_text("utf-8") == (tmp_path / "b.csv").read_text("utf-8")
    assert (tmp_path / "a.csv").read_text("utf-8").count(",camera,") == 5
