"""The clients of a gallery's review queue, and of groups of queries without a match."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import httpx2

from service import schemas

from .contract import body_of, fields_of, path_of, read, sent_again


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

        Examples
        --------
        >>> tasks = json.loads(Path("annotated.json").read_bytes())
        >>> imported = vouch.review_queue("demo").import_label_studio(tasks)
        """
        response = self._ask("POST", "import", json=tasks)
        return read(response, schemas.DecisionsImported)

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
