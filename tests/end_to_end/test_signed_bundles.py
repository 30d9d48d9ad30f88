"""A service that serves what its publisher has signed, and signs what it makes itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from model_store.bundles.directory import activate, locate
from model_store.bundles.manifest import read_manifest
from model_store.bundles.signatures import (
    new_key,
    read_private_key,
    read_public_key,
    require_signature,
    write_signature,
)
from tests.end_to_end.forked import completed
from tests.end_to_end.processes import Service, environment
from tests.end_to_end.questions import picture

GALLERY = "/v1/galleries/digits"


def test_nothing_unsigned_is_served_and_a_compaction_is_signed(
    digits_bundle: Path, tmp_path: Path
) -> None:
    root, key = tmp_path / "bundles", tmp_path / "publisher.key"
    shutil.copytree(digits_bundle, root / digits_bundle.name)
    activate(root, digits_bundle.name)
    public = new_key(key)
    variables = {"VOUCH_BUNDLE_KEYS": json.dumps([str(public)]), "VOUCH_SIGNING_KEY": str(key)}

    refused = completed(["--provider", "cpu", "--bundle", str(root)], environment(variables))
    assert refused.returncode == 1
    assert f"The bundle {digits_bundle.name} is not signed. Sign it with" in refused.stderr

    write_signature(locate(root), read_manifest(locate(root)), read_private_key(key))
    image = picture("PNG")
    with Service(root, tmp_path / "log", variables) as service:
        put = service.http.put(f"{GALLERY}/items/new", files={"image": image}, data={"label": "7"})
        put.raise_for_status()
        made = service.http.post(f"{GALLERY}/compact").raise_for_status().json()
        assert service.answer(image)["results"][0]["id"] == "new"
        bundle = root / made["bundle_id"]
        assert bundle != root / digits_bundle.name
        require_signature(bundle, read_manifest(bundle), {read_public_key(public)})
