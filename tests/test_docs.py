"""The documentation: the site builds without a warning, and what it shows exists.

Commands of all pages and READMEs are read by the parsers of the programs, requests by the OpenAPI
document, code by Python, configurations by the models of builds. `end_to_end/test_readme.py` runs
those that need a gallery.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
import yaml

from index_builder.commands.app import app
from index_builder.configuration.build import load_config
from index_builder.configuration.file import schema_file
from index_builder.configuration.schema import SCHEMA_FILE
from model_store.errors import VouchError
from service.access.command import _parser as keys_parser
from service.client.mcp_server import _parser as mcp_parser
from service.command_line import _parser as serve_parser
from service.http.problems import _snake_case, status_of
from service.settings import Settings
from vouch_search.command import _parser as search_parser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if not {"demo", "decisions"} & set(path.parts))
NOTEBOOKS = [page for page in PAGES if "file_format: mystnb" in page.read_text("utf-8")]
TEXT = "\n".join(page.read_text("utf-8") for page in PAGES)
READMES = sorted(
    page
    for name in (
        ".github",
        "docker",
        "docs/decisions",
        "index_builder",
        "model_store",
        "service",
        "tests",
        ".",
    )
    for page in ((ROOT / name).glob("*.md") if name == "." else (ROOT / name).rglob("*.md"))
    if "node_modules" not in page.parts
)
OPTIONS_OF_OTHERS = {
    *("--nproc-per-node", "--no-python", "--scale", "--install-completion"),
    *("--paper", "--surface", "--ink", "--muted", "--rule", "--accent", "--serif"),  # CSS
}
MAX_PAGES, MAX_WORDS = 38, 900
MAX_WORDS_OF_README, MAX_WORDS_OF_MAP = 500, 150
PARTS = ("start", "howto", "reference", "explanation")
OPENAPI = json.loads((ROOT / "tests" / "service" / "openapi.json").read_text("utf-8"))

BUILD: Any = typer.main.get_command(app)
LANGUAGES = {
    "sh",
    "bash",
    "python",
    "toml",
    "json",
    "text",
    "ts",
    "html",
    "yaml",
    "{code-cell}",
    "{toctree}",
    "{eval-rst}",
}
OTHER_PROGRAMS = {"pip", "uvx", "npm", "npx", "ln", "python", "docker", "source", "echo"}
OTHER_PROGRAMS |= {"docker/roll.sh", "git", "helm", "kubectl"}
OTHER_PROGRAMS |= {"systemctl", "useradd", "install", "cp", "python3", "tar"}
OTHER_PROGRAMS |= {"pg_dump", "pg_restore", "psql"}
"""Programs of others, whose options we do not check."""
OUTSIDE = {"BIND", "BUNDLES", "BUNDLES_ACCESS", "KEYS_DIR", "MEMORY", "BUILD_MEMORY", "DATA_DIR"}
OUTSIDE |= {"REPLICAS", "BACKUPS", "MILVUS_AUTHORIZATION", "MILVUS_PASSWORD", "MILVUS_MEMORY"}
OUTSIDE |= {"URL", "API_KEY", "TEST_MILVUS", "WRITE_OPENAPI", "ALLOWED_ORIGINS"}
"""Variables that the compose file, the builder, the client and the tests read."""


FENCED = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block."""

    page: Path
    language: str
    text: str


def blocks() -> Iterator[Block]:
    for page in [*PAGES, *READMES]:
        text = page.read_text("utf-8")
        for language, block in re.findall(
            r"^```(\S*)[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
        ):
            yield Block(page, language, block)


BLOCKS = list(blocks())


def of(*languages: str) -> list[Any]:
    """Parameters of a test: the blocks of some languages."""
    return [
        pytest.param(block, id=f"{block.page.parent.name}/{block.page.stem}-{number}")
        for number, block in enumerate(BLOCKS)
        if block.language in languages
    ]


@pytest.fixture(scope="module")
def site(built_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does: notebooks are run, on the gallery of the demo."""
    notebooks = ROOT / "build" / "notebooks"
    shutil.rmtree(notebooks, ignore_errors=True)
    shutil.copytree(built_demo, notebooks / "demo")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", folder / "doctrees", DOCS, folder / "html"],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "html"


class _Loaded(HTMLParser):
    """Addresses that a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag != "a":
            names = dict(attributes)
            self.addresses += filter(None, (names.get("src"), names.get("href")))


@pytest.mark.process
@pytest.mark.timeout(1800)  # four notebooks, on a machine that may be busy
def test_site_builds_offline_with_all_that_the_code_has(site: Path) -> None:
    assert (site / "searchindex.js").stat().st_size > 10_000
    for page in site.rglob("*.html"):
        loaded = _Loaded()
        loaded.feed(page.read_text("utf-8"))
        assert not [one for one in loaded.addresses if "//" in one], page

    def has(page: str, names: set[str]) -> None:
        text = (site / f"{page}.html").read_text("utf-8")
        assert {name for name in names if name not in text} == set(), page

    settings = {f"VOUCH_{name.upper()}" for name in Settings.model_fields}
    has(
        "reference/settings",
        settings | {"vouch_requests_total", "vouch_drift_alarm", "route", "gallery"},
    )
    has(
        "reference/command-line",
        {f"vouch-build {name}" for name in BUILD.commands} | {"vouch-keys create"},
    )
    has("reference/http", {*OPENAPI["paths"], *OPENAPI["components"]["schemas"]})
    has("reference/http", {"invalid_filter", "overloaded", "TrainingDiverged"})
    has("reference/settings", {"withheld_labels", "[training.objective]", "bayesian_triplet"})
    has(
        "reference/python",
        {"vouch_search.open", "vouch_search.Client.put_item", "vouch_search.core.decide_list"},
    )
    has("reference/bundle", {"manifest.json", "encoder.onnx"})
    has("explanation/answer", {"absent query", "conformal p-value"})


@pytest.mark.process
@pytest.mark.timeout(1800)
def test_notebooks_are_run_and_show_their_plots(site: Path) -> None:
    assert len(NOTEBOOKS) >= 4
    for page in NOTEBOOKS:
        cells = [one for one in BLOCKS if (one.page, one.language) == (page, "{code-cell}")]
        n_plots = sum("plt.subplots" in one.text for one in cells)
        shown = (site / page.relative_to(DOCS).with_suffix(".html")).read_text("utf-8")
        alternatives = re.findall(r'<img alt="([^"]+)" src="\.\./_images/\w+\.png"', shown)
        assert 0 < n_plots == len(alternatives), page
        assert not any("_images" in text for text in alternatives), page
        assert "Traceback" not in shown, page


def test_pages_are_few_and_short() -> None:
    assert 25 <= len(PAGES) <= MAX_PAGES
    words = {str(page): len(page.read_text("utf-8").split()) for page in PAGES}
    assert {page: n for page, n in words.items() if n > MAX_WORDS} == {}
    readmes = [page for page in READMES if page.name == "README.md"]
    words = {str(page): len(page.read_text("utf-8").split()) for page in readmes}
    assert {page: n for page, n in words.items() if n > MAX_WORDS_OF_README} == {}


def test_every_page_is_one_click_from_the_front_page() -> None:
    front = (DOCS / "index.md").read_text("utf-8")
    listed = [
        line
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```$", front, re.MULTILINE | re.DOTALL)
        for line in tree.splitlines()
        if line.startswith(PARTS)
    ]
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in PAGES} - {"index"}
    assert sorted(listed) == sorted(pages)


def test_blocks_are_of_languages_that_are_checked() -> None:
    assert {block.language for block in BLOCKS} <= LANGUAGES


@pytest.mark.parametrize("block", of("sh", "bash"))
def test_commands_are_those_of_the_programs(block: Block) -> None:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.partition(" | ")[0], comments=True)
        while words and (words[0] == "export" or re.match(r"[A-Z_]+=", words[0])):
            variable = words.pop(0).partition("=")[0]
            assert variable == "export" or _is_variable(variable), variable
        if words:
            _check(words)


def test_commands_of_notebooks_are_those_of_the_programs() -> None:
    """Also of the gallery that two notebooks build where it is missing."""
    found = re.findall(r"!vouch-build -q (.*)", TEXT)
    assert len(found) == TEXT.count("!vouch-build") >= 4
    for line in found:
        _check_build(re.sub(r"\{\w+\}", "x", line.replace("{options}", "")).split())


def _is_variable(name: str) -> bool:
    short = name.removeprefix("VOUCH_")
    return short in OUTSIDE or short.lower() in Settings.model_fields


def _check(words: list[str]) -> None:
    if words[:2] == ["sudo", "-u"]:
        words = words[3:]
    program, *arguments = words
    program = program.removeprefix("/opt/vouch/bin/")
    if program == "vouch-build":
        _check_build(arguments)
    elif program == "vouch-serve":
        serve_parser().parse_args(arguments)
    elif program == "vouch-keys":
        keys_parser().parse_args(arguments)
    elif program == "vouch-search":
        search_parser().parse_args(arguments)
    elif program == "make":
        text = (ROOT / "Makefile").read_text("utf-8")
        assert re.search(rf"^(?:.* )?{arguments[0]}(?: .*)?:", text, re.MULTILINE), arguments
    elif program == "curl":
        _check_request(arguments)
    else:
        assert program in OTHER_PROGRAMS, program


def _check_build(arguments: list[str]) -> None:
    """Read a command by its parser; typer ends with an exception where an option is unknown."""
    if arguments == ["--version"]:
        return
    command = BUILD
    name = "vouch-build"
    while hasattr(command, "commands"):
        name = f"{name} {arguments[0]}"
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(name, arguments)


def _check_request(arguments: list[str]) -> None:
    """Find the path and the method of a request in the OpenAPI document."""
    (address,) = [one for one in arguments if re.match(r"(http://)?(127\.0\.0\.1|localhost):", one)]
    path = re.sub(r"^(http://)?[^/]+", "", address).partition("?")[0]
    method = arguments[arguments.index("-X") + 1] if "-X" in arguments else None
    sends = {"-F", "--json", "--data-binary"} & set(arguments)
    method = method or ("POST" if sends else "GET")
    known = [
        methods
        for pattern, methods in OPENAPI["paths"].items()
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", pattern), path)
    ]
    assert any(method.lower() in methods for methods in known), (method, path)
    for number, one in enumerate(arguments):
        if one == "--json" and "$(" not in arguments[number + 1]:
            json.loads(arguments[number + 1])


@pytest.mark.parametrize("block", of("python"))
def test_code_imports_what_exists(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), block.text


@pytest.mark.parametrize("block", of("toml"))
def test_configurations_are_read(block: Block, tmp_path: Path) -> None:
    text = block.text
    if "[dataset]" not in text:
        text += '\n[dataset]\npath = "photographs"\n'
    (tmp_path / "mine.toml").write_text(text, "utf-8")
    assert load_config(str(tmp_path / "mine.toml")).name


@pytest.mark.parametrize("block", of("yaml"))
def test_settings_of_services_in_yaml_are_read(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = yaml.safe_load(block.text).get("services", {})
    environment = services.get("service", {}).get("environment", {})
    for name, value in environment.items():
        text = str(tmp_path) if name == "VOUCH_SECRETS_DIR" else str(value)  # it must exist
        monkeypatch.setenv(name, text)
    for name in environment:
        setting = name.removeprefix("VOUCH_").lower()
        assert getattr(Settings(), setting) != Settings.model_fields[setting].default


@pytest.mark.parametrize("block", of("json"))
def test_json_is_json(block: Block) -> None:
    assert json.loads(block.text)


def test_variables_exist() -> None:
    named = {
        name
        for page in [*PAGES, *READMES]
        if page.name != "CHANGELOG.md"  # it names what is gone
        for name in re.findall(r"VOUCH_[A-Z_]+", page.read_text("utf-8"))
    }
    assert {name for name in named if not _is_variable(name)} == set()


@pytest.mark.parametrize("page", READMES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_readmes_lead_somewhere(page: Path) -> None:
    """Files and headings; Sphinx checks the links of the site."""
    for place, anchor in re.findall(
        r"\]\(([^)#:\s]*)(?:#([\w-]+))?\)", page.read_text(encoding="utf-8")
    ):
        target = page.parent / place if place else page
        assert target.exists(), place
        if anchor:
            assert anchor in _anchors(target), (place, anchor)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).strip().replace(" ", "-") for one in headings}


def test_maps_of_packages_are_short() -> None:
    maps = ("docker", "index_builder", "model_store", "service", "service/client")
    words = {name: len((ROOT / name / "README.md").read_text("utf-8").split()) for name in maps}
    assert {name: n for name, n in words.items() if n > MAX_WORDS_OF_MAP} == {}


def test_metrics_that_are_named_exist() -> None:
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "service").rglob("*.py"))
    named = set(re.findall(r"`(vouch_[a-z_]+)[`{]", TEXT)) - {
        "vouch_search",
        "vouch_verdict",
    }  # FiftyOne's field
    assert {name for name in named if f'"{name}"' not in code} == set()


def test_problems_that_are_named_have_that_status() -> None:
    known = {(str(status_of(one)), _snake_case(one.__name__)) for one in _family(VouchError)}
    named = set(re.findall(r"(\d{3}) `([a-z_]+)`", TEXT))
    assert len(named) > 5
    assert named - known == set()


def _family(error: type[VouchError]) -> Iterator[type[VouchError]]:
    for child in error.__subclasses__():
        yield child
        yield from _family(child)


def test_options_that_are_named_exist() -> None:
    known = {
        option
        for command in _commands(BUILD)
        for one in command.params
        for option in (*one.opts, *one.secondary_opts)
    }
    parsers = [serve_parser(), keys_parser(), mcp_parser()]
    while parsers:
        for action in parsers.pop()._actions:
            known |= set(action.option_strings)
            if isinstance(action.choices, dict):
                parsers += action.choices.values()
    assert set(re.findall(r"`(--[a-z][a-z-]+)", TEXT)) - known - OPTIONS_OF_OTHERS == set()


def _commands(group: Any) -> Iterator[Any]:
    for command in group.commands.values():
        if hasattr(command, "commands"):
            yield from _commands(command)
        else:
            yield command


def test_the_shipped_schema_is_that_of_the_models() -> None:
    assert SCHEMA_FILE.read_text("utf-8") == schema_file(), "run `make tables`"
