"""JSON is exact: what orjson would write as `null` is refused, whatever the texts beside it say."""

import json

import pytest

from streamagent import exactjson

TEXTS = ["null", 'a ":null" b', "[null", ",null", "".join(map(chr, range(0x20))) + '"\\\x7f\u2028é😀']
ENTRIES = [{"role": "user", "content": text} for text in TEXTS]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_written_the_same_way_whatever_is_beside_it(text):
    """Beside an integer of more than 64 bits another encoder writes it."""
    assert exactjson.dumps([1 << 70, text]) == b"[%d,%b]" % (1 << 70, exactjson.dumps(text))
    assert exactjson.loads(exactjson.dumps(text)) == text


@pytest.mark.parametrize("text", ["", *TEXTS])
@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: [it], lambda it: [1, it], lambda it: {"a": it}])
def test_none_is_null_and_nan_is_refused(text, wrap):
    assert json.loads(exactjson.dumps([wrap(None), text])) == [wrap(None), text]
    with pytest.raises(ValueError, match="not JSON compliant"):
        exactjson.dumps([wrap(float("nan")), text])
    with pytest.raises(ValueError, match="not JSON compliant"):
        exactjson.dumps(wrap(float("inf")))


def test_entries_of_texts_are_written_as_each_of_them():
    assert exactjson.dumps_texts(ENTRIES) == exactjson.dumps_each(ENTRIES) == b",".join(map(exactjson.dumps, ENTRIES))
    assert exactjson.dumps_texts([]) == exactjson.dumps_each([]) == b""


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(ValueError, match="surrogates not allowed"):
        exactjson.dumps_texts([{"content": "\ud800"}])
