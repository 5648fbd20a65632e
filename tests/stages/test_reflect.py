"""Reviews (issue 3, item 12): below the pass mark the turn is taken again, at most so many rounds."""

import gc
import math

import pytest

from streamagent import Agent, ConfigError, MemoryStore, Message, ModelError, Pipeline, persist, tool_dispatch
from streamagent.message import fold
from streamagent.models.fallback import FallbackModel
from streamagent.stages.budget import budget
from streamagent.stages.reflect import ROUNDS_LIMIT, Review, model_reviewer, reflect
from streamagent.testing.stages import ENDINGS, check_stage
from streamagent.tools.function import tool
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, text

pytestmark = pytest.mark.anyio
OWN_STORES = True

RAN = []


@tool
async def stock(product: str) -> int:
    """Units of a product in stock."""
    RAN.append(product)
    return 15


class Reviewer:
    """Gives the scores of a list, the last one for ever."""

    def __init__(self, *reviews):
        self.reviews = list(reviews)
        self.seen = []

    async def __call__(self, conversation):
        self.seen.append([(message.role, message.type, message.content) for message in conversation])
        review = self.reviews.pop(0) if len(self.reviews) > 1 else self.reviews[0]
        if isinstance(review, Exception):
            raise review
        return review


def agent(model, *reviewers, store=None, **options):
    stages = [reflect(reviewers, **options), tool_dispatch([stock]), persist()]
    return Agent(model, tools=[stock], pipeline=Pipeline(reply=stages), store=store)


async def asked(model, *reviewers, **options):
    """What is streamed, and the rows."""
    store = MemoryStore()
    async with agent(model, *reviewers, store=store, **options).session("s") as session:
        result = await session.ask("How many?")
        assert [(row.id, row.content) for row in await check_rows(store)] == [(row.id, row.content) for row in result]
    return result


async def test_a_good_answer_passes_and_its_stop_says_so():
    result = await asked(ScriptedModel(answer("Fifteen.")), Reviewer(8))
    assert [(row.role, row.content) for row in result] == [
        ("user", "How many?"),
        ("assistant", "Fifteen."),
        ("assistant", ""),
    ]
    assert result.stop.query["reflection"] == {
        "passed": True, "pass_mark": 8, "round": 0, "score": 8, "reviews": [{"score": 8}],
    }  # fmt: skip


async def test_an_answer_below_the_mark_goes_back_with_the_reason():
    model = ScriptedModel(answer("Many."), answer("Fifteen."))
    reviewer = Reviewer(Review(score=7.5, feedback="Say a number.", usage={"total_tokens": 4}), 9)
    result = await asked(model, reviewer)
    assert [row.content for row in result if row.type == "text"][::2] == ["How many?", result[3].content]
    assert "7.5 of 10 points; 8 are needed. Say a number. Try again." in result[3].content
    assert result[3].query == {"feedback": {"of": "reflect", "round": 1}}
    assert (result.text, result.stop.query["reflection"]["round"]) == ("Fifteen.", 1)
    assert result[2].query["reflection"]["reviews"][0]["usage"] == {"total_tokens": 4}
    assert [message.content for message in model.contexts[1]] == ["How many?", "Many.", "", result[3].content]


async def test_the_reviewer_sees_the_conversation_and_what_is_reviewed():
    reviewer = Reviewer(8)
    await asked(ScriptedModel(calls(call("stock", product="mug")), answer("Fif", "teen.")), reviewer)
    assert reviewer.seen[0] == [("user", "text", "How many?"), ("assistant", "tool_call", "{}")]
    assert [kind for _, kind, _ in reviewer.seen[1]] == ["text", "tool_call", "stop", "tool_result", "text"]
    assert reviewer.seen[1][-1] == ("assistant", "text", "Fifteen.")


@pytest.mark.parametrize("rounds", [0, 1, ROUNDS_LIMIT])
async def test_after_the_last_round_the_answer_passes(rounds):
    model = ScriptedModel(answer("No."))
    result = await asked(model, Reviewer(0), rounds=rounds)
    assert len(model.contexts) == rounds + 1
    assert (result.text, result.stop.query["reflection"]["passed"]) == ("No.", False)


async def test_each_prompt_has_its_own_rounds():
    model = ScriptedModel(answer("No."))
    async with agent(model, Reviewer(0), rounds=1).session() as session:
        await session.ask("One?")
        await session.ask("Two?")
    assert len(model.contexts) == 4


async def test_calls_below_the_mark_are_neither_shown_nor_run_and_go_back():
    RAN.clear()
    lost = [*text("I look."), call("stock", "c1", product="lost"), Message(type="of the future")]
    model = ScriptedModel(calls(*lost), calls(call("stock", "c2", product="mug")), answer("Fifteen."))
    result = await asked(model, Reviewer(Review(score=2, feedback="Ask for mugs."), 8))
    assert RAN == ["mug"]
    assert [row.type for row in result[:5]] == ["text", "text", "of the future", "stop", "text"]
    assert 'your tool calls stock({"product":"lost"}), which were not run, 2 of 10' in result[4].content
    assert [row.query["id"] for row in result if row.type == "tool_call"] == ["c2"]
    assert (result.text, result[3].query["reflection"]["passed"]) == ("Fifteen.", False)


async def test_after_the_last_round_the_calls_run():
    RAN.clear()
    await asked(ScriptedModel(calls(call("stock", product="mug")), answer("Fifteen.")), Reviewer(0), rounds=0)
    assert RAN == ["mug"]


async def test_calls_stream_unreviewed_where_only_answers_are():
    reviewer = Reviewer(8)
    model = ScriptedModel(calls(call("stock", product="mug")), answer("Fifteen."))
    result = await asked(model, reviewer, calls=False)
    assert len(reviewer.seen) == 1
    assert "reflection" not in result[2].query


async def test_the_first_reviewer_below_the_mark_decides():
    reviewers = [Reviewer(9), Reviewer(Review(score=3, feedback="Wrong.")), Reviewer(9)]
    result = await asked(ScriptedModel(answer("No.")), *reviewers, rounds=0)
    assert [len(reviewer.seen) for reviewer in reviewers] == [1, 1, 0]
    assert result.stop.query["reflection"]["score"] == 3


async def test_a_reviewer_that_fails_lets_the_answer_pass():
    failed = ModelError("down", kind="overloaded")
    result = await asked(ScriptedModel(answer("Yes.")), Reviewer(failed))
    told = result.stop.query["reflection"]
    assert (told["passed"], told["error"]) == (None, {"kind": "overloaded", "message": "down"})


@pytest.mark.parametrize("reason", ["error", "length", "content_filter"])
async def test_a_turn_that_ended_badly_is_not_reviewed(reason):
    reviewer = Reviewer(0)
    refused = Message(type="tool_call", query={"tool": "stock", "id": "c1", "args": None, "invalid": "truncated"})
    result = await asked(ScriptedModel([*text("No"), refused, Message.stop(reason)]), reviewer)
    assert (reviewer.seen, result.reason) == ([], reason)
    assert [row.type for row in result].count("tool_call") == 1


async def test_an_empty_turn_is_not_reviewed():
    reviewer = Reviewer(0)
    assert (await asked(ScriptedModel([Message.stop("stop")]), reviewer)).reason == "stop"
    assert reviewer.seen == []


async def test_what_was_superseded_is_not_reviewed():
    half = [*text("Many")[:-1], Message.stop("error", error={"kind": "overloaded", "retryable": True})]
    reviewer = Reviewer(8)
    await asked(FallbackModel([ScriptedModel(half), ScriptedModel(answer("Fifteen."))]), reviewer)
    assert [content for role, _, content in reviewer.seen[0] if role == "assistant"] == ["Fifteen."]


@pytest.mark.parametrize("score", [-0.1, 10.1, math.nan])
async def test_a_score_that_is_none_is_a_bug_of_the_reviewer(score):
    with pytest.raises(ValueError, match="score is from 0 to 10"):
        await asked(ScriptedModel(answer("Yes.")), Reviewer(score))


async def test_a_reader_who_leaves_at_the_stop_has_seen_the_last_of_it():
    store = MemoryStore()
    model = ScriptedModel(answer("No."), answer("Fifteen."))
    async with agent(model, Reviewer(0, 10), store=store).session("s") as session:
        async for message in session.ask("How many?"):
            if message.type == "stop":
                break
        await session.aclose()
        rows = await check_rows(store)
    assert [row.content for row in rows] == ["How many?", "No.", "", ""]
    assert [row.query["reason"] for row in rows[2:]] == ["stop", "aborted"]


async def test_a_budget_that_is_used_up_has_the_last_word_about_a_turn_that_was_sent_back():
    model = ScriptedModel(answer("No."))
    store = MemoryStore()
    stages = [reflect([Reviewer(0)]), budget(turns=1), persist()]
    async with Agent(model, pipeline=Pipeline(reply=stages), store=store).session("s") as session:
        result = await session.ask("How many?")
        rows = await check_rows(store)
    assert (len(model.contexts), result.reason, rows[-1].is_final) == (1, "budget", True)
    assert "again" not in rows[-1].query


async def test_the_rounds_count_as_turns():
    model = ScriptedModel(answer("No."))
    store = MemoryStore()
    stages = [reflect([Reviewer(0)], rounds=5), persist()]
    async with Agent(model, pipeline=Pipeline(reply=stages), store=store, max_turns=3).session("s") as session:
        assert (await session.ask("How many?")).reason == "turn_limit"
    assert len(model.contexts) == 3


async def test_asking_twice_with_one_key_shows_all_rounds():
    model = ScriptedModel(answer("No."), answer("Fifteen."))
    async with agent(model, Reviewer(0, 10)).session() as session:
        first = await session.ask("How many?", client_key="k")
        again = await session.ask("How many?", client_key="k")
    assert [message.id for message in again] == [message.id for message in first]
    assert again.text == "Fifteen."


@pytest.mark.parametrize(
    "options", [{"pass_mark": -1}, {"pass_mark": 10.5}, {"rounds": -1}, {"rounds": ROUNDS_LIMIT + 1}]
)
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ConfigError, match="pass_mark is 0 to 10 and rounds 0 to 10"):
        reflect([Reviewer(8)], **options)


@pytest.mark.parametrize("reviewers", [[], ["polite"]])
def test_what_cannot_review_is_refused(reviewers):
    with pytest.raises(ConfigError, match="one or more reviewers"):
        reflect(reviewers)


@pytest.mark.parametrize("score", [0, 10])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_nothing_is_left_however_it_is_left(ending, score):
    messages = [
        Message(role="user", content="How many?", sequence=1),
        *text("I ", "look."),
        call("stock", product="mug"),
        Message(type="of the future", content="?"),
        Message.stop("tool_calls"),
        *answer("Fifteen."),
    ]
    for at in range(1, len(messages) + 1):
        await check_stage(reflect([Reviewer(score)]), messages, ending, at=at, store=MemoryStore())
    gc.collect()


async def test_a_stream_that_breaks_off_gives_out_what_was_held():
    messages = [call("stock", product="mug"), Message(type="of the future", content="?")]
    seen = await check_stage(reflect([Reviewer(0)]), messages, store=MemoryStore())
    assert fold(seen) == messages


def scored(**args):
    return calls(Message(type="tool_call", query={"tool": "reflect", "id": "c1", "args": args}))


CONVERSATION = [
    Message.user("How many?"),
    call("stock", product="mug"),
    Message(role="tool", type="tool_result", content="15", query={"tool": "stock"}),
    Message.stop("tool_calls"),
    Message(content="Fifteen."),
]


async def test_a_model_reviews_by_calling_reflect():
    model = ScriptedModel(scored(score=7, description="Say of what."))
    assert await model_reviewer(model, "Is it exact?")(CONVERSATION) == Review(score=7, feedback="Say of what.")
    system, conversation = model.contexts[0]
    assert (system.content, [spec.name for spec in model.tools[0]]) == ("Is it exact?", ["reflect"])
    assert conversation.content.splitlines()[::2][:4] == [
        "user: How many?", 'stock({"product":"mug"})', "tool: 15", "assistant: Fifteen.",
    ]  # fmt: skip


@pytest.mark.parametrize(("score", "expected"), [(0, 0), (10, 10), (11, 10), (-3, 0)])
async def test_a_models_score_is_kept_within_the_range(score, expected):
    assert (await model_reviewer(ScriptedModel(scored(score=score)), "")(CONVERSATION)).score == expected


@pytest.mark.parametrize(
    "script",
    [
        answer("Good."),
        scored(),
        scored(score="high"),
        scored(score=math.nan),
        calls(Message(type="tool_call", query={"args": None})),
    ],
)
async def test_no_score_is_a_score_of_zero(script):
    assert await model_reviewer(ScriptedModel(script), "")(CONVERSATION) in [
        Review(score=0, feedback="The reviewer gave no score.", usage=usage) for usage in (None, {"total_tokens": 3})
    ]


async def test_a_reviewing_model_that_fails_says_so():
    down = ScriptedModel([Message.stop("error", error={"kind": "overloaded", "message": "down", "retryable": True})])
    with pytest.raises(ModelError, match="down"):
        await model_reviewer(down, "")(CONVERSATION)
    assert down.closed == 1


async def test_a_reviewing_model_reads_the_end_of_a_long_conversation():
    model = ScriptedModel(scored(score=8))
    await model_reviewer(model, "")([Message.user("x" * 100_000), Message(content="Fifteen.")])
    assert len(model.contexts[0][1].content) < 33_000
    assert "assistant: Fifteen." in model.contexts[0][1].content
