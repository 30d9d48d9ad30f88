"""Reference pages that are generated from the code.

When Sphinx reads a page, each line ``<!-- generated: NAME -->`` is replaced by Markdown. The
Markdown is generated from the models of settings and builds, the parsers of the programs, the
OpenAPI snapshot, the metrics and the error classes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError

from model_store.errors import BuildError, VouchError
from model_store.messages import MESSAGES
from tests.benchmarks import measured

ROOT = Path(__file__).parents[2]
MARKER = re.compile(r"^<!-- generated: ([\w-]+) -->$", re.MULTILINE)
SCHEMAS = "#/components/schemas/"


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _insert)
    app.connect("env-get-outdated", _pages_of_code)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _insert(_: Sphinx, page: str, source: list[str]) -> None:
    """Replace the markers of a page with the generated Markdown."""

    def text_of(found: re.Match[str]) -> str:
        if found[1] not in GENERATED:
            raise ExtensionError(
                f"{page}: nothing generates {found[1]!r}. Use one of {', '.join(GENERATED)}."
            )
        return "\n".join(GENERATED[found[1]]())

    source[0] = MARKER.sub(text_of, source[0])


def _pages_of_code(_: Sphinx, env: BuildEnvironment, *__: object) -> list[str]:
    """Return all pages with markers, so that Sphinx reads these pages again after code changes."""
    return [
        page
        for page in env.found_docs
        if MARKER.search(Path(env.doc2path(page)).read_text(encoding="utf-8"))
    ]


def settings() -> Iterator[str]:
    """Yield a table of the service's settings for each group."""
    from service.settings import Settings, settings_in_groups  # noqa: PLC0415 - a second

    for title, names in settings_in_groups().items():
        yield f"\n## {title}\n"
        yield from _table(
            ("variable", "default", "example", "effect"),
            (
                (
                    f"`VOUCH_{name.upper()}`",
                    _value(Settings.model_fields[name].get_default(call_default_factory=True)),
                    ", ".join(f"`{one}`" for one in Settings.model_fields[name].examples or ()),
                    _inline(Settings.model_fields[name].description),
                )
                for name in names
            ),
        )


def configuration() -> Iterator[str]:
    """Yield tables of the keys of a build configuration, from the JSON schema."""
    path = ROOT / "index_builder" / "configuration" / "build.schema.json"
    schema = json.loads(path.read_text("utf-8"))
    yield from _section("The file", schema, [])


def _section(title: str, schema: dict[str, Any], path: list[str]) -> Iterator[str]:
    """Yield a section of the configuration, and then its subsections."""
    rows, inside = [], []
    for key, value in schema.get("properties", {}).items():
        models = _models(value)
        inside += [(key, value, model) for model in models]
        if not models or _names(value):
            rows.append((f"`{key}`", _value(value.get("default")), _meaning(value)))
    yield f"\n## {title}\n"
    if path:
        yield _inline(schema.get("description")) + "\n"
    if rows:
        yield from _table(("key", "default", "meaning"), rows)
    for key, value, model in inside:
        place = ".".join([*path, key])
        variant = _variant(model) if len(_models(value)) > 1 else ""
        yield from _section(f"`[{place}]`{variant}", model, [*path, key])


def _models(value: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of the TOML tables that may be the value of a key."""
    alternatives = [value.get("items", value), *value.get("anyOf", []), *value.get("oneOf", [])]
    return [one for one in alternatives if isinstance(one, dict) and "properties" in one]


def _names(value: dict[str, Any]) -> bool:
    """Return whether the value of a key may be a name (a string) instead of a TOML table."""
    return any(one.get("type") == "string" for one in value.get("anyOf", []))


def _variant(model: dict[str, Any]) -> str:
    """Return the suffix of a section title that names the variant, such as " with kind NAME"."""
    for key in ("kind", "method"):
        if key in model["properties"]:
            field = model["properties"][key]
            names = field.get("enum") or [field.get("const") or field.get("default")]
            return f" with {key} {', '.join(map(str, names))}"
    return ""


def _meaning(value: dict[str, Any]) -> str:
    """Return the description of a key; add the allowed values if the description lacks them."""
    text = value.get("description", "")
    choices = [
        str(name)
        for one in (value, *value.get("anyOf", []))
        for name in one.get("enum", [])
        if str(name) not in text
    ]
    return _inline(text) + (f" ({', '.join(f'`{name}`' for name in choices)})" if choices else "")


def http() -> Iterator[str]:
    """Yield a section for each path of the service, grouped by tag, then one for each record."""
    document = json.loads((ROOT / "tests" / "service" / "openapi.json").read_text("utf-8"))
    tags: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tags.setdefault(operation["tags"][0], []).extend(
                _operation(f"{method.upper()} {path}", operation)
            )
    for tag, lines in tags.items():
        yield f"\n## {tag.capitalize()}\n"
        yield from lines
    yield "\n## Records\n"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"\n({_anchor(name)})=\n### {name}\n"
        yield _inline(schema.get("description")) + "\n"
        yield from _fields(schema)


def _operation(title: str, operation: dict[str, Any]) -> Iterator[str]:
    """Yield the section of one operation: a path with a method."""
    name = operation["operationId"].replace("_", "-")
    yield f"\n(http-{name})=\n### {name.replace('-', ' ').capitalize()}\n"
    yield f"`{title}`\n"
    yield operation.get("description", operation["summary"]) + "\n"
    scopes = {scope for one in operation.get("security", []) for s in one.values() for scope in s}
    if scopes:
        yield f"Scope: {', '.join(f'`{scope}`' for scope in sorted(scopes))}.\n"
    if operation.get("parameters"):
        yield from _table(
            ("parameter", "in", "type", "meaning"),
            (
                (
                    f"`{one['name']}`",
                    one["in"],
                    _type(one["schema"]),
                    _inline(one.get("description") or one["schema"].get("description")),
                )
                for one in operation["parameters"]
            ),
        )
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        yield f"Body (`{media}`): {_type(body['schema'])}\n"
    yield from _table(
        ("status", "body", "meaning"),
        (
            (
                status,
                ", ".join(_type(one.get("schema", {})) for one in response["content"].values())
                if "content" in response
                else "",
                _inline(response["description"]),
            )
            for status, response in sorted(operation["responses"].items())
        ),
    )


def _fields(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the table of a record's fields."""
    required = schema.get("required", [])
    if schema.get("properties"):
        yield from _table(
            ("field", "type", "default", "meaning"),
            (
                (
                    f"`{name}`",
                    _type(field),
                    "required" if name in required else _value(field.get("default")),
                    _inline(field.get("description")),
                )
                for name, field in schema["properties"].items()
            ),
        )
    elif "enum" in schema:
        yield ", ".join(f"`{one}`" for one in schema["enum"]) + "\n"


def _type(schema: dict[str, Any]) -> str:
    """Return the type of a value in words, with links to records."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(SCHEMAS)
        return f"[{name}](#{_anchor(name)})"
    if choices := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{one}`" for one in choices)
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in alternatives))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if schema.get("format") == "binary" or schema.get("contentMediaType"):
        return "file"
    return str(schema.get("type", "any"))


def _anchor(record: str) -> str:
    return f"record-{record.lower()}"


def command_line() -> Iterator[str]:
    """Yield the output of ``--help`` of all programs."""
    import typer  # noqa: PLC0415 - slow

    from index_builder.commands.app import app  # noqa: PLC0415 - slow
    from index_builder.commands.command_line import help_of  # noqa: PLC0415 - slow

    group = typer.main.get_command(app)
    yield "\n## vouch-build\n"
    yield from _help(group, "vouch-build", help_of)
    for name, command in _commands(group, "vouch-build"):
        yield f"\n## {name}\n"
        yield from _help(command, name, help_of)
    yield from _programs()


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's
    for title, command in group.commands.items():
        yield f"{name} {title}", command
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {title}")


def _help(command: Any, name: str, help_of: Callable[..., str]) -> Iterator[str]:  # noqa: ANN401
    context = command.make_context(name, [], resilient_parsing=True)
    yield from _block(re.sub(r"\x1b\[[0-9;]*m", "", help_of(command, context)))


def _programs() -> Iterator[str]:
    """Yield the help of the programs that use argparse."""
    from service import command_line as serve  # noqa: PLC0415 - a second
    from service.access import command as keys  # noqa: PLC0415 - a second
    from service.client import mcp_server as mcp  # noqa: PLC0415 - a second
    from vouch_search import command as many  # noqa: PLC0415 - a second

    for program in (serve, keys, many, mcp):
        parser = program._parser()
        yield f"\n## {parser.prog}\n"
        yield from _block(parser.format_help())
        for action in parser._actions:
            commands = action.choices if isinstance(action.choices, dict) else {}
            for name, command in commands.items():
                yield f"\n## {parser.prog} {name}\n"
                yield from _block(command.format_help())


def metrics() -> Iterator[str]:
    """Yield a table of the metrics of Prometheus."""
    from service.observability.metrics import Telemetry  # noqa: PLC0415 - a second
    from service.serving.metrics import GalleryMetrics  # noqa: PLC0415 - a second

    registered: Iterable[Any] = Telemetry().registry._collector_to_names
    counted = [
        (one._name, one._type, one._documentation, one._labelnames)
        for one in registered
        if hasattr(one, "_name")
    ]
    gauges = [
        (one.name, one.type, one.documentation, one._labelnames)
        for one in GalleryMetrics._families().values()
    ]
    yield from _table(
        ("metric", "type", "labels", "meaning"),
        (
            (
                f"`{name}_total`" if kind == "counter" else f"`{name}`",
                kind,
                ", ".join(f"`{label}`" for label in labels),
                _inline(text),
            )
            for name, kind, text, labels in sorted(counted + gauges)
        ),
    )


def errors() -> Iterator[str]:
    """Yield a table of the error codes with status and exception."""
    from service.http.problems import RETRY_AFTER_S, _snake_case, status_of  # noqa: PLC0415

    yield from _table(
        ("code", "status", "retry after", "exception", "meaning"),
        (
            (
                f"`{_snake_case(error.__name__)}`",
                str(status_of(error)),
                f"{RETRY_AFTER_S[error]} s" if error in RETRY_AFTER_S else "",
                f"`{error.__name__}`",
                _inline((error.__doc__ or "").split("\n\n")[0]),
            )
            for error in _served_errors()
        ),
    )


def reasons() -> Iterator[str]:
    """Yield a table of the reason codes, with the sentence of each code."""
    yield from _table(
        ("code", "sentence"),
        ((f"`{code}`", _inline(text.strip())) for code, text in MESSAGES.items()),
    )


def build_errors() -> Iterator[str]:
    """Yield a table of the index builder's errors; HTTP never returns these errors."""
    family: list[type[VouchError]] = [BuildError, *_family(BuildError)]
    yield from _table(
        ("exception", "meaning"),
        (
            (f"`{error.__name__}`", _inline((error.__doc__ or "").split("\n\n")[0]))
            for error in family
        ),
    )


def _served_errors() -> list[type[VouchError]]:
    found = [one for one in _family(VouchError) if not issubclass(one, BuildError)]
    return sorted(dict.fromkeys(found), key=lambda one: one.__name__)


def _family(root: type[VouchError]) -> list[type[VouchError]]:
    """Return the subclasses of an error class that are defined in ``model_store.errors``."""
    return [
        error
        for child in root.__subclasses__()
        if child.__module__.startswith("model_store.errors")
        for error in (child, *_family(child))
    ]


def bundle() -> Iterator[str]:
    """Yield the files of a bundle and the version of its manifest."""
    from model_store.bundles import manifest  # noqa: PLC0415 - a second

    (listing,) = re.findall(r"::\n\n((?:    .*\n|\n)+)", manifest.__doc__ or "")
    yield from _block(re.sub(r"^    ", "", listing, flags=re.MULTILINE))
    yield f"This release reads and writes schema version {manifest.SCHEMA_VERSION}.\n"


def glossary() -> Iterator[str]:
    """Yield the terms of the glossary in CONTRIBUTING; tests compare them with the code."""
    text = (ROOT / ".github" / "CONTRIBUTING.md").read_text("utf-8")
    section = text.split("## Glossary")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    for row in sorted(rows, key=str.casefold):
        term, sentence, place = (cell.strip() for cell in row.strip("|").split("|"))
        yield f"{term}\n: {sentence} Defined in {place}.\n"


def python() -> Iterator[str]:
    """Yield directives of autodoc for the public names of the library and of the client."""
    parts = (
        ("Galleries and answers", "vouch_search"),
        ("Plots", "vouch_search.plots"),
        ("Vectors and stores", "vouch_search.core"),
    )
    for title, module in parts:
        yield f"\n## {title}\n"
        for name in import_module(module).__all__:
            found = getattr(import_module(module), name)
            if isinstance(found, type):
                members = ":members:", *[":inherited-members: BaseModel"] * (name == "Client")
                yield from _directive("autoclass", f"{module}.{name}", *members)
            elif callable(found):
                yield from _directive("autofunction", f"{module}.{name}")
            else:
                yield from _directive("autodata", f"{module}.{name}")


def _directive(kind: str, name: str, *options: str) -> list[str]:
    lines = [f".. {kind}:: {name}", *(f"   {option}" for option in options)]
    return [f"### {name.rpartition('.')[2]}", "", "```{eval-rst}", *lines, "```", ""]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield ""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _block(text: str) -> list[str]:
    return ["````text", text.strip("\n"), "````", ""]


def _inline(text: str | None) -> str:
    """Return a description in one line. Markdown is escaped, except inline code."""
    parts = re.split(r"(``.+?``|`[^`]+`)", " ".join((text or "").split()))
    plain = [re.sub(r"([*_<>\[\]\\])", r"\\\1", part) for part in parts[::2]]
    code = [f"`{part.strip('`')}`" for part in parts[1::2]]
    return "".join(one for pair in zip(plain, [*code, ""], strict=True) for one in pair)


def _value(value: Any) -> str:  # noqa: ANN401 - any default
    """Return a default value as text for the page."""
    if hasattr(value, "get_secret_value"):
        value = value.get_secret_value()
    if value is None or value == "" or value in ({}, (), []):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | list):
        return f"`{','.join(map(str, value))}`"
    if isinstance(value, int) and value >= 2**20 and value % 2**20 == 0:
        return f"{value // 2**20:,} MiB"
    if isinstance(value, int) and value >= 10_000:
        return f"{value:,}"
    return f"`{value}`"


GENERATED: dict[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    "configuration": configuration,
    "http": http,
    "command-line": command_line,
    "metrics": metrics,
    "errors": errors,
    "build-errors": build_errors,
    "bundle": bundle,
    "python": python,
    "glossary": glossary,
    "measured": measured.pages,
    "reasons": reasons,
}
