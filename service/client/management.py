"""The clients of parts of the API: galleries, their review queues, and unmatched queries.

The calls that manage galleries need a key with the scope `admin`.

::

    with VouchClient("http://127.0.0.1:8080", api_key) as vouch:
        vouch.manage.create("acme-shoes", title="Shoes")
        vouch.put_item("acme-shoes", "boot", Path("boot.png"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, Unpack

import httpx2
from pydantic import BaseModel

from service import schemas
from service.client.contract import body_of, fields_of, path_of, read, sent_again
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


TASKS_AT_ONCE = 200
"""Maximum number of annotated tasks in one request. The service answers the query of each task
again, in about 10 ms, and a request must end within `VOUCH_DEADLINE_S` (10 s)."""


class ReviewQueueClient:
    """The review queue of one gallery; see `VouchClient.review_queue`.

    Send decisions by `VouchClient.decide_query`, with the name of the reviewer who holds the lease.

    Examples
    --------
    >>> queue = vouch.review_queue("demo")
    >>> for leased in queue.lease("ann", limit=5):
    ...     vouch.decide_query("demo", leased.case.query_id, "none_of_these", reviewer="ann")
    """

    def __init__(
        self, gallery: str, http: httpx2.Client, send: Callable[[httpx2.Request], httpx2.Response]
    ) -> None:
        self._gallery, self._http, self._send = gallery, http, send

    def lease(
        self,
        reviewer: str,
        limit: int = 1,
        *,
        seconds: int = 600,
        reasons: Sequence[schemas.CaseReason] | None = None,
    ) -> list[schemas.LeasedCase]:
        """Lease the next cases to a reviewer, for a time in seconds.

        Examples
        --------
        >>> leases = vouch.review_queue("demo").lease("ann", limit=5, reasons=["ambiguous"])
        """
        chosen = None if reasons is None else list(reasons)
        body = body_of(reviewer=reviewer, limit=limit, seconds=seconds, reasons=chosen)
        response = self._ask("POST", "leases", json=body)
        return read(response, schemas.Leases).leases

    def give_back(self, query_id: str, reviewer: str) -> bool:
        """End a lease without a decision; return whether there was a lease.

        Examples
        --------
        >>> ended = vouch.review_queue("demo").give_back(answer.query.id, "ann")
        """
        response = self._ask("DELETE", query_id, "lease", params={"reviewer": reviewer})
        return read(response, schemas.LeaseEnded).ended

    def cases(
        self,
        reason: schemas.CaseReason | None = None,
        state: schemas.CaseState | None = None,
        page_size: int = 100,
    ) -> Iterator[schemas.ReviewCase]:
        """Iterate over the cases, oldest first; pages are fetched on demand.

        Examples
        --------
        >>> ids = [case.query_id for case in vouch.review_queue("demo").cases(state="open")]
        """
        options = {**fields_of(reason=reason, state=state, limit=page_size)}
        while True:
            response = self._ask("GET", params=options)
            page = read(response, schemas.CaseList)
            yield from page.cases
            if page.next_after is None:
                return
            options["after"] = page.next_after

    def case(self, query_id: str) -> schemas.ReviewCase:
        """Return one case.

        Examples
        --------
        >>> case = vouch.review_queue("demo").case(answer.query.id)
        """
        return read(self._ask("GET", query_id), schemas.ReviewCase)

    def summary(self) -> schemas.ReviewSummary:
        """Return the number of cases by reason and state, and the rules for keeping queries.

        Examples
        --------
        >>> summary = vouch.review_queue("demo").summary()
        """
        return read(self._ask("GET", "summary"), schemas.ReviewSummary)

    def image(self, query_id: str) -> bytes:
        """Return the stored image file of a query.

        Examples
        --------
        >>> content = vouch.review_queue("demo").image(answer.query.id)
        """
        return bytes(self._ask("GET", query_id, "image").content)

    def forget(self, query_id: str) -> None:
        """Delete a query on request: its image and its embedding (scope ``write``).

        Examples
        --------
        >>> vouch.review_queue("demo").forget(answer.query.id)
        """
        self._ask("DELETE", query_id)

    def export(
        self, to: schemas.ExportFormat, *, state: schemas.CaseState = "open"
    ) -> Iterator[bytes]:
        """Iterate over files for a labelling tool (JSON or zip), each with at most 1,000 cases.

        Examples
        --------
        >>> for number, part in enumerate(vouch.review_queue("demo").export("label_studio")):
        ...     Path(f"tasks-{number}.json").write_bytes(part)
        """
        response = self._ask("GET", "export", params={"format": to, "state": state})
        yield response.content
        while (following := response.links.get("next")) is not None:
            response = self._send(self._http.build_request("GET", following["url"]))
            yield response.content

    def import_label_studio(self, tasks: schemas.LabelStudioTasks) -> schemas.DecisionsImported:
        """Import annotations from a Label Studio export (JSON) as decisions.

        Many tasks are sent in several requests, because the service answers each query again. If a
        request fails, the decisions of earlier requests are stored; you can import all tasks again.

        Examples
        --------
        >>> tasks = json.loads(Path("annotated.json").read_bytes())
        >>> imported = vouch.review_queue("demo").import_label_studio(tasks)
        """
        imported = schemas.DecisionsImported(n_new=0, n_known=0, problems=[])
        for start in range(0, max(len(tasks), 1), TASKS_AT_ONCE):
            part = tasks[start : start + TASKS_AT_ONCE]
            found = read(self._ask("POST", "import", json=part), schemas.DecisionsImported)
            imported.n_new += found.n_new
            imported.n_known += found.n_known
            imported.problems += found.problems
        return imported

    def _ask(self, method: str, *rest: str, **sent: Any) -> httpx2.Response:  # noqa: ANN401 - of httpx2
        path = path_of(self._gallery, "review", *rest)
        return self._send(self._http.build_request(method, path, **sent))


class UnknownQueriesClient:
    """Groups the queries that had no match in a gallery; see `VouchClient.unknown`.

    Examples
    --------
    >>> n_groups = vouch.unknown("demo").groups().n_groups
    """

    def __init__(
        self, gallery: str, http: httpx2.Client, send: Callable[[httpx2.Request], httpx2.Response]
    ) -> None:
        self._gallery, self._http, self._send = gallery, http, send

    def groups(self, *, precision: float = 0.9, limit: int = 50) -> schemas.UnknownGroups:
        """Return groups of queries, and the number of queries over time.

        Each group probably shows one new identity.

        Parameters
        ----------
        precision : minimum precision of the groups. The precision is the expected share of pairs
            of queries in the same group that show the same identity.
        limit : maximum number of groups; the largest are first.

        Examples
        --------
        >>> found = vouch.unknown("demo").groups(precision=0.8, limit=10)
        >>> [(group.id, group.n, group.p_same) for group in found.groups]
        """
        request = self._http.build_request(
            "GET",
            path_of(self._gallery, "unknown"),
            params={"precision": precision, "limit": limit},
        )
        return read(self._send(request), schemas.UnknownGroups)

    def enrol(
        self,
        group: str,
        label: str,
        *,
        query_ids: Sequence[str] | None = None,
        item_ids: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        reviewer: str | None = None,
        precision: float = 0.9,
        idempotency_key: str | None = None,
    ) -> schemas.Enrolled:
        """Create items from the queries of a group, in one transaction.

        Parameters
        ----------
        query_ids : members of the group to enrol; if None, all members are enrolled.
        item_ids : maps the id of a query to the id of its new item; by default, both ids are equal.
        precision : the value of ``precision`` in the call that listed the group.

        Raises
        ------
        VouchProblem : for example ``group_not_found``, if the members of the group have changed.

        Examples
        --------
        >>> unknown = vouch.unknown("demo")
        >>> for group in unknown.groups(precision=0.8).groups:
        ...     unknown.enrol(group.id, label=f"new-{group.id}", precision=0.8)
        """
        body = body_of(
            label=label,
            query_ids=None if query_ids is None else list(query_ids),
            item_ids=item_ids,
            metadata=metadata,
            reviewer=reviewer,
        )
        request = self._http.build_request(
            "POST",
            path_of(self._gallery, "unknown", group, "enrol"),
            params={"precision": precision},
            json=body,
            headers=sent_again(idempotency_key),
        )
        return read(self._send(request), schemas.Enrolled)
