"""A message in pieces is read piece by piece, also where a database sends all that it was asked for."""

import sqlite3

import pytest

from streamagent.stores._select import read_pieces

KEY = ("t", "s", "m")


class Sending:
    """A connection that counts the rows it sends, as PostgreSQL sends them: all at once."""

    def __init__(self, pieces):
        self.db = sqlite3.connect(":memory:")
        self.db.execute("CREATE TABLE fragments (tenant, session, message, piece, content)")
        rows = [(*KEY, number, content) for number, content in enumerate(pieces)]
        self.db.executemany("INSERT INTO fragments VALUES (?, ?, ?, ?, ?)", rows)
        self.sent = 0

    def execute(self, sql, parameters):
        self.rows = self.db.execute(sql, parameters).fetchall()
        self.sent += len(self.rows)
        return self

    def fetchall(self):
        return self.rows


def read_all(db, limit):
    after, texts = -1, []
    while (found := read_pieces(db, KEY, after=after, limit=limit))[1]:
        after = found[0]
        texts.append(found[1])
    return texts


@pytest.mark.parametrize(("size", "count"), [(10, 1), (10, 4), (10, 5), (10, 3000), (1000, 300)])
@pytest.mark.parametrize("limit", [1, 1000, 1001, 64_000])
def test_all_of_it_is_read_and_little_is_sent_twice(size, count, limit):
    pieces = [f"{number % 10}" * size for number in range(count)]
    db = Sending(pieces)
    texts = read_all(db, limit)
    assert "".join(texts) == "".join(pieces)
    assert all(len(text) <= max(limit, size) for text in texts)
    assert db.sent <= 4 * count + 8


def test_without_a_limit_it_comes_whole():
    db = Sending(["x"] * 5000)
    assert read_pieces(db, KEY) == (4999, "x" * 5000)
    assert db.sent == 5000


def test_of_what_is_not_there_nothing_comes():
    assert read_pieces(Sending([]), KEY, limit=5) == (-1, "")
