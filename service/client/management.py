"""Creates, describes, renames, calibrates and drops galleries, and chooses their bundles.

These calls need a key with the scope `admin`.

::

    with VouchClient("http://127.0.0.1:8080", api_key) as vouch:
        vouch.manage.create("acme-shoes", title="Shoes")
        vouch.put_item("acme-shoes", "boot", Path("boot.png"))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, Unpack

import httpx2
from pydantic import BaseModel

from service import schemas
from service.client.contract import body_of, path_of
from service.schemas.keywords import CalibrationBounds

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class Ask(Protocol):
    """Sends a request and parses the response."""

    def __call__(self, request: httpx2.Request, answer: type[AnswerT]) -> AnswerT:
        """Return the answer, or raise `VouchProblem`."""


class GalleryManagement:
    """Manages the galleries of a service; see `VouchClient.manage`.

    Examples
    --------
    >>> gallery = vouch.manage.create("acme-hats", title="Hats")
    >>> vouch.put_item("acme-hats", "beret", Path("photo.png"), label="beret")
    """

    def __init__(self, build: Callable[..., httpx2.Request], ask: Ask) -> None:
        self._build, self._ask = build, ask

    def create(
        self, gallery: str, *, like: str | None = None, title: str = "", description: str = ""
    ) -> schemas.GalleryDetail:
        """Create an empty gallery; items can then be added immediately.

        Parameters
        ----------
        like : gallery whose encoder is used; if None, the first of the galleries that the service
            was started with, else the oldest gallery that the key can use. If there is none, the
            encoder that comes with Vouch is used.

        Raises
        ------
        VouchProblem : such as ``gallery_exists``.

        Examples
        --------
        >>> gallery = vouch.manage.create("acme-shoes", like="demo", title="Shoes")
        """
        body = body_of(name=gallery, like=like, title=title, description=description)
        return self._send("POST", path_of(), body, schemas.GalleryDetail)

    def describe(
        self, gallery: str, *, title: str | None = None, description: str | None = None
    ) -> schemas.GalleryDetail:
        """Change the title or description of a gallery; None leaves a value unchanged.

        Examples
        --------
        >>> gallery = vouch.manage.describe("acme-shoes", description="Shoes of this season")
        """
        body = body_of(title=title, description=description)
        return self._send("PATCH", path_of(gallery), body, schemas.GalleryDetail)

    def rename(self, gallery: str, name: str) -> schemas.GalleryDetail:
        """Rename a gallery; all its items and records are kept.

        Raises
        ------
        VouchProblem : such as ``gallery_exists``.

        Examples
        --------
        >>> gallery = vouch.manage.rename("acme-shoes", "acme-boots")
        """
        body = body_of(name=name)
        return self._send("POST", path_of(gallery, "rename"), body, schemas.GalleryDetail)

    def drop(self, gallery: str) -> None:
        """Drop a gallery, with all its items. This cannot be undone.

        Examples
        --------
        >>> vouch.manage.drop("acme-boots")
        """
        request = self._build("DELETE", path_of(gallery), params={"confirm": gallery})
        self._ask(request, schemas.GalleryDropped)

    def activate(self, gallery: str, bundle_id: str) -> schemas.Activation:
        """Serve another bundle, after the service has verified it; `rollback` serves the old one.

        Parameters
        ----------
        bundle_id : id of the bundle, from `VouchClient.bundles`.

        Raises
        ------
        VouchProblem : for example ``bundle_not_found`` or ``activation_refused``.

        Examples
        --------
        >>> activation = vouch.manage.activate("demo", bundle_id)
        """
        request = self._build("POST", path_of(gallery, "bundles", bundle_id, "activate"))
        return self._ask(request, schemas.Activation)

    def rollback(self, gallery: str) -> schemas.Activation:
        """Serve the previous bundle again.

        Raises
        ------
        VouchProblem : for example ``bundle_not_found``, if there is no previous bundle.

        Examples
        --------
        >>> activation = vouch.manage.rollback("demo")
        """
        request = self._build("POST", path_of(gallery, "bundles", "rollback"))
        return self._ask(request, schemas.Activation)

    def try_bundle(
        self, gallery: str, bundle_id: str, *, share: float | None = None
    ) -> schemas.ShadowReport:
        """Start a shadow bundle, which also answers a share of the gallery's queries.

        Parameters
        ----------
        bundle_id : id of the bundle, from `VouchClient.bundles`.
        share : share of the gallery's queries that the shadow bundle also answers; if None, the
            service's setting applies.

        Raises
        ------
        VouchProblem : for example ``bundle_not_found`` or ``activation_refused``.

        Examples
        --------
        >>> report = vouch.manage.try_bundle("demo", bundle_id, share=0.1)
        """
        body = body_of(bundle_id=bundle_id, share=share)
        return self._send("PUT", path_of(gallery, "shadow"), body, schemas.ShadowReport)

    def shadow(self, gallery: str) -> schemas.ShadowReport:
        """Return the comparison of the shadow bundle with the served bundle.

        Raises
        ------
        VouchProblem : ``shadow_not_found``.

        Examples
        --------
        >>> report = vouch.manage.shadow("demo")
        >>> report.n_compared, report.changed.n
        """
        return self._ask(self._build("GET", path_of(gallery, "shadow")), schemas.ShadowReport)

    def end_shadow(self, gallery: str) -> schemas.ShadowReport:
        """Stop the shadow bundle, and return its final report.

        Examples
        --------
        >>> report = vouch.manage.end_shadow("demo")
        """
        return self._ask(self._build("DELETE", path_of(gallery, "shadow")), schemas.ShadowReport)

    def adopt_absent_share(self, gallery: str, share: float | None) -> schemas.OperatorDecision:
        """Set the gallery's share of absent queries; a share in a request or in a key has priority.

        Parameters
        ----------
        share : above 0 and below 1; None restores the configured share.

        Examples
        --------
        >>> decision = vouch.manage.adopt_absent_share("demo", 0.2)
        >>> decision = vouch.manage.adopt_absent_share("demo", None)
        """
        path = path_of(gallery, "calibration", "absent-share")
        if share is None:
            return self._ask(self._build("DELETE", path), schemas.OperatorDecision)
        return self._send("POST", path, body_of(share=share), schemas.OperatorDecision)

    def acknowledge_drift(self, gallery: str) -> schemas.OperatorDecision:
        """Clear all drift alarms of a gallery, and restart the tests.

        Examples
        --------
        >>> decision = vouch.manage.acknowledge_drift("demo")
        """
        path = path_of(gallery, "calibration", "acknowledge")
        return self._ask(self._build("POST", path), schemas.OperatorDecision)

    def calibrate(
        self, gallery: str, **bounds: Unpack[CalibrationBounds]
    ) -> schemas.CalibrationRun:
        """Start a calibration with the queries and items that the gallery stores.

        The calibration continues after the answer; `calibration_run` returns its state.

        Parameters
        ----------
        bounds : error bounds, the fields of `schemas.CalibrationWanted`, for example ``max_error``;
            others keep their values.

        Raises
        ------
        VouchProblem : such as ``write_refused``, if a calibration is running already, or
            ``invalid_request``, if a bound is misspelt.

        Examples
        --------
        >>> run = vouch.manage.calibrate("acme-shoes", max_error=0.1)
        """
        path = path_of(gallery, "calibration")
        return self._send("POST", path, body_of(**bounds), schemas.CalibrationRun)

    def calibration_run(self, gallery: str) -> schemas.CalibrationRun:
        """Return the state of the last calibration that was started over HTTP.

        Examples
        --------
        >>> run = vouch.manage.calibration_run("acme-shoes")
        >>> run.state, run.reason
        """
        path = path_of(gallery, "calibration", "run")
        return self._ask(self._build("GET", path), schemas.CalibrationRun)

    def usage(self) -> schemas.Usage:
        """Return the permissions and quotas of the client's key, and their use.

        Examples
        --------
        >>> usage = vouch.manage.usage()
        """
        return self._ask(self._build("GET", "/v1/usage"), schemas.Usage)

    def _send(
        self, method: str, path: str, body: Mapping[str, Any], answer: type[AnswerT]
    ) -> AnswerT:
        return self._ask(self._build(method, path, json=body), answer)
