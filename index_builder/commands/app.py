"""The program ``vouch-build``: all commands, in the order of the help."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.markup import escape

from index_builder.commands import (
    all_steps,
    bundles,
    encoder,
    evidence,
    index,
    live,
    steps,
)
from index_builder.commands.command_line import (
    GLOBAL_OPTIONS,
    CommandLine,
    QuietOption,
    VerboseOption,
)
from index_builder.configuration.environment import explained, require_known_variables
from index_builder.progress import error_console, is_verbose, messages_shown, set_output
from index_builder.storage.urls import without_secrets
from model_store.errors import RequirementNotMet, UsageError, VouchError
from model_store.files import disk_error
from model_store.installation import how_to_install
from model_store.machine import OF_INDEXING, tune_malloc
from model_store.programs import version_line

BUILD, GALLERIES, BUNDLES = "Build", "Galleries", "Bundles"
EVIDENCE, OPERATIONS = "Evidence", "Operations"

STATUSES = """\
Exit status:

  0    done
  1    an error, described in one line on standard error
  2    unknown or contradictory options or arguments
  3    a requirement of --require is not met
  130  interrupted by Ctrl+C

`vouch-build COMMAND --help` describes a command. NO_COLOR=1 turns colours off."""

app = CommandLine(
    help="Build galleries for Vouch: train or import an encoder, embed images, calibrate, "
    "evaluate, publish.\n\nEach step reads and writes files in a run directory; `all` runs every "
    "step.",
    epilog=STATUSES,
    add_completion=True,
)


def _print_version(value: bool) -> None:
    if value:
        print(version_line("vouch-build"))
        raise typer.Exit


@app.callback()
def vouch_build(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version and exit.",
            rich_help_panel=GLOBAL_OPTIONS,
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Apply the global options, which may also precede a command."""
    set_output(verbose=verbose, quiet=quiet)
    require_known_variables()


app.command("all", rich_help_panel=BUILD)(all_steps.all_command)
for name, help_text in steps.SINGLE_STEPS.items():
    app.command(name, help=help_text, rich_help_panel=BUILD)(steps.single_step(name))
app.add_typer(all_steps.config_app, name="config", rich_help_panel=BUILD)
app.command("encoder", rich_help_panel=BUILD)(encoder.encoder_command)
app.command("index", rich_help_panel=BUILD)(index.index_command)
app.command("calibrate", rich_help_panel=BUILD)(evidence.calibrate_command)
app.command("evaluate", rich_help_panel=BUILD)(evidence.evaluate_command)
app.command("publish", rich_help_panel=BUILD)(steps.publish_command)
app.command("new", rich_help_panel=GALLERIES)(live.new_command)
app.add_typer(live.items_app, name="items", rich_help_panel=GALLERIES)
app.command("compact", rich_help_panel=GALLERIES)(live.compact_command)
app.command("unknown", rich_help_panel=GALLERIES)(evidence.unknown_command)
app.add_typer(live.feedback_app, name="feedback", rich_help_panel=GALLERIES)
app.command("bundles", rich_help_panel=BUNDLES)(bundles.bundles_command)
app.command("activate", rich_help_panel=BUNDLES)(bundles.activate_command)
app.command("rollback", rich_help_panel=BUNDLES)(bundles.rollback_command)
app.command("upgrade", rich_help_panel=BUNDLES)(bundles.upgrade_command)
app.command("prune", rich_help_panel=BUNDLES)(bundles.prune_command)
app.command("push", rich_help_panel=BUNDLES)(bundles.push_command)
app.command("pull", rich_help_panel=BUNDLES)(bundles.pull_command)
app.command("sign", rich_help_panel=BUNDLES)(bundles.sign_command)
app.command("compare", rich_help_panel=EVIDENCE)(evidence.compare_command)
app.command("certify", rich_help_panel=EVIDENCE)(bundles.certify_command)
app.command("verify", rich_help_panel=EVIDENCE)(bundles.verify_command)
app.command("reproduce", rich_help_panel=EVIDENCE)(steps.reproduce_command)
app.command("doctor", rich_help_panel=OPERATIONS)(bundles.doctor_command)
app.command("absent-share", rich_help_panel=OPERATIONS)(bundles.absent_share_command)
app.command("acknowledge", rich_help_panel=OPERATIONS)(bundles.acknowledge_command)
app.command("backup", rich_help_panel=OPERATIONS)(live.backup_command)
app.command("restore", rich_help_panel=OPERATIONS)(live.restore_command)

_OF_THE_BUILDER = {"torch", "torchvision", "sklearn", "onnx", "jinja2", "safetensors"}


def run(program: str) -> None:
    """Run the command from the arguments of this process.

    Raises
    ------
    SystemExit : with the exit status.
    """
    tune_malloc(OF_INDEXING)
    with messages_shown():
        sys.exit(_status_of(program))


def _status_of(program: str) -> int:
    """Run a command; print its error, if any, and return the exit status."""
    try:
        return _run(program)
    except typer.Abort:
        return 1
    except typer.TyperException as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
            typer.echo(error.format_message(), err=True)
            return 2
        context = getattr(error, "ctx", None)
        hints = [f"Try '{context.command_path} --help' for help."] if context else []
        _explain(error.format_message().replace("Value error, ", ""), hints)
        return error.exit_code
    except VouchError as error:
        _explain(explained(error), getattr(error, "__notes__", []))
        statuses: dict[type[VouchError], int] = {RequirementNotMet: 3, UsageError: 2}
        return statuses.get(type(error), 1)
    except Exception as error:
        why = disk_error(error)
        if why is None:
            raise
        _explain(why)
        return 1


def _run(program: str) -> int:
    try:
        return int(app(prog_name=program, standalone_mode=False) or 0)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_BUILDER:
            raise
        raise VouchError(f"{error.name} is not installed. {how_to_install('build')}") from error


def _explain(why: str, hints: Sequence[str] = ()) -> None:
    """Print an error; with --verbose, also the traceback."""
    if is_verbose():
        traceback.print_exc()
    # Brackets in a path or a table's name would be read as markup, so they are escaped.
    why = without_secrets(why)
    error_console.print(f"[red]error:[/red] {escape(why)}", highlight=False, soft_wrap=True)
    for hint in hints:
        error_console.print(hint, markup=False, highlight=False, soft_wrap=True)
