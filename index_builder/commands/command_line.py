"""Conventions of all commands: options, help, output, and Ctrl+C.

Help has the layout of uv and ruff: each option is on its own line, with its description below. In
this layout, descriptions have the full width, and no name is cut off.
"""

from __future__ import annotations

import inspect
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from typer.core import TyperCommand, TyperGroup
from typer.models import ParameterInfo

from index_builder.progress import error_console, set_output
from model_store.errors import UsageError
from model_store.programs import INTERRUPTED


class Options(BaseModel):
    """The options of a command: one field for each option, with its help in the docstring below it.

    An annotation with `typer.Option` or `typer.Argument` is used unchanged.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


OptionsT = TypeVar("OptionsT", bound=Options)
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_LIMITS = "ge", "le"


def with_options(
    options: type[OptionsT],
) -> Callable[[Callable[[OptionsT], None]], Callable[..., None]]:
    """Return a decorator that makes the fields of ``options`` the parameters of a command."""

    def decorated(command: Callable[[OptionsT], None]) -> Callable[..., None]:
        @wraps(command)
        def called(**given: Any) -> None:  # noqa: ANN401 - typer has checked them
            command(options(**given))

        parameters = [_parameter(name, field) for name, field in options.model_fields.items()]
        vars(called)["__signature__"] = inspect.Signature(parameters)
        return called

    return decorated


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Return the parameter of a command for a field of its options."""
    default = inspect.Parameter.empty if field.is_required() else field.default
    explicit = [one for one in field.metadata if isinstance(one, ParameterInfo)]
    if not explicit:
        flag = ["--" + name.replace("_", "-")] if default is False else []  # without --no-…
        text = " ".join((field.description or "").split())
        least, most = limits_of(field)
        explicit = [typer.Option(*flag, help=text, min=least, max=most)]
    annotated: Any = Annotated  # for mypy, which takes the annotation to be a type of this line
    kind = annotated[field.annotation, explicit[0]]
    return inspect.Parameter(name, _KEYWORD, default=default, annotation=kind)


def limits_of(field: FieldInfo) -> tuple[float | None, float | None]:
    """Return the least and the greatest value of a field; None for no limit."""
    found = {
        name: getattr(one, name) for one in field.metadata for name in _LIMITS if hasattr(one, name)
    }
    return found.get("ge"), found.get("le")


PROMISES = ("max_error", "max_false_match_rate", "expected_absent", "alpha", "coverage")
"""Options that are settings of ``[calibration]``."""

_OUTCOME = ("require", "as_json")

PANELS: dict[str, dict[str, tuple[str, ...]]] = {
    "all": {
        "Source": ("images", "vectors", "items", "labels", "root", "config"),
        "Encoder": ("encoder", "encoder_name"),
        "Output": ("name", "database", "run", "bundles", "dry_run", *_OUTCOME),
    },
    "index": {
        "Source": ("items", "labels", "root", "config"),
        "Encoder": ("encoder", "encoder_name", "provider"),
        "Calibration": ("calibrate", *PROMISES, "parents", "levels"),
        "Index": ("index", "memory_budget", "min_recall", "filter_field", "previews", "database"),
        "Limits": ("max_bad", "strict", "max_pixels", "max_bytes", "fetch_seconds"),
        "Work": ("resume", "workers", "engine"),
        "Output": ("name", "description", "run", "bundles", "dry_run", *_OUTCOME),
    },
    "encoder": {
        "Model": ("timm", "open_clip", "hf", "torchvision", "torch", "onnx"),
        "Weights": ("weights", "untrained", "seed"),
        "Graph": ("pooling", "prefix_tokens", "output", "text"),
        "Images": ("preprocess", "reduced_decoding"),
        "Precision": ("precision", "recall_tolerance", "images"),
        "Vectors instead of a model": ("vectors", "encoder_name"),
        "Output": ("out",),
    },
    "calibrate": {
        "Queries": ("queries", "items", "gallery", "gallery_items", "captions"),
        "True matches": ("parents", "levels", "within"),
        "Promises": PROMISES,
        "Reviewers": ("feedback", "decisions"),
        "Configuration": ("config", "run"),
        "Output": _OUTCOME,
    },
    "reproduce": {
        "Measurement": ("protocol", "methods", "objective", "seeds"),
        "Training": ("epochs", "weights", "device", "precision"),
        "Data": ("data", "download", "allow_partial"),
        "Work": ("jobs", "out"),
    },
}
PANELS["show"] = PANELS["all"]
"""Panels by command, with the parameter names of their options."""

_NAMES_OF_VALUES = {
    "FILE": "archive captions config decisions feedback gallery_items items key new_key onnx page "
    "parents preprocess public_key table vectors",
    "NAME": "encoder_name hf name objective protocol timm torchvision",
    "SHARE": "alpha coverage expected_absent max_error max_false_match_rate min_recall "
    "recall_tolerance",
    "FIELD,...": "filter_field levels",
    "ID": "bundle_id item_id",
    "PIXELS": "max_pixels previews",
    "SIZE": "max_bytes memory_budget",
    "DATE": "day",
    "ENCODER": "encoder",
    "FEEDBACK": "kept",
    "FILE,...": "trust",
    "FILE.py:FACTORY": "torch",
    "JSON": "metadata",
    "LIMIT,...": "require",
    "METRES": "within",
    "MODEL/PRETRAINED": "open_clip",
    "NAME,...": "methods",
    "PATH|URL": "root",
    "SECONDS": "fetch_seconds",
    "SHARE|N": "max_bad",
    "SOURCE": "queries",
    "URL": "database",
}
VALUES = {name: value for value, names in _NAMES_OF_VALUES.items() for name in names.split()}
"""The name of each parameter's value in the help. Other values are named after their type."""


GLOBAL_OPTIONS = "Global options"

_WIDEST, _DESCRIPTION = 100, 10
"""Maximum width of help in columns, and number of columns before an option's description."""

_VALUES = {"str": "TEXT", "path": "PATH", "int": "N", "float": "NUMBER"}
"""Names of option values in the help, by type of the value."""

VerboseOption = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Show log messages of all libraries, and tracebacks of errors.",
        rich_help_panel=GLOBAL_OPTIONS,
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Print results and errors only: no progress, notes or warnings.",
        rich_help_panel=GLOBAL_OPTIONS,
    ),
]


class CommandLine(typer.Typer):
    """A command line whose commands have ``--verbose``, ``--quiet`` and the help of this module."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's own
        settings.setdefault("add_completion", False)
        super().__init__(
            cls=CommandGroup,
            no_args_is_help=True,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
            context_settings={"help_option_names": ["-h", "--help"]},
            **settings,
        )

    def command(self, name: str | None = None, **settings: Any) -> Callable[..., Any]:  # noqa: ANN401
        """Return a decorator that adds a function as a command, like `typer.Typer.command`."""
        add = super().command(name, cls=Command, **settings)
        return lambda function: add(_with_output_options(function))


class Command(TyperCommand):
    """A command with the help of this module; Ctrl+C ends the command without a traceback."""

    def __init__(self, *args: Any, **settings: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(*args, **settings)
        shown: list[Any] = self.params
        for param in shown:
            param.metavar = param.metavar or VALUES.get(param.name)
            if param.param_type_name == "argument":
                param.metavar = param.metavar or param.name.upper()

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - private types
        """Write the help of the command."""
        formatter.write(help_of(self, ctx))

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401
        """Run the command."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            error.add_note(f"Try '{ctx.command_path} --help' for help.")
            raise
        except KeyboardInterrupt:
            error_console.print("interrupted", highlight=False)
            raise typer.Exit(INTERRUPTED) from None


class CommandGroup(TyperGroup):
    """A group of commands with the help of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - private types
        """Write the help of the group."""
        formatter.write(help_of(self, ctx))


def given_options(values: Mapping[str, object]) -> str:
    """Return the given options in command-line form, for example --max-error, --alpha.

    Parameters
    ----------
    values : values by field name; None or False if the option was not given.
    """
    given = [name for name, value in values.items() if value is not None and value is not False]
    return ", ".join("--" + name.replace("_", "-") for name in given)


def help_of(command: Command | CommandGroup, ctx: Any) -> str:  # noqa: ANN401
    """Return the help of a command, in the terminal's width, at most 100 columns."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    shown = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if param.param_type_name == "argument"]
    usage = [ctx.command_path, "[OPTIONS]", *map(_usage_of, arguments)]
    if isinstance(command, CommandGroup):
        usage.append(command.subcommand_metavar)
    paragraphs = [f"{_heading('Usage')} {' '.join(usage)}", *_paragraphs(command.help, width)]
    if isinstance(command, CommandGroup):
        paragraphs += _commands(command, ctx, width)
    options = {param.name: param for param in shown if param.param_type_name == "option"}
    panels: dict[str, list[Any]] = {"Arguments": arguments}
    for panel, names in PANELS.get(command.name or "", {}).items():
        panels[panel] = [options.pop(name) for name in names if name in options]
    for option in options.values():
        panels.setdefault(_panel_of(option), []).append(option)
    common = panels.pop(GLOBAL_OPTIONS, [])
    for panel, params in {**panels, GLOBAL_OPTIONS: common}.items():
        if params:
            entries = [line for param in params for line in _entry(param, ctx, width)]
            paragraphs.append("\n".join([_heading(panel), *entries]))
    return "\n\n".join([*paragraphs, *_paragraphs(command.epilog, width)]) + "\n"


def _commands(group: CommandGroup, ctx: Any, width: int) -> Iterator[str]:  # noqa: ANN401
    """Yield the commands of each panel, in the order of definition."""
    panels: dict[str, list[Any]] = {}
    for name in group.list_commands(ctx):
        command: Any = group.get_command(ctx, name)
        if not command.hidden:
            panels.setdefault(command.rich_help_panel or "Commands", []).append(command)
    longest = max(len(command.name) for commands in panels.values() for command in commands)
    for panel, commands in panels.items():
        lines = [_heading(panel)]
        for command in commands:
            brief = next(_paragraphs(command.short_help or command.help, width - longest - 4))
            first, *others = brief.splitlines()
            lines.append(f"  {_name(command.name)}{' ' * (longest - len(command.name) + 2)}{first}")
            lines += [" " * (longest + 4) + line for line in others]
        yield "\n".join(lines)


def _entry(param: Any, ctx: Any, width: int) -> Iterator[str]:  # noqa: ANN401
    """Yield the help lines of an argument or option."""
    if param.param_type_name == "argument":
        yield f"  {_name(_usage_of(param))}"
    else:
        names = sorted(param.opts, key=len)
        indent = "  " if len(names[0]) == 2 else " " * 6
        value = "" if param.is_flag else f" {_value_of(param, ctx)}"
        yield (
            indent
            + " / ".join(_name(", ".join(one)) for one in (names, param.secondary_opts) if one)
            + value
        )
    text = " ".join([param.help or "", *_notes(param)])
    for paragraph in _paragraphs(text, width - _DESCRIPTION):
        yield textwrap.indent(paragraph, " " * _DESCRIPTION)


def _notes(param: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield notes: the default, the environment variable, and whether the option is required."""
    default = getattr(param.default, "value", param.default)
    if isinstance(default, bool):
        default = param.opts[0] if default and param.secondary_opts else None
    if param.show_default and default not in (None, "", (), []):
        yield f"[default: {default}]"
    if param.envvar:
        yield f"[env: {param.envvar}]"
    if param.required and param.param_type_name == "option":  # usage shows it
        yield "[required]"


def _usage_of(argument: Any) -> str:  # noqa: ANN401
    name = argument.metavar + ("" if argument.nargs == 1 else "...")
    return name if argument.required else f"[{name}]"


def _value_of(option: Any, ctx: Any) -> str:  # noqa: ANN401
    """Return the name of an option's value in the help, or the choices of the option."""
    if option.metavar is not None:
        return str(option.metavar)
    shown: str = option.display_type(ctx).strip("<>").removesuffix(" range")
    kind = shown.removeprefix("list[").removesuffix("]")
    return _VALUES.get(kind.lower(), kind)


def _panel_of(option: Any) -> str:  # noqa: ANN401
    common = {"--help", "--install-completion", "--show-completion"}
    panel: str | None = getattr(option, "rich_help_panel", None)
    return panel or (GLOBAL_OPTIONS if common & set(option.opts) else "Options")


def _paragraphs(text: str | None, width: int) -> Iterator[str]:
    """Yield the re-wrapped paragraphs of a text; indented paragraphs keep their lines."""
    for paragraph in inspect.cleandoc(text or "").split("\n\n"):
        if paragraph.startswith(" "):
            yield paragraph
        elif paragraph:
            yield textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)


def _heading(text: str) -> str:
    return _styled(f"{text}:", underline=True)


def _name(text: str) -> str:
    return _styled(text, fg="cyan")


def _styled(text: str, *, fg: str | None = None, underline: bool | None = None) -> str:
    """Return styled ``text``; no styles with NO_COLOR. Typer removes styles outside a terminal."""
    if os.environ.get("NO_COLOR"):
        return text
    styled: str = typer.style(text, bold=True, fg=fg, underline=underline)
    return styled


def _with_output_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add ``--verbose`` and ``--quiet`` to the parameters of a command."""

    @wraps(function)
    def called(*, verbose: bool, quiet: bool, **given: Any) -> None:  # noqa: ANN401 - typer's
        set_output(verbose=verbose, quiet=quiet)
        function(**given)

    signature = inspect.signature(function, eval_str=True)
    added = [
        inspect.Parameter(name, _KEYWORD, default=False, annotation=kind)
        for name, kind in {"verbose": VerboseOption, "quiet": QuietOption}.items()
    ]
    parameters: Sequence[inspect.Parameter] = [*signature.parameters.values(), *added]
    vars(called)["__signature__"] = signature.replace(parameters=parameters)
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called
