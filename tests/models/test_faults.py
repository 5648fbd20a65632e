"""From a foreign exception to an error of ours."""

import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest

from streamagent.models.faults import find_secrets, redact, to_model_error


class ForeignError(Exception):
    def __init__(self, text="", status=None, **headers):
        super().__init__(text)
        if status is not None:
            self.status_code = status
        self.response = SimpleNamespace(headers={name.replace("_", "-"): value for name, value in headers.items()})


class MidStreamFallbackError(ForeignError):
    pass


class ContentPolicyViolationError(ForeignError):
    pass


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (ForeignError("Connection error.", 500), "connection", True),
        (MidStreamFallbackError("Connection error.", 500), "truncated", True),
        (MidStreamFallbackError("Stream ended before a finish_reason was received", 500), "truncated", True),
        (MidStreamFallbackError("Expecting value: line 1", 500), "protocol", True),
        (MidStreamFallbackError("This key is bad: invalid api key", 500), "auth", False),
        (ContentPolicyViolationError("No.", 400), "content_filter", False),
        (TimeoutError(), "timeout", True),
        (ValueError("odd"), "provider_error", True),
        (ForeignError("Missing credentials. Please pass an `api_key` or set `OPENAI_API_KEY`", 500), "auth", False),
        (ForeignError("Missing Gemini API key. Set GEMINI_API_KEY.", 500), "auth", False),
        (ForeignError("The api_key client option must be set", 500), "auth", False),
        (MidStreamFallbackError("'list' object has no attribute 'choices'", 500), "protocol", True),
        (ForeignError("KeyError: 'delta', Got unexpected response from X", 400), "protocol", True),
        (ModuleNotFoundError("No module named 'fastapi'"), "bad_request", False),
    ],
)
def test_the_kind_is_found(error, kind, retryable):
    told = to_model_error(error)
    assert (told.kind, told.retryable) == (kind, retryable)


def test_the_librarys_prefixes_and_repetitions_are_cut():
    text = "litellm.RateLimitError: RateLimitError: OpenAIException - slow down Original exception: slow down"
    assert str(to_model_error(ForeignError(text, 429))) == "slow down (status 429)"


def test_a_traceback_is_cut():
    text = 'Set GEMINI_API_KEY.\nTraceback (most recent call last):\n  File "main.py", line 944'
    assert str(to_model_error(ForeignError(text, 400))) == "Set GEMINI_API_KEY. (status 400)"


def test_a_long_text_is_cut():
    assert len(str(to_model_error(ForeignError("x" * 9999, 400)))) < 1100


FAR = "Mon, 01 Jan 2020 00:00:00 +" + "9" * 30  # more than an integer of C holds


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("inf", None), ("soon", None), (FAR, None)]
)
def test_the_wait_is_read(header, seconds):
    assert to_model_error(ForeignError("x", 429, retry_after=header)).retry_after == seconds


def test_the_wait_may_be_a_date():
    header = formatdate(time.time() + 100, usegmt=True)
    assert 90 < to_model_error(ForeignError("x", 429, retry_after=header)).retry_after <= 100


def test_without_headers_there_is_no_wait():
    assert to_model_error(ValueError("x")).retry_after is None


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdefgh12345678",
        "sk-12345***************cdef",
        "AIzaSyA1234567890abcdefghijklmn",
        "gsk_abcdefghijkl",
    ],
)
def test_what_looks_like_a_key_is_blanked(secret):
    assert secret not in redact(f"the key {secret} is wrong")


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def", "abc.def"),
        ("GET https://x.example/v1?key=abc123", "abc123"),
        ("api_key=abc123, model", "abc123"),
        ("https://user:pass@x.example", "user:pass"),
    ],
)
def test_keys_in_headers_and_addresses_are_blanked(text, secret):
    assert secret not in redact(text)


def test_known_secrets_are_blanked(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "canary-in-the-environment")
    text = redact("canary-in-the-environment and canary-given", ["canary-given", "a"])
    assert "canary" not in text
    assert " and " in text


SECRET = "canary-0123456789-abcdefghij"


@pytest.mark.parametrize("kept", range(12, len(SECRET) + 1))
def test_the_beginning_of_a_secret_is_blanked(kept):
    """Providers cut what they quote."""
    assert redact(f"the key {SECRET[:kept]}... is wrong", [SECRET]) == "the key [redacted]... is wrong"


def test_fewer_characters_give_no_secret_away():
    assert redact(SECRET[:11], [SECRET]) == SECRET[:11]


def test_secrets_that_begin_alike_are_blanked_whole():
    other = f"{SECRET[:14]}-of-somebody-else"
    text = f"{other}, {SECRET}, {other[:20]}"
    assert redact(text, [SECRET, other]) == redact(text, [other, SECRET]) == "[redacted], [redacted], [redacted]"


@pytest.mark.parametrize(
    "parameters",
    [
        {"api_key": SECRET},
        {"extra_headers": {"X-Api-Key": SECRET}},
        {"extra_headers": {"Authorization": f"Bearer {SECRET}"}},
        {"extra_body": {"options": [{"auth_token": SECRET}]}},
        {"aws_secret_access_key": SECRET, "max_tokens": 5},
        {"vertex_credentials": {"anything": (SECRET,)}},
        {"proxy": {"Password": SECRET}},
    ],
)
def test_secrets_are_found_by_name_wherever_they_are(parameters):
    assert SECRET in list(find_secrets(parameters))


def test_what_has_no_secret_name_is_none():
    assert list(find_secrets({"user": "alice", "metadata": {"tags": ["shop"]}, "max_tokens": 5})) == []
