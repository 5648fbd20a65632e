"""`redact`: what passes here has no secret in it."""

import inspect
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamagent.agent import Agent
from streamagent.errors import ConfigError
from streamagent.message import Message, fold, split
from streamagent.pipeline import Pipeline, describe, open_pipeline
from streamagent.stages.persist import persist
from streamagent.stages.redact import EMAIL_PATTERN, KEY_PATTERNS, redact
from streamagent.stages.tool_dispatch import tool_dispatch
from streamagent.stores.memory import MemoryStore
from streamagent.testing.stages import Probe, check_stage
from streamagent.tools.function import tool
from tests.scripted import ScriptedModel, answer, calls, check_rows, text

pytestmark = pytest.mark.anyio
OWN_STORES = True

CANARY = "canary-4711"


async def shown(messages, **options):
    return await check_stage(redact(**{"values": [CANARY], **options}), messages)


async def joined(messages, **options):
    return "".join(message.content for message in await shown(messages, **options))


# Put together here, so that nobody's scanner takes them for real.
KEYS = [
    "sk-" + "proj-Ab1_" * 4,
    "sk-" + "ant-api03-" + "x" * 40,
    "pk_" + "live_" + "a1" * 12,
    "rk_" + "live_" + "a1" * 12,
    "gh" + "p_" + "A1b2" * 9,
    "github" + "_pat_" + "A1_" * 20,
    "glpat" + "-" + "a1b2" * 5,
    "h" + "f_" + "aB1" * 11,
    "AK" + "IA" + "ABCD" * 4,
    "AS" + "IA" + "ABCD" * 4,
    "AI" + "za" + "Sy-_" * 9,
    "xo" + "xb-" + "123-abc" * 3,
    "ey" + "JhbGciOiJI" + ".ey" + "JzdWIiOiIx" * 200 + "." + "s" * 43,
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("around", ["{}", "key={}, ok", '{{"a":"{}"}}', "«{}»"])
async def test_what_looks_like_a_key_is_replaced(key, around):
    message = Message(content=f"a {around.format(key)} b")
    expected = f"a {around.format('[redacted]')} b"
    assert await joined([message]) == expected
    assert await joined(split(message, 7)) == expected


async def test_the_password_of_an_address_is_replaced_and_the_address_stays():
    assert await joined([Message(content="https://me:secret@host/x?a=b@c")]) == "https[redacted]host/x?a=b@c"
    assert await joined([Message(content="http://host:80/a@b")]) == "http://host:80/a@b"


@pytest.mark.parametrize(
    "content",
    [
        "Ask the task-force about risk-averse desk_",
        "sk-short",
        "eyJust a word. And another. End",
        "The ratio is 3:4, see https://example.com:8080/path.",
        "AKIA is a prefix, xoxo",
        "me@example.com",
    ],
)
async def test_ordinary_text_is_the_same_message(content):
    message = Message(content=content)
    assert (await shown([message]))[0] is message


async def test_addresses_of_mail_are_replaced_on_request():
    patterns = [*KEY_PATTERNS, EMAIL_PATTERN]
    content = "Write to Jo.Doe+x@mail.example.co.uk, or a@b."
    assert await joined([Message(content=content)], patterns=patterns) == "Write to [redacted], or a@b."


async def test_the_replacement_is_text_and_no_template():
    assert await joined([Message(content=CANARY)], replacement=r"\1\g<0>") == r"\1\g<0>"


def a_call(**args):
    return Message(type="tool_call", content=json.dumps(args), query={"tool": "t", "id": "c1", "args": args})


async def test_arguments_are_searched_and_identifiers_kept():
    call = a_call(deep={"list": [f"Bearer {CANARY}", 1]})
    [whole] = fold(await shown(split(call, 5)))
    assert whole.query == {"tool": "t", "id": "c1", "args": {"deep": {"list": ["Bearer [redacted]", 1]}}}
    assert json.loads(whole.content) == whole.query["args"]


async def test_errors_are_searched_and_what_programs_read_is_kept():
    provider = {"signature": CANARY}
    stop = Message.stop("error", error={"message": CANARY}, usage={"n": 4711}, provider=provider)
    [seen] = await shown([stop], values=[CANARY, "4711"])
    assert seen.query == {
        "reason": "error",
        "error": {"message": "[redacted]"},
        "usage": {"n": 4711},
        "provider": provider,
    }


async def test_the_data_of_an_image_is_kept():
    query = {"mime": "image/png", "data": CANARY, "name": CANARY}
    [seen] = await shown([Message(role="user", type="image", query=query)])
    assert seen.query == {"mime": "image/png", "data": CANARY, "name": "[redacted]"}


async def test_every_role_and_type_is_searched():
    messages = [Message(role="system", content=CANARY), Message(type="of the future", content=CANARY)]
    assert await joined(messages) == "[redacted]" * 2


async def test_a_message_opens_when_it_did_and_empty_fragments_are_not_made():
    one, two = text("canary-", "4711 and", " more"), Message(type="progress", content="!")
    seen = await shown([one[0], two, *one[1:]])
    assert [message.content for message in seen] == ["", "!", "[redacted] ", "and ", "more"]
    assert [message.more for message in seen] == [True, False, True, True, False]


async def test_what_is_held_of_a_message_that_never_closes_is_passed_on():
    seen = await shown([*text("half a can")[:1], Message(content="x", more=True)])
    assert [(message.content, message.more) for message in seen[2:]] == [("can", True), ("x", True)]
    assert "".join(message.content for message in seen) == "half a canx"


async def test_nothing_is_passed_on_twice_of_one_that_never_closes():
    assert [message.content for message in await shown([Message(content="done ", more=True)])] == ["done "]


async def test_text_is_shown_word_by_word():
    async with open_pipeline(Probe(text("one ", "two", " three")).stream(), redact()) as tail:
        assert [(await anext(tail)).content for _ in range(3)] == ["one ", "two ", "three"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([CANARY, "canary-", "4711", " ", "two words", "two ", "x"]), max_size=9), st.integers(1, 9)
)
async def test_any_fragmentation_stores_the_same(parts, size):
    message = Message(content="".join(parts))
    [whole] = await shown([message], values=[CANARY, "two words"])
    assert fold(await shown(split(message, size), values=[CANARY, "two words"])) == [whole]
    assert CANARY not in whole.content


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"patterns": []}, "nothing to look for"),
        ({"patterns": "a++"}, "brackets"),
        ({"values": "secret"}, "brackets"),
        ({"patterns": ["a+"]}, "make quantifiers possessive"),
        ({"values": ["abc"]}, "4 characters"),
    ],
)
def test_what_cannot_be_looked_for_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        redact(**options)


def test_a_printed_pipeline_shows_no_secret():
    stage = redact(values=[CANARY])
    assert describe(stage) == f"redact(redactor={len(KEY_PATTERNS)} patterns and 1 values)"
    assert CANARY not in f"{Pipeline(context=[stage])} {Pipeline(reply=[stage])!r}"


async def test_a_secret_is_neither_seen_by_the_model_nor_stored_and_the_tool_gets_it():
    """S08, I17."""
    got = []

    @tool
    async def login(password: str) -> str:
        """Log in."""
        got.append(password)
        return f"Welcome, {password}."

    asked = Message(type="tool_call", content="{}", query={"tool": "login", "id": "c1", "args": {"password": CANARY}})
    model = ScriptedModel(calls(asked), answer("It is cana", "ry-4711."))
    hide, store = redact(values=[CANARY]), MemoryStore()
    pipeline = Pipeline(context=[hide], reply=[tool_dispatch([login]), hide, persist()])
    async with Agent(model, tools=[login], store=store, pipeline=pipeline).session("s") as session:
        reply = await session.ask(f"My password is {CANARY}, log me in.")
    rows = await check_rows(store)
    assert got == [CANARY]
    assert reply.text == "It is [redacted]."
    assert CANARY not in "".join(f"{row.content}{row.query}" for row in rows if row.role != "user")
    assert CANARY not in "".join(f"{item.content}{item.query}" for context in model.contexts for item in context)


def test_it_has_a_signature_that_can_be_read():
    assert list(inspect.signature(redact).parameters) == ["patterns", "values", "replacement"]


@pytest.mark.parametrize("kind", ["tool_call", "tool_result", "approval"])
async def test_names_in_arguments_and_details_and_the_tools_name_are_redacted(kind):
    hidden = {CANARY: {f"key {CANARY}": 1}}
    query = {"tool": f"t-{CANARY}", "id": "c1", "args": hidden, "details": hidden, "limit": CANARY}
    [message] = await shown([Message(type=kind, query=query)])
    clean = {"[redacted]": {"key [redacted]": 1}}
    expected = {"tool": "t-[redacted]", "id": "c1", "args": clean, "details": clean, "limit": "[redacted]"}
    assert message.query == expected


async def test_what_programs_read_of_a_stop_stays():
    stop = Message.stop("turn_limit", limit={"turns": 4711}, usage={"total_tokens": 4711}, model="m-4711")
    assert await shown([stop], values=["4711"]) == [stop]
