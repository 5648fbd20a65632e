"""PostgresStore passes the contract; its tables, its options, and what it says about them."""

import json
import logging
import subprocess
import sys

import anyio
import pytest
from typer.testing import CliRunner

from streamagent import Agent
from streamagent.cli import app
from streamagent.errors import (
    ConfigError,
    LeaseLost,
    StoreCorrupt,
    StoreError,
    StoreReadOnly,
    StoreSchemaError,
)
from streamagent.message import Message
from streamagent.stores import _dialect, open_store
from streamagent.stores._postgres_schema import comments
from streamagent.stores._schema import TABLES
from streamagent.stores.postgres import PostgresStore
from streamagent.testing.contract import StoreContract
from streamagent.testing.contract.rows import KIB64, LONG, call_and_result, contents, rows, text
from tests.conftest import BACKENDS

pytestmark = pytest.mark.anyio

EACH_BACKEND = pytest.mark.parametrize("anyio_backend", BACKENDS)
SECRET = "s3cret/p@ss"
WITH_SECRET = "postgresql://app:s3cret%2Fp%40ss@127.0.0.1:{port}/postgres"


@pytest.fixture
def anyio_backend():
    """The driver runs in threads, so the backend hardly matters; what might is run on each."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def make(postgres, schema):
    """Make a store in the test's own schema."""

    def make(**options):
        return PostgresStore(postgres.url(), **{"schema": schema, **options})

    return make


@pytest.fixture
async def store(make):
    async with make() as store:
        yield store


@pytest.fixture
def ask(postgres, schema):
    """Look into the tables, past the store."""
    return lambda sql, *args: postgres.execute(sql.replace("{", f'"{schema}".').replace("}", ""), *args)


class TestContract(StoreContract):
    @pytest.fixture
    async def store(self, make):
        async with make() as store:
            yield store


class TestTables:
    async def test_content_of_more_than_64_kib_is_pieces_and_queries_are_plain_json(self, store, ask):
        fence = await store.acquire("s")
        await store.write("s", [text("é" * (KIB64 // 2) + "y"), *call_and_result()], fence=fence)
        assert ask("SELECT length(content), size, state FROM {messages} WHERE sequence = 1") == [
            (0, KIB64 + 1, "closed")
        ]
        assert ask("SELECT max(octet_length(content)) <= 65536, count(*) FROM {fragments}") == [(True, 2)]
        assert ask("SELECT query ->> 'tool' FROM {messages} WHERE type = 'tool_call'") == [("stock",)]

    async def test_columns_are_those_of_a_file(self, store, ask, schema):
        found = ask(
            "SELECT table_name || '.' || column_name FROM information_schema.columns WHERE table_schema = %s", schema
        )
        theirs = {name for [name] in found if not name.startswith("commits.")} - {
            "messages.rowid",
            "version.streamagent",
        }
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(":memory:")) as db:
            for statement in TABLES:
                db.execute(statement)
            names = [name for [name] in db.execute("SELECT name FROM sqlite_schema WHERE type <> 'index'")]
            ours = {f"{name}.{column[1]}" for name in names for column in db.execute(f"PRAGMA table_info({name})")}
        assert theirs == ours

    async def test_the_comments_are_kept_in_the_database(self, store, ask, schema):
        found = ask(
            "SELECT c.relname, a.attname, d.description FROM pg_description d JOIN pg_class c ON c.oid = d.objoid"
            " LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid AND a.attnum > 0"
            " WHERE c.relnamespace = to_regnamespace(%s)",
            schema,
        )
        said = {f"{table}.{column}" if column else table: text for table, column, text in found}
        assert said["messages.tenant"] == "whose session it is"
        assert said["messages.source"].endswith("(its first bytes: size), and the query unless there is one here")
        assert said["owners"] == "processes that run sessions, as long as they say so"
        assert len(said) == len(list(comments())) > 30

    async def test_the_view_of_sessions_tells_what_the_store_lists(self, store, ask):
        await store.enqueue("a", Message.user("hi"))
        await store.write("b", [text("x"), text("y")], fence=await store.acquire("b"))
        listed = [(info.id, info.messages) async for info in store.sessions()]
        assert ask("SELECT id, messages FROM {sessions} ORDER BY modified_at DESC") == listed == [("b", 2), ("a", 0)]

    async def test_what_is_unfinished_is_found_by_its_index_whatever_the_history(self, store, ask):
        from streamagent.stores import _queries, _standing

        def plan(connection, query, args):
            connection.raw.execute(b"SET enable_seqscan = off")
            found = connection.raw.execute(b"EXPLAIN " + _dialect.for_postgres(query), args).fetchall()
            connection.raw.execute(b"RESET enable_seqscan")
            return "\n".join(row[0] for row in found)

        for query, args in (
            (_standing.LEFT, ("default", "s")),
            (_standing.INBOX, ("default", "s")),
            (_standing.BOTH, ("default", "s")),
            (_queries._WAITING, ('["s"]', "default", "cancel")),
        ):
            found = await store._pool.ask(lambda connection, asked=(query, args): plan(connection, *asked))
            assert "messages_inbox" in found or "messages_unfinished" in found
        unattended = await store._pool.ask(
            lambda connection: plan(connection, _queries._UNATTENDED, ("default", 1)),
        )
        assert "using leases_owner" in unattended
        assert "using messages_inbox" in unattended
        assert "leases_modified" not in unattended

    async def test_a_page_is_no_more_than_its_bytes_and_one_row(self, store):
        """The driver holds all rows of an answer."""
        from streamagent.stores import _pages, _queries

        await store.write("s", [text("x" * 60_000) for _ in range(20)], fence=await store.acquire("s"))
        end = (_queries.END, _queries.PAGE_ROWS)
        for after, expected in ((0, 5), (13, 5), (17, 3), (20, 0)):
            found = await store._pool.ask(
                lambda connection, asked=("default", "s", after, *end): connection.execute(
                    _pages._MESSAGES, asked
                ).fetchall()
            )
            assert [row[1] for row in found] == list(range(after + 1, after + 1 + expected))
        assert [row.sequence for row in await rows(store)] == list(range(1, 21))

    async def test_another_tenant_sees_none_of_it(self, make):
        async with make(tenant="one") as one, make(tenant="two") as two:
            fence = await one.acquire("s")
            call, _ = call_and_result()
            await one.write("s", [text("x" * 2 * KIB64), call, text("open", more=True)], fence=fence)
            await one.enqueue("s", Message.user("hi"), client_key="k")
            await one.start_call("s", call.id, fence=fence)
            left = await two.unfinished("s")
            assert (list(left.open), list(left.calls), left.last) == ([], [], None)
            assert (await rows(two), await two.inbox("s"), await two.calls("s")) == ([], [], [])
            assert (await one.waiting(["s"], "text"), await two.waiting(["s"], "text")) == ({"s"}, set())
            assert (await one.unattended(), await two.unattended()) == (["s"], [])
            assert (await two.tally("s"), await two.usage(None), await two.delete("s")) == (
                {},
                type(await two.usage("s"))(),
                False,
            )
            assert [info async for info in two.sessions()] == []
            with pytest.raises(ValueError, match="'s' has no messages"):
                await two.fork("s", "f")
            with pytest.raises(LeaseLost):
                await two.write("s", [text("late")], fence=fence)
            other = await two.acquire("s")
            assert await two.write("s", [call], fence=other) == [1]
            await two.enqueue("s", Message.user("bye"), client_key="k")
            assert await one.write("s", [text("still mine")], fence=fence) == [4]

    async def test_what_was_stored_is_there_after_reopening(self, make):
        async with make() as store:
            fence = await store.acquire("s")
            await store.write("s", [text("a"), text("b" * 3 * KIB64)], fence=fence)
            store.write_soon("s", text("lagged"), fence=fence, lag=LONG)
        async with store.reopened() as again:
            assert [content[:6] for content in await contents(again)] == ["a", "bbbbbb", "lagged"]
            assert await again.acquire("s") > fence

    async def test_names_need_no_quotes(self, postgres):
        odd = "a'b\"c; DROP TABLE x -- é"
        async with PostgresStore(postgres.url(), schema=odd, tenant=odd) as store:
            await store.enqueue(odd, Message.user(odd))
            assert [message.content for message in await store.inbox(odd)] == [odd]
        postgres.drop(odd)

    async def test_every_spelling_is_of_use(self):
        from streamagent.stores import _looks, _pages, _queries, _select, _statements

        asked = "\n".join(
            value
            for module in (_looks, _pages, _queries, _select, _statements)
            for value in vars(module).values()
            if isinstance(value, str)
        )
        assert [ours for ours in _dialect.SPELLINGS if ours not in asked] == []


@EACH_BACKEND
class TestOpening:
    async def test_eight_first_openers_at_once_all_get_the_same_tables(self, make):
        async def first(n):
            async with make(pool=1) as store:
                await store.enqueue("s", Message.user(str(n)))

        async with anyio.create_task_group() as tasks:
            for n in range(8):
                tasks.start_soon(first, n)
        async with make() as store:
            assert sorted(message.content for message in await store.inbox("s")) == list("01234567")

    async def test_a_newer_schema_is_refused(self, make, ask):
        async with make():
            pass
        ask("UPDATE {version} SET streamagent = 99")
        with pytest.raises(StoreSchemaError, match=r"127\.0\.0\.1.*version 99.*update it"):
            async with make():
                pass

    async def test_an_older_schema_is_brought_to_the_newest_and_a_viewer_takes_it_as_it_is(self, make, ask, schema):
        async with make() as store:
            await store.write("s", [text("a")], fence=await store.acquire("s"))
        columns = (
            "SELECT a.attname, format_type(atttypid, atttypmod), attnotnull, attcollation,"
            " col_description(attrelid, attnum), obj_description(attrelid) FROM pg_attribute a"
            " WHERE attrelid = to_regclass(%s) AND attnum > 0 ORDER BY attnum"
        )
        new = ask(columns, f'"{schema}".commits')
        ask("DROP TABLE {commits}")
        ask("UPDATE {version} SET streamagent = 1")
        async with make(read_only=True) as viewer:
            assert await contents(viewer) == ["a"]
        assert ask("SELECT streamagent FROM {version}") == [(1,)]
        async with make() as store, make() as other:
            await store.write("s", [text("b")], fence=await store.acquire("s"))
            assert await contents(other) == ["a", "b"]
        assert ask("SELECT streamagent FROM {version}") == [(2,)]
        assert ask(columns, f'"{schema}".commits') == new

    async def test_what_connections_noted_is_removed_after_a_week(self, make, ask):
        async with make(pool=1) as store:
            for _ in range(3):
                await store.acquire("s")
        assert ask("SELECT number FROM {commits}") == [(3,)]
        ask("INSERT INTO {commits} VALUES ('old', 1, '2025-01-01T00:00:00.000000Z')")
        async with make(read_only=True):
            assert ask("SELECT count(*) FROM {commits}") == [(2,)]
        async with make():
            assert ask("SELECT number FROM {commits}") == [(3,)]

    async def test_another_applications_schema_is_refused_and_stays_as_it_is(self, make, postgres, schema):
        postgres.execute(f"CREATE SCHEMA {schema}")
        postgres.execute(f"CREATE TABLE {schema}.version (number INTEGER)")
        with pytest.raises(StoreCorrupt, match=f"'{schema}' is another application's"):
            async with make():
                pass
        found = postgres.execute("SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s)", schema)
        assert found == [("version",)]

    async def test_an_empty_schema_that_somebody_made_gets_the_tables(self, make, postgres, schema):
        postgres.execute(f"CREATE SCHEMA {schema}")
        async with make() as store:
            assert await rows(store) == []

    async def test_making_the_tables_is_all_or_nothing(self, make, postgres, schema, monkeypatch):
        monkeypatch.setattr(
            "streamagent.stores._postgres_prepare.statements", lambda version: ["CREATE TABLE a ()", "x"]
        )
        with pytest.raises(StoreError, match="syntax"):
            async with make():
                pass
        assert postgres.execute("SELECT to_regnamespace(%s)", schema) == [(None,)]

    async def test_a_viewer_makes_nothing_and_writes_nothing(self, make, postgres, schema):
        with pytest.raises(StoreCorrupt, match="has no tables"):
            async with make(read_only=True):
                pass
        assert postgres.execute("SELECT to_regnamespace(%s)", schema) == [(None,)]
        async with make() as store, make(read_only=True) as viewer:
            await store.write("s", [text("a")], fence=await store.acquire("s"))
            assert await contents(viewer) == ["a"]
            with pytest.raises(StoreReadOnly, match="read_only=True"):
                await viewer.acquire("s")
            with pytest.raises(StoreReadOnly, match="no writes here"):
                await viewer._pool.ask(lambda connection: connection.execute("DELETE FROM messages"))

    async def test_it_is_entered_once_at_a_time_and_used_while_it_is_open(self, store, make):
        with pytest.raises(ConfigError, match="open already"):
            async with store:
                pass
        closed = make()
        with pytest.raises(StoreError, match="not open"):
            await rows(closed)
        with pytest.raises(StoreError, match="not open"):
            await closed.acquire("s")

    async def test_a_closed_store_refuses_everything_and_leaves_no_connection(self, make, postgres):
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'closing'"
        async with PostgresStore(postgres.url(application_name="closing"), schema=make()._schema) as store:
            await store.enqueue("s", Message.user("hi"))
            assert postgres.execute(count) == [(1,)]
        for use in (rows(store), store.acquire("s"), store.inbox("s")):
            with pytest.raises(StoreError, match=r"closed|not open"):
                await use
        with anyio.fail_after(5):
            while postgres.execute(count) != [(0,)]:
                await anyio.lowlevel.checkpoint()

    async def test_nothing_listens_there(self, schema):
        with pytest.raises(StoreError, match="cannot be reached"):
            async with PostgresStore("postgresql://app@127.0.0.1:1/postgres", schema=schema):
                pass

    async def test_a_database_of_another_encoding_is_refused(self, postgres):
        postgres.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0")
        with pytest.raises(StoreError, match="encoding is LATIN1"):
            async with PostgresStore(postgres.url(database="latin")):
                pass
        postgres.execute("DROP DATABASE latin WITH (FORCE)")


class TestOptions:
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("schema", ""),
            ("schema", "x" * 64),
            ("schema", "pg_mine"),
            ("pool", 0),
            ("pool", 1.5),
            ("timeout", 0),
            ("timeout", float("nan")),
            ("statement_timeout", -1),
            ("statement_timeout", 86_401),
        ],
    )
    def test_an_option_that_cannot_be_used_is_named(self, option, value):
        with pytest.raises(ConfigError, match=option):
            PostgresStore("postgresql://app@localhost/x", **{option: value})

    def test_options_at_their_limits_are_taken(self):
        PostgresStore("postgresql://localhost", schema="x" * 63, pool=1, timeout=86_400, statement_timeout=0.001)

    @pytest.mark.parametrize("url", ["postgresql://u:s3cret@h/x?s3cret", "s3cret"])
    def test_what_is_no_url_is_refused_without_repeating_it(self, url):
        with pytest.raises(ConfigError, match="postgresql://user:password@host") as caught:
            PostgresStore(url)
        assert "s3cret" not in str(caught.value)
        assert caught.value.__suppress_context__

    def test_urls_are_opened_by_their_scheme(self):
        for url in ("postgresql://app@host/x", "postgres://app@host/x"):
            assert isinstance(open_store(url), PostgresStore)
            assert isinstance(Agent("mock", store=url).store, PostgresStore)
        with pytest.raises(ConfigError, match=r"no store for mysql://.*postgresql://"):
            open_store("mysql://app:s3cret@host/x")

    def test_without_psycopg_the_hint_names_the_extra(self):
        code = (
            "import sys\nsys.modules['psycopg'] = None\n"
            "from streamagent import PostgresStore\nPostgresStore('postgresql://h/x')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "ConfigError: PostgresStore needs psycopg: pip install 'streamagent[postgres]'" in done.stderr


class TestSecrets:
    async def test_a_password_is_in_no_name_error_or_log(self, postgres, schema, caplog):
        caplog.set_level(logging.DEBUG)
        seen = []
        url = WITH_SECRET.format(port=postgres.port)
        store = PostgresStore(url, schema=schema)
        seen += [repr(store), repr(open_store(url))]
        async with store:
            with pytest.raises(ConfigError) as caught:
                async with store:
                    pass
            seen.append(str(caught.value))
        for wrong in (WITH_SECRET.format(port=1), url.replace("/postgres", "/nowhere")):
            with pytest.raises(StoreError) as caught:
                async with PostgresStore(wrong):
                    pass
            seen += [str(caught.value), str(caught.value.__cause__)]
        told = "\n".join([*seen, caplog.text])
        assert "postgresql://app@127.0.0.1" in told
        assert SECRET not in told
        assert "s3cret" not in told

    def test_it_is_cut_out_of_what_the_server_says(self):
        import psycopg

        from streamagent.stores import _postgres_connection as connection

        url = WITH_SECRET.format(port=1)
        options = connection.Options(
            url=url, name="n", schema="s", pool=1, timeout=1, statement_timeout=1, read_only=False
        )
        error = connection.translate(psycopg.OperationalError(f"bad password {SECRET}!"), options)
        assert "bad password ***!" in str(error)
        assert SECRET not in repr(options)


def test_the_command_line_takes_a_url(postgres, schema):
    url = postgres.url(options=f"-c search_path={schema}")
    run = CliRunner().invoke(app, ["run", "--db", url, "--session", "cli", "-m", "mock", "Hello?"])
    assert run.exit_code == 0, run.output
    shown = CliRunner().invoke(app, ["sessions", "show", "cli", "--db", url, "--json"])
    assert [json.loads(line)["type"] for line in shown.output.splitlines()] == ["text", "text", "stop"]
    missing = CliRunner().invoke(app, ["sessions", "show", "nobody", "--db", url.replace("app@", "app:s3cret@")])
    assert missing.exit_code == 1
    assert "no session 'nobody'" in missing.output
    assert "s3cret" not in missing.output
    postgres.drop("streamagent")
