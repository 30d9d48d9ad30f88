from __future__ import annotations

import errno
import hashlib
import hmac
import json
import logging
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from model_store.errors import KeysError, Unauthenticated
from service.access.keys import (
    MAX_NAME,
    ApiKey,
    KeyOptions,
    Keyring,
    _KeysFile,
    change_keys,
    mint,
    read_keys,
    revoked,
    rotated,
)
from tests.end_to_end.keys import KeysFile, id_of, secret_of

HOUR = timedelta(hours=1)


class TestAKey:
    def test_it_is_256_random_bits_behind_a_readable_prefix(self) -> None:
        texts = [mint("shop", "read")[1] for _ in range(200)]
        for text in texts:
            prefix, key_id, secret = text.split("_")
            assert (prefix, len(key_id)) == ("vouch", 12)
            assert len(bytes.fromhex(secret)) == 32
        assert (
            len({secret_of(text) for text in texts}) == len({id_of(text) for text in texts}) == 200
        )

    def test_nothing_of_the_secret_is_kept_but_its_hash(self, keys_file: KeysFile) -> None:
        text = keys_file.make("read")
        written = keys_file.path.read_text(encoding="utf-8")
        assert secret_of(text) not in written
        assert hashlib.sha256(secret_of(text).encode()).hexdigest() in written

    @pytest.mark.parametrize(
        ("field", "good", "bad"),
        [
            ("id", ["0" * 12, "abcdef012345"], ["0" * 11, "0" * 13, "g" * 12]),
            ("name", ["a", "a" * MAX_NAME], ["", "a" * (MAX_NAME + 1)]),
            ("sha256", ["0" * 64], ["0" * 63, "0" * 65, "G" * 64]),
            ("expected_absent", [None, 0.001, 0.999], [0, 1, -1, 2]),
            ("galleries", [None, ["*"], ["acme-*", "a" * 64]], [[], ["A"], ["a" * 65], ["-a"]]),
            ("max_items", [None, 0, 5], [-1]),
            ("max_galleries", [None, 0, 5], [-1]),
            ("scope", ["read", "write", "admin"], ["all"]),
            ("created_at", ["2026-01-01T00:00:00Z"], ["2026-01-01T00:00:00", None]),
            ("unknown", [], [None, 1]),
        ],
    )
    def test_it_is_made_of_these_values_and_no_others(
        self, field: str, good: list[Any], bad: list[Any]
    ) -> None:
        fields = mint("shop", "read")[0].model_dump()
        for value in good:
            assert ApiKey.model_validate(fields | {field: value}) is not None
        for value in bad:
            with pytest.raises(ValidationError):
                ApiKey.model_validate(fields | {field: value})

    def test_neither_it_nor_a_file_of_keys_can_be_written_to(self) -> None:
        kept, _ = mint("shop", "read")
        for one, field in ((kept, "scope"), (_KeysFile(keys=(kept,)), "keys")):
            with pytest.raises(ValidationError, match="frozen"):
                setattr(one, field, None)

    def test_its_successor_may_do_what_it_could(self) -> None:
        options = KeyOptions(
            rate_limit="5/minute",
            expected_absent=0.3,
            galleries=("shoes", "acme-*"),
            searches="9/month",
            max_items=7,
            max_galleries=2,
        )
        _, new, _ = rotated(mint("shop", "write", **options)[0], HOUR)
        assert {name: getattr(new, name) for name in options} == options

    def test_its_successor_has_what_it_had_but_the_secret(self) -> None:
        kept, text = mint(
            "shop", "write", expires_at=datetime.now(UTC) + 10 * HOUR, rate_limit="5/minute"
        )
        old, new, successor = rotated(kept, HOUR)
        assert old.id == kept.id
        assert new.id == id_of(successor) != kept.id
        assert secret_of(successor) != secret_of(text)
        assert (new.name, new.scope, new.rate_limit) == ("shop", "write", "5/minute")
        assert old.expires_at is not None
        assert new.expires_at is not None
        assert abs(old.expires_at - datetime.now(UTC) - HOUR) < timedelta(minutes=5)
        assert abs(new.expires_at - datetime.now(UTC) - 10 * HOUR) < timedelta(minutes=5)

    def test_grace_prolongs_nothing(self) -> None:
        kept, _ = mint("shop", "read", expires_at=datetime.now(UTC) + HOUR)
        assert rotated(kept, 24 * HOUR)[0].expires_at == kept.expires_at

    def test_one_that_is_good_for_nothing_has_no_successor(self) -> None:
        kept, _ = mint("shop", "read")
        expired = kept.model_copy(update={"expires_at": kept.created_at})
        for key, why in ((revoked(kept), "revoked"), (expired, "expired")):
            with pytest.raises(KeysError, match=why):
                rotated(key, HOUR)

    def test_it_was_revoked_when_it_first_was(self) -> None:
        once = revoked(mint("shop", "read")[0])
        assert revoked(once) == once


class TestLookingOneUp:
    def test_the_right_one_is_found(self, keys_file: KeysFile) -> None:
        texts = [keys_file.make("read", name=name) for name in ("a", "b", "c")]
        keyring = Keyring(keys_file.path)
        assert [keyring.find(text).name for text in texts] == ["a", "b", "c"]

    @pytest.mark.parametrize(
        "damage",
        [
            lambda text: text[:-1],
            lambda text: text + "0",
            lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
            lambda text: text.replace("vouch_", "other_"),
            lambda text: text.replace("vouch_", "vouchx_"),
            lambda text: text.replace("vouch_", "vouc_"),
            lambda text: f"x{text}",
            lambda text: text.replace(id_of(text), id_of(text)[:-1]),
            lambda text: text.replace(id_of(text), f"{id_of(text)}0"),
            lambda text: text.upper(),
            lambda text: f"vouch_{'0' * 12}_{secret_of(text)}",
            lambda text: f"vouch_{id_of(text)}_",
            lambda text: f"vouch_{id_of(text)}",
            secret_of,
            lambda text: "vouch__",
            lambda text: "",
            lambda text: "é" * 70,
            lambda text: "_" * 10_000,
        ],
    )
    def test_anything_else_is_not(self, keys_file: KeysFile, damage: Any) -> None:
        text = keys_file.make("read")
        with pytest.raises(Unauthenticated, match="does not know the key") as refused:
            Keyring(keys_file.path).find(damage(text))
        assert id_of(text) not in str(refused.value)

    def test_hashes_are_compared_in_constant_time_whoever_asks(
        self, keys_file: KeysFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compared: list[tuple[str, str]] = []

        def watch(one: str, other: str) -> bool:
            compared.append((one, other))
            return hmac_compare(one, other)

        hmac_compare = hmac.compare_digest
        monkeypatch.setattr("service.access.keys.hmac.compare_digest", watch)
        text = keys_file.make("read")
        kept = keys_file.kept(text).sha256
        keyring = Keyring(keys_file.path)
        keyring.find(text)
        assert compared == [(kept, kept)]
        for wrong in (text[:-3] + "abc", f"vouch_{'0' * 12}_{secret_of(text)}", "nonsense"):
            compared.clear()
            with pytest.raises(Unauthenticated):
                keyring.find(wrong)
            [(one, other)] = compared
            assert len(one) == len(other) == 64  # as much work for an id that nobody has

    def test_why_it_is_no_good_is_said_to_who_has_the_secret_alone(
        self, keys_file: KeysFile
    ) -> None:
        old, gone = keys_file.make("read", expires=-HOUR), keys_file.make("read")
        keys_file.change(gone, revoked)
        keyring = Keyring(keys_file.path)
        for text, why in ((old, "expired"), (gone, "revoked")):
            with pytest.raises(Unauthenticated, match=f"{id_of(text)} is {why}"):
                keyring.find(text)
            with pytest.raises(Unauthenticated, match="does not know the key"):
                keyring.find(text[:-4] + "0000")

    def test_it_expires_while_the_service_runs(
        self, keys_file: KeysFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = keys_file.make("read", expires=HOUR)
        keyring = Keyring(keys_file.path)
        ends = keyring.find(text).expires_at
        assert ends is not None
        monkeypatch.setattr("service.access.keys._now", lambda: ends - timedelta(seconds=1))
        assert keyring.find(text)
        monkeypatch.setattr("service.access.keys._now", lambda: ends)
        with pytest.raises(Unauthenticated, match="expired"):
            keyring.find(text)


class TestTheFile:
    def test_it_is_its_owners_alone(self, keys_file: KeysFile) -> None:
        assert keys_file.path.stat().st_mode & 0o777 == 0o600

    def test_it_can_be_read_by_people(self, keys_file: KeysFile) -> None:
        keys_file.make("read")
        first, second, *_ = keys_file.path.read_text(encoding="utf-8").splitlines()
        assert (first, second) == ("{", ' "schema_version": 1,')

    def test_its_mode_is_kept(self, keys_file: KeysFile) -> None:
        keys_file.path.chmod(0o640)
        keys_file.make("read")
        assert keys_file.path.stat().st_mode & 0o777 == 0o640

    def test_its_owner_is_kept(self, keys_file: KeysFile, monkeypatch: pytest.MonkeyPatch) -> None:
        given: list[tuple[int, int]] = []
        monkeypatch.setattr(
            "service.access.keys.os.fchown", lambda _, owner, group: given.append((owner, group))
        )
        keys_file.make("read")
        owned = keys_file.path.stat()
        assert given == [(owned.st_uid, owned.st_gid)]

    def test_a_link_to_it_stays_one(self, keys_file: KeysFile, tmp_path: Path) -> None:
        link = tmp_path / "link.json"
        link.symlink_to(keys_file.path)
        change_keys(link, lambda keys: [*keys, mint("shop", "read")[0]])
        assert link.is_symlink()
        assert len(read_keys(keys_file.path)) == 1

    def test_it_is_read_as_it_was_written(self, keys_file: KeysFile) -> None:
        kept = [
            mint(f"n{i}", "admin", expires_at=datetime.now(UTC) + HOUR, rate_limit="9/hour")[0]
            for i in range(3)
        ]
        kept[1] = revoked(kept[1])
        change_keys(keys_file.path, lambda keys: kept)
        assert list(read_keys(keys_file.path)) == kept

    def test_it_holds_what_is_known_of_a_key_alone(self, keys_file: KeysFile) -> None:
        keys_file.make("read")
        [written] = json.loads(keys_file.path.read_bytes())["keys"]
        assert None not in written.values()
        assert "rate_limit" not in written

    def test_a_change_that_fails_changes_nothing(self, keys_file: KeysFile) -> None:
        keys_file.make("read")
        before = keys_file.path.read_bytes()

        def fail(keys: object) -> Any:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            change_keys(keys_file.path, fail)
        assert keys_file.path.read_bytes() == before
        assert list(keys_file.path.parent.iterdir()) == [keys_file.path]

    @pytest.mark.parametrize("call", ["fsync", "fchmod"])
    def test_a_full_disk_is_said_and_changes_nothing(
        self, keys_file: KeysFile, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        keys_file.make("read")
        before = keys_file.path.read_bytes()
        monkeypatch.setattr(f"service.access.keys.os.{call}", full)
        with pytest.raises(KeysError, match=r"cannot be written: No space left on device\.$"):
            keys_file.make("write")
        assert keys_file.path.read_bytes() == before
        assert [*keys_file.path.parent.iterdir()] == [keys_file.path]

    def test_it_is_never_seen_half_written(
        self, keys_file: KeysFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys_file.make("read")
        before = keys_file.path.read_bytes()
        states: list[bytes] = []
        fsync = os.fsync

        drafts: list[int] = []

        def watch(descriptor: int) -> None:
            states.append(keys_file.path.read_bytes())
            drafts.append(os.fstat(descriptor).st_size)
            fsync(descriptor)

        monkeypatch.setattr("service.access.keys.os.fsync", watch)
        keys_file.make("write")
        after = keys_file.path.read_bytes()
        assert states == [before, after]  # of the content, of the rename
        assert drafts[0] == len(after), "all of it is on the disk before it takes its place"

    def test_a_change_leaves_no_file_open(self, keys_file: KeysFile) -> None:
        before = set(Path("/proc/self/fd").iterdir())
        keys_file.make("read")
        # Files of earlier tests may be closed meanwhile.
        assert set(Path("/proc/self/fd").iterdir()) <= before

    def test_two_do_not_write_at_once(self, keys_file: KeysFile) -> None:
        def nested(keys: Any) -> Any:
            with pytest.raises(KeysError, match=r"keys\.json\.new"):
                keys_file.make("read", name="inner")
            return [*keys, mint("outer", "read")[0]]

        change_keys(keys_file.path, nested)
        assert [key.name for key in read_keys(keys_file.path)] == ["outer"]
        keys_file.make("read", name="later")
        assert [key.name for key in read_keys(keys_file.path)] == ["outer", "later"]

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b'{"schema_version": 2, "keys": []}',
            b'{"keys": [{"id": "abc"}]}',
            b'{"keys": [], "more": 1}',
        ],
    )
    def test_damage_is_refused_at_the_start(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "keys.json"
        path.write_bytes(content)
        with pytest.raises(KeysError, match="damaged"):
            Keyring(path)

    def test_file_that_is_no_json_is_named_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        path.write_bytes(b"{")
        with pytest.raises(KeysError, match="is damaged: the file: "):
            read_keys(path)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("scope", "root"),
            ("sha256", "0" * 63),
            ("sha256", "G" * 64),
            ("id", "../../etc"),
            ("created_at", "yesterday"),
            ("expires_at", "2026-01-01T00:00:00"),  # of which zone?
            ("rate_limit", "often"),
            ("name", ""),
        ],
    )
    def test_a_damaged_key_is_refused(self, keys_file: KeysFile, field: str, value: str) -> None:
        keys_file.make("read")
        content = json.loads(keys_file.path.read_text(encoding="utf-8"))
        content["keys"][0][field] = value
        keys_file.path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(KeysError, match=f"keys/0/{field}"):
            read_keys(keys_file.path)

    def test_two_keys_of_one_id_are_refused(self, keys_file: KeysFile) -> None:
        keys_file.make("read")
        content = json.loads(keys_file.path.read_text(encoding="utf-8"))
        content["keys"] *= 2
        keys_file.path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(KeysError, match="same id"):
            read_keys(keys_file.path)

    def test_none_at_all_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(KeysError, match=r"no file of keys.*vouch-keys create"):
            Keyring(tmp_path / "keys.json")


class TestWhileTheServiceRuns:
    def test_changes_are_followed(self, keys_file: KeysFile) -> None:
        keyring = Keyring(keys_file.path)
        text = keys_file.make("read")
        assert keyring.find(text).scope == "read"
        keys_file.change(text, lambda key: key.model_copy(update={"scope": "admin"}))
        assert keyring.find(text).scope == "admin"
        keys_file.change(text, revoked)
        with pytest.raises(Unauthenticated, match="revoked"):
            keyring.find(text)

    def test_only_a_file_that_has_changed_is_read_anew(
        self, keys_file: KeysFile, caplog: pytest.LogCaptureFixture
    ) -> None:
        text = keys_file.make("read")
        keyring = Keyring(keys_file.path)
        with caplog.at_level(logging.INFO, "service.access.keys"):
            keyring.find(text)
            assert caplog.messages == []
            keys_file.make("read")
            for _ in range(2):
                keyring.find(text)
            assert caplog.messages == ["keys read anew"]

    def test_the_file_is_looked_at_once_a_second_at_most(
        self, keys_file: KeysFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("service.access.keys.LOOK_AFTER_S", 1.0)
        now = [100.0]
        monkeypatch.setattr("service.access.keys.time.monotonic", lambda: now[0])
        keyring = Keyring(keys_file.path)
        text = keys_file.make("read")
        for now[0] in (100.2, 100.9):
            with pytest.raises(Unauthenticated):
                keyring.find(text)
        now[0] = 101.0
        assert keyring.find(text)
        later = keys_file.make("read")
        now[0] = 101.9
        with pytest.raises(Unauthenticated):
            keyring.find(later)
        now[0] = 102.0
        assert keyring.find(later)

    @pytest.mark.parametrize("harm", ["damaged", "deleted", "unreadable"])
    def test_a_file_that_cannot_be_used_changes_nothing_and_is_complained_of_once(
        self, keys_file: KeysFile, harm: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        text = keys_file.make("read")
        keyring = Keyring(keys_file.path)
        whole = keys_file.path.read_bytes()
        keys_file.path.unlink()
        if harm == "damaged":
            keys_file.path.write_bytes(whole[:-20])
        elif harm == "unreadable":
            keys_file.path.mkdir()  # which no mode can make readable, not even for root
        with caplog.at_level(logging.WARNING, "service.access.keys"):
            for _ in range(3):
                assert keyring.find(text).scope == "read"
        [record] = caplog.records
        assert "the earlier keys stay in use" in record.message
        if harm == "unreadable":
            keys_file.path.rmdir()
        else:
            keys_file.path.unlink(missing_ok=True)
        change_keys(keys_file.path, lambda keys: [])
        with pytest.raises(Unauthenticated):
            keyring.find(text)
