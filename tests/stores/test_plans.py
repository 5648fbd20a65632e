"""No statement of a store reads the rows of other sessions to find those of one."""

import importlib
import re
import sqlite3
from contextlib import closing

import pytest

from streamagent.stores.sqlite import SqliteStore

MODULES = ("_forks", "_looks", "_queries", "_restore", "_select", "_statements")
STARTS = ("SELECT", "WITH", "UPDATE", "DELETE", "INSERT")


def statements():
    for module in MODULES:
        for name, value in vars(importlib.import_module(f"streamagent.stores.{module}")).items():
            if isinstance(value, str) and value.strip().startswith(STARTS) and "{}" not in value:
                yield f"{module}.{name}", value


def plan(db, sql):
    numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    parameters = ["x"] * (max(numbered) if numbered else sql.count("?"))
    return [detail for *_, detail in db.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_every_statement_finds_its_rows_by_an_index(tmp_path):
    path = tmp_path / "s.db"
    async with SqliteStore(path):
        pass
    seen, scanning = 0, []
    with closing(sqlite3.connect(path)) as db:
        for name, sql in statements():
            try:
                details = plan(db, sql)
            except sqlite3.OperationalError as error:  # a part of a statement
                assert re.search("incomplete input|syntax error|no such column", str(error)), name
                continue
            seen += 1
            scanning += [
                f"{name}: {step}" for step in details if re.match(r"SCAN (messages|fragments|leases|calls)", step)
            ]
    assert scanning == []
    assert seen > 30
