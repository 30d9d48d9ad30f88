"""``vouch-build`` as a terminal has it: every command, in the order in which help lists them."""

from __future__ import annotations

import typer

from index_builder.commands import (
    all_steps,
    bundles,
    certify,
    encoder,
    evidence,
    exchange,
    feedback,
    index,
    live,
    reproduce,
    steps,
    unknown,
)

app = typer.Typer(
    help="Build what Vouch serves: train an encoder, fit its posterior, index a gallery, calibrate."
    " Each step reads and writes files in a run directory; `all` runs every step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.command("all")(all_steps.all_command)
for name, help_text in steps.SINGLE_STEPS.items():
    app.command(name, help=help_text)(steps.single_step(name))
app.command("encoder")(encoder.encoder_command)
app.command("index")(index.index_command)
app.command("calibrate")(evidence.calibrate_command)
app.command("evaluate")(evidence.evaluate_command)
app.command("compare")(evidence.compare_command)
app.command("unknown")(unknown.unknown_command)
app.command("publish")(steps.publish_command)
app.command("bundles")(bundles.bundles_command)
app.command("activate")(bundles.activate_command)
app.command("rollback")(bundles.rollback_command)
app.command("sign")(bundles.sign_command)
app.command("prune")(bundles.prune_command)
app.command("doctor")(bundles.doctor_command)
app.add_typer(live.app, name="items")
app.command("compact")(live.compact_command)
app.add_typer(feedback.app, name="feedback")
app.command("backup")(live.backup_command)
app.command("restore")(live.restore_command)
app.command("push")(exchange.push_command)
app.command("pull")(exchange.pull_command)
app.command("certify")(certify.certify_command)
app.command("verify")(certify.verify_command)
app.command("reproduce")(reproduce.reproduce_command)
