"""The paths of bundles: list, activate and roll back."""

from __future__ import annotations

from fastapi import Depends

from model_store.errors import ActivationRefused, BundleNotFound, GalleryNotFound
from service import schemas
from service.access.access import requires
from service.http.problems import responses
from service.http.routes.dependencies import LeaseOf, StateOf, gallery_router
from service.serving.current_bundle import Switched

router = gallery_router("bundles")


@router.get("/{gallery}/bundles", operation_id="list_bundles", responses=responses(GalleryNotFound))
async def list_bundles(lease: LeaseOf, state: StateOf) -> schemas.BundleList:
    """List the bundles of a gallery, oldest first, with their calibrations.

    A bundle that cannot be read is listed with a reason. Old bundles are removed, so the list does
    not reach back to the first bundle.
    """
    bundle, galleries = lease.bundle, state.galleries
    refused = galleries.refused.get(bundle.name)
    return schemas.BundleList(
        serving=bundle.manifest.id,
        bundles=[
            schemas.BundleRecord.model_validate({**one.as_json(), "reason": one.reason})
            for one in await galleries.history(bundle)
        ],
        refused=refused,
    )


@router.post(
    "/{gallery}/bundles/{bundle_id}/activate",
    operation_id="activate_bundle",
    dependencies=[Depends(requires("admin"))],
    responses=responses(GalleryNotFound, BundleNotFound, ActivationRefused),
)
async def activate_bundle(gallery: str, bundle_id: str, state: StateOf) -> schemas.Activation:
    """Serve another bundle. The service first verifies the bundle with a canary query.

    Requests in progress are answered from the bundle with which they began.
    """
    return activation(gallery, await state.galleries.activate(gallery, bundle_id))


@router.post(
    "/{gallery}/bundles/rollback",
    operation_id="rollback_bundle",
    dependencies=[Depends(requires("admin"))],
    responses=responses(GalleryNotFound, BundleNotFound, ActivationRefused),
)
async def rollback_bundle(gallery: str, state: StateOf) -> schemas.Activation:
    """Serve the previous bundle again."""
    return activation(gallery, await state.galleries.rollback(gallery))


def activation(gallery: str, switched: Switched) -> schemas.Activation:
    """Describe the outcome of an activation."""
    return schemas.Activation(
        gallery=gallery,
        bundle_id=switched.bundle_id,
        previous_id=switched.previous_id,
        persisted=switched.persisted,
    )
