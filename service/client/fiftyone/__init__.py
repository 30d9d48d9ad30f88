"""The plugin of FiftyOne: an operator that searches with the samples of a dataset.

::

    verdicts    writes Vouch's verdicts on samples into their fields

FiftyOne finds the plugin by `fiftyone.yml`. FiftyOne and the service need different web frameworks.
Install Vouch's client in FiftyOne's environment; do not install FiftyOne beside the service.
"""

from __future__ import annotations

from typing import Any

import fiftyone.operators as foo
from fiftyone.operators import types

from service.client.client import VouchClient
from service.client.fiftyone.verdicts import WrittenVerdicts, write_verdicts

__all__ = ["WriteVerdicts", "WrittenVerdicts", "register", "write_verdicts"]

_DEFAULT_URL = "http://127.0.0.1:8080"


class WriteVerdicts(foo.Operator):  # type: ignore[misc]
    """Searches with each sample of a view, and writes the answers into the samples' fields."""

    @property
    def config(self) -> Any:  # noqa: ANN401 - FiftyOne has no types
        """Return the entry of the operator in the App's list."""
        return foo.OperatorConfig(
            name="write_verdicts",
            label="Vouch: write verdicts",
            description="Search a Vouch gallery with each sample, and write the verdict",
            allow_delegated_execution=True,
        )

    def resolve_input(self, ctx: Any) -> Any:  # noqa: ANN401
        """Return the form with the service's address, the gallery and the prefix of the fields."""
        ctx.target_view()
        form = types.Object()
        form.str("gallery", required=True, label="Gallery")
        form.str("url", default=_url(ctx), label="URL of the Vouch service")
        form.str("prefix", default="", label="Prefix of the fields' names")
        return types.Property(form, view=types.View(label="Write verdicts of Vouch"))

    def execute(self, ctx: Any) -> dict[str, Any]:  # noqa: ANN401
        """Write the verdicts; return the number of answered samples, and the problems."""
        key = ctx.secrets.get("VOUCH_API_KEY")
        with VouchClient(ctx.params.get("url") or _url(ctx), key or None) as client:
            written = write_verdicts(
                ctx.target_view(),
                client,
                ctx.params["gallery"],
                prefix=ctx.params.get("prefix") or "",
                progress=ctx.set_progress,
            )
        if not ctx.delegated:
            ctx.trigger("reload_dataset")
        return {"written": written.n_written, "problems": written.problems}

    def resolve_output(self, ctx: Any) -> Any:  # noqa: ANN401, ARG002 - FiftyOne's signature
        """Return the form that the App shows after the run."""
        shown = types.Object()
        shown.int("written", label="Samples written")
        shown.obj("problems", label="Problems, by sample")
        return types.Property(shown)


def _url(ctx: Any) -> str:  # noqa: ANN401
    return str(ctx.secrets.get("VOUCH_URL") or _DEFAULT_URL)


def register(plugin: Any) -> None:  # noqa: ANN401
    """Register the operator; FiftyOne calls this."""
    plugin.register(WriteVerdicts)
