"""What a tool returned becomes text: of any type, clean, and capped."""

import datetime as dt
import enum
import hashlib
import json
import pathlib
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from streamagent._core.output import MAX_BYTES, MAX_LINES, NO_OUTPUT, Capped, describe, error_output, render
from streamagent.calls import Output
from streamagent.errors import InvalidArguments, ToolError


@dataclass(frozen=True, slots=True)
class Mug:
    colour: str
    price: Decimal


class Colour(enum.Enum):
    BLUE = "blue"


class Level(enum.StrEnum):
    HIGH = "high"


class Order(BaseModel):
    id: uuid.UUID
    at: dt.datetime


class Point(NamedTuple):
    x: int
    y: int


ID = uuid.UUID(int=7)
AT = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone.utc)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain", "plain"),
        ("", ""),
        (Level.HIGH, "high"),
        (None, NO_OUTPUT),
        (15, "15"),
        (True, "true"),
        (1.5, "1.5"),
        (2**100, str(2**100)),
        ([1, "a", None], '[1,"a",null]'),
        ((1, 2), "[1,2]"),
        (Point(1, 2), "[1,2]"),
        ({"ä": {"b": [False]}}, '{"ä":{"b":[false]}}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (MappingProxyType({"a": 1}), '{"a":1}'),
        ({1: "int key"}, '{"1":"int key"}'),
        (Mug("blue", Decimal("12.50")), '{"colour":"blue","price":"12.50"}'),
        ([Mug("red", Decimal(1))], '[{"colour":"red","price":"1"}]'),
        (Colour.BLUE, '"blue"'),
        ([Colour.BLUE, Level.HIGH], '["blue","high"]'),
        (AT, '"2026-01-02T03:04:05+00:00"'),
        (dt.date(2026, 1, 2), '"2026-01-02"'),
        (dt.time(3, 4), '"03:04:00"'),
        (dt.timedelta(hours=1), '"1:00:00"'),
        (ID, f'"{ID}"'),
        (Decimal("1.10"), '"1.10"'),
        (pathlib.PurePosixPath("a/b"), '"a/b"'),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"x"}), '["x"]'),
        ({"k": 1}.keys(), '["k"]'),
        (b"text", "text"),
        (bytearray(b"text"), "text"),
        (memoryview(b"text"), "text"),
        ([b"text"], '["text"]'),
        (Order(id=ID, at=AT), f'{{"id":"{ID}","at":"2026-01-02T03:04:05Z"}}'),
        ([Order(id=ID, at=AT)], f'[{{"id":"{ID}","at":"2026-01-02T03:04:05Z"}}]'),
    ],
)
def test_values_become_text(value, content):
    """Text is itself, everything else is JSON."""
    assert render(value) == Output(content)


def cycle():
    value = []
    value.append(value)
    return value


class Broken(BaseModel):
    def model_dump(self, **_):
        raise RuntimeError("no dump")


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda: float("nan"),
        lambda: [float("inf")],
        cycle,
        object,
        lambda: Mug,
        lambda: Order,
        lambda: {(1, 2): 3},
        lambda: (x for x in "ab"),
        lambda: nested(100_000),
        lambda: 10**5_000,
        Broken,
        lambda: 1j,
        lambda: Output("fine", details={"bad": object()}),
    ],
)
def test_what_is_not_json_is_an_error_that_says_so(make):
    """NaN, cycles, objects, and values whose own code fails."""
    output = render(make())
    assert output.is_error
    assert output.content.startswith("unserialisable result of type ")


def test_bytes_that_are_no_text_are_said():
    """Bytes that are not UTF-8 are decoded with replacement, after a notice."""
    assert render(b"a\xff").content == "[2 bytes that are not UTF-8 text; what cannot be read is U+FFFD]\na\ufffd"


def test_an_output_passes_at_its_length_but_clean():
    """A tool's own `Output` is not cut; half surrogates and NUL go."""
    given = Output("x" * (MAX_BYTES + 1) + "\0\ud800", True, {"k": 1})
    assert render(given) == Output("x" * (MAX_BYTES + 1) + "\ufffd", True, {"k": 1})


def test_text_is_cleaned():
    """NUL and half surrogates do not reach a store."""
    assert render("a\0\ud800b").content == "a\ufffdb"


@pytest.mark.parametrize("text", ["x" * MAX_BYTES, "\n" * MAX_LINES, "x\n" * (MAX_LINES - 1) + "x"])
def test_at_the_limit_nothing_is_cut(text):
    """50 KiB, and 2,000 lines, are still whole."""
    assert render(text) == Output(text)


@pytest.mark.parametrize("text", ["x" * (MAX_BYTES + 1), "\n" * (MAX_LINES + 1), "x\n" * MAX_LINES + "x"])
def test_beyond_the_limit_the_middle_is_cut(text):
    """One byte, or one line, more: head, notice and tail, and what it was."""
    output = render(text)
    assert f"{len(text)} bytes" in output.content
    assert output.details == {"truncated": {"bytes": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}}


def test_head_and_tail_are_kept():
    """The ends of the text survive, half of the room each."""
    output = render("a" * 100 + "b" * 100, max_bytes=20)
    head, notice, tail = output.content.split("\n\n")
    assert (head, tail) == ("a" * 10, "b" * 10)
    assert "200 bytes in 1 lines" in notice


def test_lines_are_kept_from_both_ends():
    """An odd number of lines gives the tail the larger half."""
    output = render("\n".join(map(str, range(10))), max_lines=3)
    head, notice, tail = output.content.split("\n\n")
    assert (head, tail) == ("0", "8\n9")
    assert "19 bytes in 10 lines" in notice


def test_one_byte_and_one_line_are_limits_too():
    """The smallest limits leave the last character."""
    assert render("ab\ncd", max_bytes=1, max_lines=1).content.endswith("]\n\nd")


@pytest.mark.parametrize("limits", [{"max_bytes": 0}, {"max_lines": 0}])
def test_a_limit_below_one_is_refused(limits):
    """A cap of nothing is a mistake of the program."""
    with pytest.raises(ValueError, match="1 byte and 1 line or more"):
        Capped(**limits)


@given(st.text(alphabet="aä€🙂\n"), st.integers(1, 30), st.integers(1, 5))
def test_a_cap_never_splits_a_character_and_keeps_true_ends(text, max_bytes, max_lines):
    """What is kept is the text, or a start and an end of it within the limits."""
    output = render(text, max_bytes=max_bytes, max_lines=max_lines)
    if output.details is None:
        assert output.content == text
        return
    head, tail = output.content.split("\n\n[… ")[0], output.content.split(" …]\n\n")[-1]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len((head + tail).encode()) <= max_bytes
    assert head.count("\n") + tail.count("\n") <= max_lines


@given(st.text(min_size=1), st.lists(st.integers(0, 40)))
def test_pieces_give_what_the_whole_gives(text, cuts):
    """How a text was cut into pieces does not show."""
    capped = Capped(max_bytes=20, max_lines=3)
    borders = [0, *sorted(cuts), len(text)]
    for start, end in pairwise(borders):
        capped.add(text[start:end])
    assert capped.output() == render(text, max_bytes=20, max_lines=3)


def test_memory_is_bounded_by_the_limit():
    """Of a long stream, little more than the limit is held."""
    capped = Capped(max_bytes=100)
    for _ in range(1_000):
        capped.add("x" * 1_000)
    assert len(capped._head) + len(capped._tail) == 200
    assert capped.output().details["truncated"]["bytes"] == 1_000_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.decimals() | st.uuids(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers() | st.floats(), inner) | st.tuples(inner, inner)
    ),
)


@given(JSON)
def test_any_value_renders_or_gives_an_error(value):
    """Rendering never raises, and what it gives can be stored."""
    output = render(value)
    output.content.encode()
    assert "\0" not in output.content
    if not output.is_error and isinstance(value, list | dict | bool | int | float):
        json.loads(output.content)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("cannot speak")


@pytest.mark.parametrize(
    ("error", "content"),
    [
        (ValueError("no such mug"), "ValueError: no such mug"),
        (ToolError("ask again"), "ask again"),
        (InvalidArguments("mend it"), "mend it"),
        (ToolError(), "ToolError"),
        (TimeoutError(), "TimeoutError"),
        (Mute(), "Mute"),
        (ExceptionGroup("g", [KeyError("k"), ExceptionGroup("h", [ToolError("t")])]), "KeyError: 'k'; t"),
        (ValueError("a\0\ud800"), "ValueError: a\ufffd"),
    ],
)
def test_an_error_becomes_its_type_and_text(error, content):
    """No traceback; a `ToolError` is its text, a group its members."""
    assert error_output(error) == Output(content, is_error=True)


def test_an_error_is_capped():
    """A huge error text is cut like any output."""
    output = error_output(ToolError("x" * (MAX_BYTES + 1)))
    assert output.is_error
    assert output.details["truncated"]["bytes"] == MAX_BYTES + 1


def test_describe_is_one_text():
    """The text of an error, for a message about it."""
    assert describe(OSError(2, "gone")) == "FileNotFoundError: [Errno 2] gone"
