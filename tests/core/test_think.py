"""Think blocks, wherever their tags are cut."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamagent._core.think import ThinkSplitter

# A busy machine is no failure.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def split(*pieces, **options):
    splitter = ThinkSplitter(**options)
    found = [pair for piece in pieces for pair in splitter.feed(piece)] + splitter.end()
    joined = [text for _, text in found]
    assert all(joined)
    return tuple("".join(text for kind, text in found if kind == wanted) for wanted in ("reasoning", "text"))


@pytest.mark.parametrize(
    ("content", "options", "expect"),
    [
        ("<think>a</think>b", {}, ("a", "b")),
        ("\n\n <think>a</think>b", {}, ("a", "b")),
        ("<think></think>b", {}, ("", "b")),
        ("<think>a < b </thin </think>b", {}, ("a < b </thin ", "b")),
        ("<think>a</th</think>b", {}, ("a</th", "b")),
        ("<think>a", {}, ("a", "")),
        ("<think>a</thi", {}, ("a</thi", "")),
        ("<thi", {}, ("", "<thi")),
        (" \n", {}, ("", " \n")),
        ("b <think>a</think>", {}, ("", "b <think>a</think>")),
        ("<think>a</think><think>b</think>", {}, ("a", "<think>b</think>")),
        ("</think>b", {}, ("", "</think>b")),
        (" " * 64 + "<think>a</think>b", {}, ("a", "b")),
        (" " * 65 + "<think>a</think>b", {}, ("", " " * 65 + "<think>a</think>b")),
        ("a</think>b", {"starts_in_think": True}, ("a", "b")),
        ("<think>a</think>b", {"starts_in_think": True}, ("a", "b")),
        ("a", {"starts_in_think": True}, ("a", "")),
        ("<t", {"starts_in_think": True}, ("<t", "")),
        ("</think>b", {"starts_in_think": True}, ("", "b")),
        ("\n</think>b</think>", {"orphan": True}, ("", "b</think>")),
        ("<think>b", {"orphan": True}, ("", "<think>b")),
        ("b</think>", {"orphan": True}, ("", "b</think>")),
    ],
)
def test_split(content, options, expect):
    """The outcome is the same whole, character by character, and cut in two at every place."""
    assert split(content, **options) == expect
    assert split(*content, **options) == expect
    for cut in range(len(content)):
        assert split(content[:cut], content[cut:], **options) == expect


@pytest.mark.parametrize(
    ("pieces", "held"), [(["Hi <"], ""), (["<thin"], "<thin"), (["<think>a</"], "</"), (["a<th"], "")]
)
def test_only_a_possible_tag_is_held_back(pieces, held):
    """What cannot become a tag is returned at once."""
    splitter = ThinkSplitter()
    for piece in pieces:
        splitter.feed(piece)
    assert "".join(text for _, text in splitter.end()) == held


@PATIENT
@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<", "</th", "ink>", "a", " ", "\n", "é"])),
    st.booleans(),
    st.data(),
)
def test_any_cut(parts, inside, data):
    """Tags anywhere, cuts anywhere: the same split."""
    content = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    pieces = [content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    assert split(*pieces, starts_in_think=inside) == split(content, starts_in_think=inside)
