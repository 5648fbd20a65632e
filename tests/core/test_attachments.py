"""Images and files in requests."""

import base64

import pytest

from streamagent._core.attachments import TEXT_CHARS, is_text
from streamagent._core.profiles import PROFILES, Profile, lint, profile_for
from streamagent._core.request import build_request
from streamagent.message import Message


def file(data, mime, **query):
    encoded = base64.b64encode(data).decode()
    return Message(role="user", type="file", query={"mime": mime, "data": encoded, **query})


def sent(message, profile=PROFILES["openai/"]):
    request = build_request([message], profile)
    assert lint(request, profile) == []
    return request[0]["content"]


@pytest.mark.parametrize("model", ["openai/gpt-5-mini", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"])
def test_a_pdf_is_a_file_part_where_the_provider_takes_it(model):
    [part] = sent(file(b"%PDF-1.7", "application/pdf", name="a.pdf"), profile_for(model))
    data = "data:application/pdf;base64,JVBERi0xLjc="
    assert part == {"type": "file", "file": {"filename": "a.pdf", "file_data": data}}


def test_a_pdf_is_named_where_the_provider_does_not_take_it():
    assert sent(file(b"%PDF-1.7", "application/pdf", name="a.pdf"), Profile()) == "[file left out: a.pdf]"


@pytest.mark.parametrize("mime", ["text/csv", "application/json"])
def test_a_text_file_is_text_for_every_provider(mime):
    assert is_text(mime)
    assert sent(file("ä;1".encode(), mime, name="a.csv"), Profile()) == "[file: a.csv]\nä;1"


def test_a_text_file_is_cut_at_its_limit_and_not_before():
    whole = sent(file(b"x" * TEXT_CHARS, "text/plain"))
    assert whole == "[file: text/plain]\n" + "x" * TEXT_CHARS
    cut = sent(file(b"x" * (TEXT_CHARS + 1), "text/plain"))
    assert cut.count("x") == TEXT_CHARS + 1  # one is in "text/plain"
    assert cut.endswith("\n[… the file goes on: about 100002 bytes in all]")


def test_a_text_of_wide_characters_is_cut_without_decoding_all_of_it():
    cut = sent(file("😀".encode() * (TEXT_CHARS + 1), "text/plain"))
    assert cut.count("😀") == TEXT_CHARS
    assert "goes on" in cut


@pytest.mark.parametrize("query", [{"mime": "text/plain", "data": "%%"}, {"mime": "audio/ogg", "data": "QUJD"}])
def test_what_cannot_be_read_is_named(query):
    assert sent(Message(role="user", type="file", query=query)) == f"[file left out: {query['mime']}]"


def test_a_file_of_the_model_is_named():
    message = Message(role="system", type="file", query={"mime": "text/plain", "data": "QUJD", "name": "a"})
    assert sent(message) == "[file left out: a]"
