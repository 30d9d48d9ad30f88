"""A gallery in PostgreSQL: a real server with pgvector keeps what every gallery keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psycopg
import pytest

from model_store.encoder.contract import Embeddings
from model_store.errors import (
    BundleMismatch,
    ConfigError,
    DatasetError,
    GallerySuperseded,
    GalleryUnavailable,
    OutdatedCursor,
    StorageBusy,
    StorageFull,
    WriteRefused,
)
from model_store.gallery import (
    Delete,
    Edit,
    FaissGallery,
    IndexSettings,
    MaskedRows,
    NewItem,
    Thumbnail,
    Upsert,
    parse_filter,
    write_faiss_gallery,
)
from model_store.gallery.index.plan import IndexKind
from model_store.gallery.opening import DatabaseAccess
from model_store.gallery.postgres import database
from model_store.gallery.postgres import live as live_module
from model_store.gallery.postgres.database import PostgresAccess, PostgresDescription
from model_store.gallery.postgres.gallery import PostgresGallery
from model_store.gallery.postgres.live import PostgresLive
from tests.laws.gallery_laws import BuildGallery, GalleryLaws, new_items, random_embeddings
from tests.laws.writable_laws import DIM, N_ITEMS, Reopen, WritableLaws, ids_of, some_upsert
from tests.support.postgres import a_postgres, disk_full, run_tool, write_postgres_gallery

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with a_postgres() as uri:
        yield uri


def written(
    directory: Path,
    uri: str,
    embeddings: Embeddings,
    items: Sequence[NewItem],
    kind: IndexKind = "flat",
    encoder: str = "the-encoder",
    owner: str = "",
) -> PostgresGallery:
    directory.mkdir(exist_ok=True)
    settings = IndexSettings(kind, min_recall=0.9)
    access = PostgresAccess(uri)
    written = directory, embeddings, items, encoder, "postgresql://db.example/vouch"
    write_postgres_gallery(*written, settings, access, owner=owner)
    return PostgresGallery(directory, access)


@pytest.fixture
def build(postgres: str, tmp_path: Path) -> Iterator[BuildGallery]:
    opened: list[PostgresGallery] = []

    def make(embeddings: Embeddings, items: Sequence[NewItem]) -> PostgresGallery:
        opened.append(written(tmp_path / str(len(opened)), postgres, embeddings, items))
        return opened[-1]

    yield make
    for gallery in opened:
        gallery.close()


class TestPostgresGallery(GalleryLaws):
    def test_it_is_what_the_gallery_in_files_is(
        self, build: BuildGallery, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        embeddings, items = random_embeddings(120, 6, seed=11), new_items(120)
        files = tmp_path_factory.mktemp("files")
        write_faiss_gallery(files, embeddings, items, "the-encoder")
        expected, gallery = FaissGallery(files), build(embeddings, items)
        query = random_embeddings(3, 6, seed=12).directions
        found, wanted = gallery.candidates(query, 40), expected.candidates(query, 40)
        np.testing.assert_array_equal(found.rows, wanted.rows)
        np.testing.assert_array_equal(found.similarities, wanted.similarities)
        rows = found.rows[:2]
        np.testing.assert_array_equal(gallery.directions(rows), expected.directions(rows))
        np.testing.assert_array_equal(gallery.variances(rows), expected.variances(rows))
        np.testing.assert_array_equal(gallery.total_variances(rows), expected.total_variances(rows))
        np.testing.assert_array_equal(gallery.label_codes(rows), expected.label_codes(rows))
        assert gallery.items(rows[0]) == expected.items(rows[0])
        assert gallery.labels == tuple(expected.labels)
        assert gallery.held_labels == tuple(expected.held_labels)
        assert gallery.facets(5) == expected.facets(5)
        assert (gallery.is_local, expected.is_local) == (False, True)


def test_facets_count_values_and_lists_of_current_items(postgres: str, tmp_path: Path) -> None:
    """As the gallery in files counts them."""
    metadata: list[dict[str, object]] = [
        {"tags": ["red", "new"], "year": 1999, "brand": {"name": "Ono"}, "sold": True},
        {"tags": ["red", "red"], "year": 2004.5, "brand": {"name": "Ono"}, "sold": False},
        {"tags": [], "year": "unknown", "sold": None},
        {"tags": "red", "year": 1999, "brand": "Ono", "sold": True},
    ]
    items = [
        NewItem(f"i{place}", None, of_item, Thumbnail(b"", "image/png"))
        for place, of_item in enumerate(metadata * 2)
    ]
    embeddings = random_embeddings(8, 4, seed=3)
    gallery = written(tmp_path / "postgres", postgres, embeddings, items)
    (tmp_path / "files").mkdir()
    write_faiss_gallery(tmp_path / "files", embeddings, items, "the-encoder")
    expected = FaissGallery(tmp_path / "files")
    for most in (1, 2, 9):
        found = {facet.field: facet for facet in gallery.facets(most)}
        assert found == {facet.field: facet for facet in expected.facets(most)}
    live = PostgresLive(gallery, lambda: None)
    live.commit([Delete("i0"), Delete("i1")])
    found = {facet.field: facet for facet in live.snapshot().facets(9)}
    assert (found["year"].n_items, found["tags"].n_items) == (6, 4)
    live.close()


def test_facets_take_integers_beyond_the_range_of_floats(postgres: str, tmp_path: Path) -> None:
    picture = Thumbnail(b"", "image/png")
    items = [NewItem(str(n)[:9], None, {"n": n, "m": 1}, picture) for n in (10**400, -(10**999), 7)]
    gallery = written(tmp_path, postgres, random_embeddings(3, 4, seed=3), items)
    found = {facet.field: facet for facet in gallery.facets(9)}
    assert (found["n"].n_values, found["n"].least, found["n"].greatest) == (3, -np.inf, np.inf)
    assert '"least":null,"greatest":null' in found["n"].model_dump_json()
    assert (found["m"].least, found["m"].greatest) == (1, 1)
    gallery.close()


def test_an_approximate_index_finds_as_many_as_there_are(postgres: str, tmp_path: Path) -> None:
    gallery = written(tmp_path, postgres, random_embeddings(250, 8, seed=1), new_items(250), "hnsw")
    query = gallery.directions(np.array([7]))
    assert gallery.candidates(query, 240).rows.shape == (1, 240)
    few = np.zeros(250, dtype=bool)
    few[::9] = True
    exactly = np.argsort(-(gallery.directions(np.flatnonzero(few)) @ query[0]))[:20]
    rows = gallery.candidates(query, 20, MaskedRows(few)).rows[0]
    assert set(rows) == set(np.flatnonzero(few)[exactly])
    assert gallery.described.index["recall_at_10"] >= 0.9
    passing = gallery.matching(parse_filter({"label": "b", "place": {"lt": 30}}))
    assert gallery.candidates(query, 240, passing).rows.shape == (1, passing.at_most)
    gallery.close()


class TestPostgresLive(WritableLaws):
    @pytest.fixture
    def folder(self, tmp_path: Path, postgres: str) -> Path:
        embeddings, items = random_embeddings(N_ITEMS, DIM, seed=0), new_items(N_ITEMS)
        written(tmp_path / "bundle", postgres, embeddings, items, encoder=str(tmp_path)).close()
        return tmp_path / "bundle"

    @pytest.fixture
    def reopen(self, folder: Path, postgres: str) -> Iterator[Reopen]:
        opened: list[PostgresLive] = []

        def again() -> PostgresLive:
            gallery = PostgresGallery(folder, PostgresAccess(postgres))
            opened.append(PostgresLive(gallery, lambda: None))
            return opened[-1]

        yield again
        for live in opened:
            live.close()

    @pytest.fixture
    def live(self, reopen: Reopen) -> PostgresLive:
        live = reopen()
        assert isinstance(live, PostgresLive)
        return live

    def test_state_that_was_answered_with_stays(self, live: PostgresLive) -> None:
        live.commit([some_upsert("a", seed=1)])
        then, ids = live.snapshot(), ids_of(live.snapshot())
        live.commit([some_upsert("a", seed=2), Delete(ids[5])])
        for earlier in (then, live.snapshot(1)):
            assert (ids_of(earlier), earlier.item("a").metadata) == (ids, {"seed": 1})
            assert earlier.n_items == N_ITEMS + 1

    def test_replaced_rows_are_deleted_after_a_time(
        self, live: PostgresLive, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live_module, "KEPT_S", 0)
        for seed in range(4):
            live.commit([some_upsert("a", seed=seed)])
        # Those of the last two changes are left: each deletes what the changes before it replaced.
        rows = live.snapshot().database.rows("SELECT row FROM items WHERE id = 'a' ORDER BY row")
        assert [row for (row,) in rows] == [N_ITEMS + 2, N_ITEMS + 3]
        live.commit([Delete("a")])
        live.commit([some_upsert("a", seed=9)])
        assert (live.snapshot().n_items, live.snapshot().n_changed) == (N_ITEMS + 1, 1)

    def test_page_after_an_item_that_is_no_longer_kept_is_refused(
        self, live: PostgresLive, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        live.commit([some_upsert("a")])
        row = live.snapshot().row("a")
        last = live.snapshot().row(max(ids_of(live.snapshot())))
        monkeypatch.setattr(live_module, "KEPT_S", 0)
        live.commit([Delete("a")])
        assert len(live.snapshot().page(row, 20)) == N_ITEMS
        live.commit([some_upsert("b")])
        live.commit([some_upsert("b")])
        with pytest.raises(OutdatedCursor, match="first page"):
            live.snapshot().page(row, 20)
        assert live.snapshot().page(last, 20).size == 0

    def test_labels_without_items_are_not_held(self, live: PostgresLive, reopen: Reopen) -> None:
        live.commit([some_upsert("a", "z"), some_upsert("b", "z"), some_upsert("c", "y")])
        live.commit([Delete("a"), Edit("c", {"label": "x"})])
        for one in (live, reopen()):
            now = one.refresh()
            assert {"x", "z"} <= set(now.held_labels)
            assert "y" in now.labels
            assert "y" not in now.held_labels

    def test_features_and_preview_are_kept(self, live: PostgresLive) -> None:
        features = np.arange(3, dtype=np.float32)
        new = some_upsert("a")
        picture = replace(new.item, preview=b"a preview")
        live.commit([Upsert(picture, replace(new.vector, features=features))])
        live.commit([Edit("a", {"label": "z"})])
        now = live.snapshot()
        assert now.preview("a") == b"a preview"
        [(kept,)] = now.database.rows("SELECT features FROM items WHERE row = %s", [now.row("a")])
        np.testing.assert_array_equal(np.frombuffer(kept, "<f4"), features)

    def test_writer_that_waits_too_long_is_told_so(
        self, live: PostgresLive, postgres: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(database, "BUSY_S", 0.2)
        schema = live.snapshot().described.schema
        with psycopg.connect(postgres) as other:
            other.execute(f"SELECT * FROM {schema}.state FOR UPDATE")
            with pytest.raises(StorageBusy, match="Nothing was changed"):
                live.commit([some_upsert("a")])
        assert "a" not in ids_of(live.refresh())
        live.commit([some_upsert("a")])

    def test_connections_that_the_server_has_closed_are_opened_again(
        self, live: PostgresLive, postgres: str
    ) -> None:
        for name in ("a", "b"):
            live.commit([some_upsert(name)])
            with psycopg.connect(postgres, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
                )
            assert live.refresh().item(name).id == name

    def test_user_without_permission_reads_and_does_not_write(
        self, live: PostgresLive, folder: Path, postgres: str
    ) -> None:
        schema = live.snapshot().described.schema
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("DROP ROLE IF EXISTS reader")
            connection.execute("CREATE ROLE reader LOGIN")
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
        reader = PostgresAccess(postgres.replace("postgres:@", "reader@"))
        reading = PostgresLive(PostgresGallery(folder, reader), lambda: None)
        assert len(ids_of(reading.snapshot())) == N_ITEMS
        with pytest.raises(WriteRefused, match="no permission"):
            reading.commit([some_upsert("a")])
        with psycopg.connect(postgres, autocommit=True) as connection:
            for right in (f"SELECT ON {schema}.items", f"USAGE ON SCHEMA {schema}"):
                connection.execute(f"REVOKE {right} FROM reader")
                with pytest.raises(GalleryUnavailable, match="no permission to read the schema"):
                    ids_of(reading.refresh())
        with pytest.raises(GalleryUnavailable, match="no permission to read the schema"):
            PostgresGallery(folder, reader)
        reading.close()
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("DROP OWNED BY reader")
            connection.execute("DROP ROLE reader")

    def test_full_disk_and_read_only_server_are_said(
        self, live: PostgresLive, folder: Path, postgres: str
    ) -> None:
        schema = live.snapshot().described.schema
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute("DROP ROLE IF EXISTS follower")
            connection.execute("CREATE ROLE follower SUPERUSER LOGIN")
            connection.execute("ALTER ROLE follower SET default_transaction_read_only = on")
            access = PostgresAccess(postgres.replace("postgres:@", "follower@"))
            reading = PostgresLive(PostgresGallery(folder, access), lambda: None)
            with pytest.raises(WriteRefused, match="standby server"):
                reading.commit([some_upsert("a")])
            reading.close()
            connection.execute("DROP ROLE follower")
            with disk_full(connection, f"{schema}.items"), pytest.raises(StorageFull):
                live.commit([some_upsert("a")])
        assert "a" not in ids_of(live.refresh())
        live.commit([some_upsert("a")])

    @pytest.mark.parametrize("text", ["a\0b", "\ud800"])
    def test_text_that_postgres_cannot_store_is_refused(
        self, live: PostgresLive, text: str
    ) -> None:
        vector = some_upsert("x").vector
        picture = Thumbnail(b"", "image/png")
        for item in (
            NewItem("bad", text, {}, picture),
            NewItem("bad", None, {"a": [{"b": text}]}, picture),
            NewItem("bad", None, {text: 1}, picture),
        ):
            with pytest.raises(WriteRefused, match="null character or an unpaired surrogate"):
                live.commit([some_upsert("a"), Upsert(item, vector)])
        assert {"a", "bad"}.isdisjoint(ids_of(live.refresh()))

    def test_long_ids_are_stored_or_refused_by_name(
        self, live: PostgresLive, tmp_path: Path, postgres: str
    ) -> None:
        """The characters differ, so that PostgreSQL cannot compress them."""
        characters = "".join(map(chr, np.random.default_rng(0).integers(0x4E00, 0x9FFF, 1_000)))
        longest = characters[: database.MOST_INDEXED_BYTES // 3]
        live.commit([some_upsert(longest, longest), Delete(longest)])
        live.commit([some_upsert(longest, longest)])
        live.commit([Edit(longest, {"label": None})])
        assert longest in ids_of(live.snapshot())
        with pytest.raises(WriteRefused, match=r"The id of the item .* 3,000 bytes.* 2,600 bytes"):
            live.commit([some_upsert("a"), some_upsert(characters)])
        with pytest.raises(WriteRefused, match="The label of the item 'a'"):
            live.commit([some_upsert("a", characters)])
        assert "a" not in ids_of(live.refresh())
        items = [NewItem(characters, None, {}, Thumbnail(b"", "image/png"))]
        with pytest.raises(DatasetError, match="The id of the item"):
            written(tmp_path / "new", postgres, random_embeddings(1, DIM, seed=0), items)

    def test_bundle_that_is_not_current_takes_no_changes(self, folder: Path, postgres: str) -> None:
        def superseded() -> None:
            raise GallerySuperseded("another is current")

        live = PostgresLive(PostgresGallery(folder, PostgresAccess(postgres)), superseded)
        with pytest.raises(GallerySuperseded):
            live.commit([some_upsert("lost")])
        assert "lost" not in ids_of(live.refresh())
        live.close()

    def test_gallery_is_written_anew_only_after_a_change(
        self, live: PostgresLive, tmp_path: Path, postgres: str
    ) -> None:
        embeddings, items = random_embeddings(N_ITEMS, DIM, seed=0), new_items(N_ITEMS)
        schemas = [live.snapshot().described.schema]
        for name in ("unchanged", "changed", "rewritten"):
            again = written(tmp_path / name, postgres, embeddings, items, encoder=str(tmp_path))
            schemas.append(again.described.schema)
            assert (again.n_items, again.n_changed) == (N_ITEMS, 0)
            again.close()
            if name == "unchanged":
                live.commit([some_upsert("a")])
        assert schemas[0] == schemas[1] != schemas[2] == schemas[3]
        assert live.refresh().item("a").id == "a"

    def test_schema_of_which_a_part_was_dropped_is_not_used_again(
        self, live: PostgresLive, tmp_path: Path, postgres: str
    ) -> None:
        schema = live.snapshot().described.schema
        with psycopg.connect(postgres, autocommit=True) as connection:
            connection.execute(f"DROP TABLE {schema}.state")
        embeddings, items = random_embeddings(N_ITEMS, DIM, seed=0), new_items(N_ITEMS)
        again = written(tmp_path / "again", postgres, embeddings, items, encoder=str(tmp_path))
        assert again.described.schema != schema
        again.close()

    def test_galleries_of_two_owners_never_share_a_schema(
        self, tmp_path: Path, postgres: str
    ) -> None:
        embeddings, items = random_embeddings(N_ITEMS, DIM, seed=0), new_items(N_ITEMS)
        stage, prod = (
            PostgresLive(
                written(tmp_path / owner, postgres, embeddings, items, owner=owner), lambda: None
            )
            for owner in ("stage", "prod")
        )
        stage.commit([some_upsert("a")])
        assert "a" not in ids_of(prod.refresh())
        stage.close()
        prod.close()

    @pytest.mark.process
    @pytest.mark.parametrize("n_later", [0, 1, 2, 5])
    def test_restored_state_is_read_anew(
        self, live: PostgresLive, reopen: Reopen, postgres: str, tmp_path: Path, n_later: int
    ) -> None:
        """Whatever version the restored database has got to, compared with the process."""
        schema = live.snapshot().described.schema
        live.commit([some_upsert("kept", "kept", seed=1)])
        dump = tmp_path / "gallery.dump"
        run_tool("pg_dump", "--format=custom", "--file", dump, postgres)
        live.commit([some_upsert("lost", "lost", seed=2), some_upsert("kept", seed=3)])
        assert "lost" in ids_of(live.snapshot())  # is cached now
        then = live.snapshot()
        # As in docs/howto/postgres.md.
        options = ["--clean", "--if-exists", "--single-transaction", "--no-owner"]
        run_tool("pg_restore", *options, "--schema", schema, "--dbname", postgres, dump)
        other = reopen()
        for number in range(n_later):
            other.commit([some_upsert(f"new {number}", f"label {number}", seed=10 + number)])
        now, expected = live.refresh(), other.refresh()
        ids = ids_of(expected)
        assert "lost" not in ids
        assert ids_of(now) == ids
        rows = now.candidates(np.eye(DIM, dtype=np.float32)[:1], 1000).rows[0]
        assert now.items(rows) == expected.items(rows)
        np.testing.assert_array_equal(now.label_codes(rows), expected.label_codes(rows))
        assert (now.labels, now.held_labels) == (expected.labels, expected.held_labels)
        assert (now.n_items, now.version) == (N_ITEMS + 1 + n_later, 1 + n_later)
        assert now.n_restored == then.n_restored + 1
        live.commit([some_upsert("again", "again")])
        assert other.refresh().item("again").label == "again"

    def test_rare_changes_are_not_taken_for_a_restore(
        self, live: PostgresLive, reopen: Reopen, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live_module, "KEPT_S", 0)
        other = reopen()
        for number in range(3):
            live.commit([some_upsert("a", seed=number)])
            assert live.snapshot().n_restored == other.refresh().n_restored == 0  # type: ignore[attr-defined]

    def test_gallery_of_another_encoder_or_server_is_refused(
        self, live: PostgresLive, folder: Path, postgres: str
    ) -> None:
        described = live.snapshot().described
        replace(described, encoder="another").save(folder)
        with pytest.raises(BundleMismatch, match="has encoder"):
            PostgresGallery(folder, PostgresAccess(postgres))
        replace(described, schema="vouch_none").save(folder)
        with pytest.raises(BundleMismatch, match="has no gallery 'vouch_none'"):
            PostgresGallery(folder, PostgresAccess(postgres))


def test_address_with_a_password_does_not_get_into_a_bundle(tmp_path: Path) -> None:
    embeddings, items = random_embeddings(3, DIM, seed=0), new_items(3)
    uri = "postgresql://vouch:secret@db.example/vouch"
    with pytest.raises(ConfigError, match="VOUCH_POSTGRES_URI") as refused:
        write_postgres_gallery(tmp_path, embeddings, items, "e", uri)
    assert "secret" not in str(refused.value)


def test_wrong_address_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOUCH_POSTGRES_URI", "mysql://vouch:secret@db.example/vouch")
    with pytest.raises(ConfigError, match="must begin with postgresql://") as refused:
        DatabaseAccess.of_environment(None, 1)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("postgresql://vouch:secret@127.0.0.1:1/vouch", "onnection refused"),
        ("postgresql://vouch:1secret@127.0.0.1:1secret/vouch", "OperationalError|ProgrammingError"),
    ],
)
def test_build_says_why_the_server_does_not_answer_and_not_the_password(
    tmp_path: Path, uri: str, reason: str
) -> None:
    embeddings, items = random_embeddings(3, DIM, seed=0), new_items(3)
    access = PostgresAccess(uri, timeout_s=1)
    with pytest.raises(GalleryUnavailable, match=reason) as refused:
        write_postgres_gallery(
            tmp_path, embeddings, items, "e", "postgresql://db.example/vouch", access=access
        )
    assert "secret" not in str(refused.value)


def test_server_that_does_not_answer_is_said_without_its_address(tmp_path: Path) -> None:
    index = {"type": "flat", "parameters": {}}
    uri = "postgresql://vouch:secret@127.0.0.1:1/vouch"
    PostgresDescription(
        uri="",
        schema="vouch_x",
        encoder="e",
        n_items=1,
        dim=4,
        preview_side=None,
        fields=[],
        index=index,
    ).save(tmp_path)
    with pytest.raises(GalleryUnavailable) as refused:
        PostgresGallery(tmp_path, PostgresAccess(uri, timeout_s=1))
    assert "secret" not in str(refused.value)


def test_kind_of_index_that_postgres_lacks_is_refused(tmp_path: Path) -> None:
    embeddings, items = random_embeddings(3, DIM, seed=0), new_items(3)
    settings = IndexSettings("ivf_pq")
    with pytest.raises(ConfigError, match="wanted auto, flat, hnsw"):
        write_postgres_gallery(tmp_path, embeddings, items, "e", "postgresql://h/d", settings)
