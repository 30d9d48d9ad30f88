"""The client for groups of queries without a match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx2

from service import schemas
from service.client.contract import path_of, read, sent_again


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
        asked = schemas.EnrolRequest(
            label=label,
            query_ids=None if query_ids is None else list(query_ids),
            item_ids=dict(item_ids or {}),
            metadata=dict(metadata or {}),
            reviewer=reviewer,
        )
        request = self._http.build_request(
            "POST",
            path_of(self._gallery, "unknown", group, "enrol"),
            params={"precision": precision},
            json=asked.model_dump(exclude_none=True),
            headers=sent_again(idempotency_key),
        )
        return read(self._send(request), schemas.Enrolled)
