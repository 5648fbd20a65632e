"""Any text in any position comes back as it was, apart from NUL and half surrogate pairs in content and queries."""

from types import MappingProxyType

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamagent.errors import MessageError
from streamagent.message import Message, clean_text
from streamagent.stores._codec import PIECE, decode_query, encode_query, encode_time, pack, utf8_size
from streamagent.stores.memory import MemoryStore
from streamagent.stores.sqlite import SqliteStore
from streamagent.testing.contract.rows import rows

ODD = ["'", '"', "';--", "\\", "%", "?", ":x", "\n", "\x1a", "é", "語", "🦜", "\u2028", "\ufeff", "' OR 1=1 --", "$.a"]
names = st.one_of(st.sampled_from(ODD), st.text(min_size=1).map(clean_text).filter(bool))
texts = st.one_of(st.sampled_from([*ODD, "\0", "\ud83d", "\udc00x", "a\0b", "\ud83e\udd9c"]), st.text(st.characters()))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
queries = st.none() | st.dictionaries(texts, values, max_size=4)


def cleaned(value):
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(key): cleaned(item) for key, item in value.items()}
    return [cleaned(item) for item in value] if isinstance(value, list) else value


@given(queries)
@example({"n": 2**64, "m": -(2**63) - 1, "f": 1e308, "t": 0.1})
@example({"a\0": 1, "\ud800": [None, "null", "\0"]})
@example({"digits": "12345678901234567890", "n": 12345678901234567890123})
def test_a_query_comes_back_exactly(query):
    found = decode_query(encode_query(query))
    assert found == cleaned(query)
    assert repr(found) == repr(cleaned(query))


@pytest.mark.parametrize("store", [MemoryStore(), SqliteStore(":memory:")], ids=["memory", "sqlite"])
def test_a_role_that_no_reader_knows_is_refused(store):
    async def main():
        async with store:
            with pytest.raises(MessageError, match="role 'robot'"):
                await store.enqueue("s", Message(role="robot"))

    anyio.run(main)


def test_any_mapping_is_an_object():
    assert decode_query(encode_query(MappingProxyType({"a": MappingProxyType({"b": (1, 2)})}))) == {"a": {"b": [1, 2]}}


@given(st.lists(st.sampled_from(["", "a", "é", "🦜", "x" * PIECE, "y" * (PIECE + 1), "é" * PIECE, "z" * 1000])))
def test_packing_keeps_the_text_in_pieces_of_bounded_size(pieces):
    packed = list(pack(pieces))
    assert "".join(packed) == "".join(pieces)
    assert all(0 < utf8_size(piece) <= PIECE for piece in packed)


@given(st.datetimes(timezones=st.timezones()))
def test_times_have_one_width_and_sort_as_they_are(moment):
    from datetime import timedelta, timezone

    from streamagent.stores._codec import as_utc, decode_time

    moment = max(as_utc(moment.replace(year=max(2, min(moment.year, 9998)))), as_utc(moment.replace(year=2000)))
    assert len(encode_time(moment)) == 27
    assert decode_time(encode_time(moment)) == moment
    assert encode_time(moment) < encode_time(moment + timedelta(microseconds=1))
    assert as_utc(moment.replace(tzinfo=None)) == moment.astimezone(timezone.utc)


@pytest.mark.parametrize(
    "make", [MemoryStore, lambda **options: SqliteStore(":memory:", **options)], ids=["memory", "sqlite"]
)
@settings(max_examples=40, deadline=None)
@given(tenant=names, session=names, key=names, ident=names, prev=names, kind=names, content=texts, query=queries)
def test_odd_text_in_every_position_comes_back(make, tenant, session, key, ident, prev, kind, content, query):
    message = Message(id=ident, prev=prev, role="user", type=kind, content=content, query=query)

    async def main():
        async with make(tenant=tenant) as store:
            await store.enqueue(session, message, client_key=key)
            again = await store.enqueue(session, message, client_key=key)
            fence = await store.acquire(session)
            [admitted] = await store.admit(session, fence=fence)
            assert admitted.id == again.id == ident
            [found] = await rows(store, session)
            assert [info.id async for info in store.sessions()] == [session]
            assert await store.tally(session) == {("user", kind): 1}
            return admitted, found

    admitted, found = anyio.run(main)
    assert admitted == found
    assert (found.session, found.prev, found.type) == (session, prev, kind)
    assert (found.content, found.query) == (clean_text(content), cleaned(query))
