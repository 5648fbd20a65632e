"""What a provider can do wrong, over real HTTP, and what the caller sees."""

import os

import anyio
import orjson
import pytest

from streamagent.protocols import ModelSettings
from streamagent.testing.provider import Response, finish, scripted_provider, sse, text

from .lanes import ANSWER, KEY, NOISE, anyio_backend, ask, lane, model_at, model_on_lane  # noqa: F401 - fixtures
from .script import Naps

pytestmark = [pytest.mark.anyio, NOISE]

SECRET = "canary-0123456789-abcdefghij"
NO_RETRY = ModelSettings(retries=0)
HEL = sse(text("Hel"), done=False)
LLAMA_OVERFLOW = "request (5000 tokens) exceeds the available context size (2048 tokens)"


def refusal(status, message="no", headers=None, **fields):
    return Response(
        status=status, headers=headers or {}, body=[orjson.dumps({"error": {"message": message, **fields}})]
    )


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (refusal(429, "Slow down"), "rate_limited"),
        (refusal(500), "provider_error"),
        (refusal(502), "provider_error"),
        (refusal(503), "overloaded"),
        (refusal(529), "overloaded"),
        (refusal(504), "timeout"),
        (Response(status=0, ending="eof"), "connection"),
        (Response(status=0, ending="reset"), "connection"),
        (Response(body=[b'data: {"error": {"message": "Overloaded", "type": "overloaded_error"}}\n\n']), "overloaded"),
        (Response(body=[b'data: {"error": {"message": "tool call validation failed"}}\n\n']), "malformed_call"),
        (Response(body=sse(done=False), ending="eof"), "truncated"),
        (Response(body=[b"data: {nope\n\n"]), "protocol"),
        (Response(body=sse(finish("stop"))), "empty_response"),
        (Response(headers={"content-type": "text/html"}, body=[b"<html>gateway</html>"]), "protocol"),
        (Response(body=[b'data: {"choices": 5}\n\n']), "protocol"),
    ],
)
async def test_what_may_pass_is_tried_again_unseen(response, kind):
    result, requests, _ = await ask(response, ANSWER)
    assert result.text == "Hello"
    assert [attempt["error"]["kind"] for attempt in result.stop.query["attempts"]] == [kind]
    assert len(requests) == 2


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (refusal(401, f"Incorrect API key provided: {KEY}"), "auth"),
        (refusal(403), "auth"),
        (refusal(404), "not_found"),
        (refusal(400, "messages.1: bad"), "bad_request"),
        (refusal(422), "bad_request"),
        (refusal(429, "You exceeded your current quota", code="insufficient_quota"), "quota"),
        (refusal(400, "This model's maximum context length is 4096 tokens"), "context_overflow"),
        (refusal(400, LLAMA_OVERFLOW, type="exceed_context_size_error"), "context_overflow"),
        (refusal(400, "Stopped by the content filter"), "content_filter"),
    ],
)
async def test_what_cannot_succeed_is_not_tried_again(response, kind):
    result, requests, _ = await ask(response, ANSWER)
    assert (result.reason, result.error["kind"], result.error["retryable"]) == ("error", kind, False)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (Response(body=HEL, ending="reset"), "truncated"),
        (Response(body=HEL, ending="eof"), "truncated"),
        (Response(body=HEL), "truncated"),
        (Response(body=[*HEL, b"data: {nope\n\n"]), "protocol"),
        (Response(body=[*HEL, b'data: {"error": {"message": "Overloaded"}}\n\n']), "overloaded"),
        (Response(body=[*HEL, b'data: {"error": {"message": "Something odd"}}\n\n']), "provider_error"),
        (Response(body=[*HEL, b'data: {"error": {"message": "Rate limit reached"}}\n\n']), "rate_limited"),
    ],
)
async def test_what_was_shown_stays_and_nothing_is_tried_again(response, kind):
    """F07."""
    result, requests, _ = await ask(response, ANSWER)
    assert (result.text, result.reason, result.error["kind"]) == ("Hel", "error", kind)
    assert len(requests) == 1


async def test_the_reason_of_a_refusal_may_come_in_pieces():
    [whole] = refusal(400, "This model's maximum context length is 4096 tokens").body
    result, _, _ = await ask(Response(status=400, body=[whole[place : place + 1] for place in range(len(whole))]))
    assert result.error["kind"] == "context_overflow"
    assert "maximum context length is 4096 tokens" in result.error["message"]


@pytest.mark.parametrize("reason", ["error", "abort"])
async def test_half_an_answer_that_the_provider_gave_up_is_none(reason):
    """I16."""
    result, _, _ = await ask(Response(body=sse(text("Hel"), finish(reason))))
    assert (result.text, result.reason, result.error["kind"]) == ("Hel", "error", "provider_error")


async def test_the_provider_says_how_long_to_wait():
    _, _, naps = await ask(refusal(429, headers={"retry-after": "7"}), ANSWER)
    assert naps == [7.0]


async def test_nothing_is_slept_beyond_the_deadline():
    async with scripted_provider([refusal(429, headers={"retry-after": "7"})]) as provider:
        model = model_at(provider)
        result = await model.send("Hi", deadline=anyio.current_time() + 6)
    assert result.error["kind"] == "rate_limited"
    assert model._sleep.taken == []


async def test_attempts_end():
    result, requests, naps = await ask(*[refusal(500)] * 9)
    assert result.error["kind"] == "provider_error"
    assert len(requests) == 4
    assert naps == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("response", "said"), [(Response(status=0, ending="hang"), ""), (Response(body=HEL, ending="hang"), "Hel")]
)
async def test_silence_is_a_timeout_and_closes_the_connection(response, said):
    """F06, F08."""
    async with scripted_provider([response]) as provider:
        result = await model_at(provider).send("Hi", settings=ModelSettings(idle_timeout=0.3, retries=0))
        with anyio.fail_after(2):
            await provider.requests[0].disconnected.wait()
    assert (result.text, result.error["kind"]) == (said, "timeout")


@pytest.mark.parametrize("status", [400, 401, 429, 500])
async def test_no_error_text_holds_the_key(status):
    """I17."""
    result, _, _ = await ask(*[refusal(status, f"the key {KEY} and Bearer {KEY}")] * 4)
    assert KEY not in str(list(result))


@pytest.mark.parametrize("body", [b"<html>gateway</html>", b"data: [1,2]\n\n"])
async def test_what_is_no_answer_hints_at_the_address(body):
    """F10."""
    result, _, _ = await ask(Response(headers={"content-type": "text/html"}, body=[body]), settings=NO_RETRY)
    assert "is api_base the address of this provider's API?" in result.error["message"]


@pytest.mark.parametrize(
    "extra",
    [
        {"api_key": SECRET},
        {"extra_headers": {"x-api-key": SECRET}},
        {"extra_headers": {"Authorization": f"Bearer {SECRET}"}},
    ],
)
async def test_no_error_text_holds_a_secret_of_the_settings(extra):
    """I17."""
    settings = ModelSettings(extra=extra, retries=0)
    result, requests, _ = await ask(refusal(400, f"bad: {SECRET}, {SECRET[:14]}…"), settings=settings)
    assert SECRET in str(requests[0].headers)
    assert result.error["message"].startswith("bad: [redacted], [redacted]…")


@pytest.mark.parametrize(("name", "variable"), [("openai/test", "OPENAI_API_KEY"), ("groq/test", "GROQ_API_KEY")])
async def test_a_missing_key_is_named_at_once(name, variable, monkeypatch):
    for known in [known for known in os.environ if known.endswith(("_API_KEY", "_ADMIN_KEY"))]:
        monkeypatch.delenv(known)
    async with scripted_provider([refusal(401, "No key given")] * 2) as provider:
        naps = Naps()
        result = await model_on_lane(name, api_base=provider.url, sleep=naps).send("Hi")
    assert (result.error["kind"], naps.taken) == ("auth", [])
    assert variable in result.error["message"]


async def test_a_key_that_was_given_is_not_missing():
    result, _, _ = await ask(refusal(401, "Wrong key"))
    assert result.error["message"] == "Wrong key (status 401)"
