"""The agent loop: steering, follow-ups, hooks."""

from itertools import pairwise

import anyio
import pytest

from streamagent import Agent, Hooks, MemoryStore, Message, ModelSettings, NextTurn, Pipeline, persist, tool, transform
from streamagent.calls import Decision, Output
from streamagent.errors import ConfigError, MessageError
from tests.scripted import ScriptedModel, answer, call, calls, check_rows, stock

pytestmark = pytest.mark.anyio
OWN_STORES = True

ASK_STOCK = calls(call("stock", product="mug"))


def agent_of(*turns, **options):
    return Agent(ScriptedModel(*turns), tools=[stock], **options)


def users(messages):
    return [m.content for m in messages if m.role == "user"]


async def test_a_steering_message_is_seen_after_the_tool_results_of_the_turn():
    agent = agent_of(ASK_STOCK, answer("x"))
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.type == "tool_call":
                await session.steer("Quick!")
    assert [m.content for m in agent.model.contexts[1]] == ["Go.", "{}", "", "15", "Quick!"]
    stored = await check_rows(agent.store)
    assert [m.type for m in stored] == ["text", "tool_call", "stop", "tool_result", "text", "text", "stop"]


async def test_a_steering_message_after_the_last_turn_gets_a_turn_of_its_own():
    agent = agent_of(answer("one"), answer("two"))
    async with agent.session("s") as session:
        seen = []
        async for message in session.ask("Go."):
            seen.append(message)
            if message.content == "one":
                await session.steer("And?")
    assert users(seen) == ["Go.", "And?"]
    assert [m.query["reason"] for m in seen if m.type == "stop"] == ["stop", "stop"]


async def test_a_steering_message_that_was_queued_before_comes_before_the_first_turn():
    agent = agent_of(answer("x"))
    async with agent.session("s") as session:
        await session.steer("Be brief.")
        await session.ask("Go.")
    assert users(agent.model.contexts[0]) == ["Go.", "Be brief."]


@pytest.mark.parametrize(("drain", "borders"), [("one_at_a_time", [1, 1]), ("all", [2, 0])])
async def test_the_queues_drain_one_at_a_time_or_all_at_once(drain, borders):
    agent = agent_of(ASK_STOCK, ASK_STOCK, answer("x"), steering=drain)
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.type == "tool_call" and len(agent.model.contexts) == 1:
                await session.steer("1")
                await session.steer("2")
    contexts = [len(users(context)) for context in agent.model.contexts]
    assert [later - earlier for earlier, later in pairwise(contexts)] == borders


@pytest.mark.parametrize(("drain", "turns"), [("one_at_a_time", 3), ("all", 2)])
async def test_follow_ups_are_answered_when_nothing_else_is_left(drain, turns):
    agent = agent_of(ASK_STOCK, answer("x"), follow_ups=drain)
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.type == "tool_call":
                await session.follow_up("Then?")
                await session.follow_up("And then?")
    assert len(agent.model.contexts) == 1 + turns
    assert users(agent.model.contexts[1]) == ["Go."]
    assert users(agent.model.contexts[-1]) == ["Go.", "Then?", "And then?"]
    await check_rows(agent.store)


async def test_steering_goes_before_follow_ups():
    agent = agent_of(answer("x"))
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.type == "stop" and len(agent.model.contexts) == 1:
                await session.follow_up("later")
                await session.steer("now")
    assert users(agent.model.contexts[-1]) == ["Go.", "now", "later"]


async def test_each_follow_up_has_all_turns_again():
    agent = agent_of(ASK_STOCK, answer("x"), ASK_STOCK, answer("x"), max_turns=2)
    async with agent.session("s") as session:
        await session.follow_up("Then?")
        result = await session.ask("Go.")
    assert [m.query["reason"] for m in result if m.type == "stop"] == ["tool_calls", "stop"] * 2


async def test_a_failed_turn_leaves_the_queues_alone():
    failed = [Message.stop("error", error={"kind": "overloaded", "message": "!", "retryable": True})]
    agent = agent_of(failed, answer("x"))
    async with agent.session("s") as session:
        reply = session.ask("Go.")
        await anext(reply)
        await session.steer("now")
        await session.follow_up("later")
        await reply.result()
        waiting = await agent.store.inbox("s")
        assert [m.content for m in waiting] == ["now", "later"]
        assert users(await session.ask("Again.")) == ["Again.", "now", "later"]


async def test_nothing_of_the_queues_is_lost_when_a_run_is_cut():
    agent = agent_of([Message(content="half", more=True)], answer("x"))
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.content == "half":
                await session.steer("now", client_key="k")
                await session.steer("now", client_key="k")
                break
    async with agent.session("s") as session:
        assert users(await session.ask("Again.")) == ["Again.", "now"]
    await check_rows(agent.store)


async def test_without_a_run_they_are_prompts_like_others():
    agent = agent_of(answer("x"))
    async with agent.session("s") as session:
        await session.send("One.")
        while not (await session.receive()).is_final:
            pass
        await session.steer("Two.")
        while not (await session.receive()).is_final:
            pass
        await session.follow_up("Three.")
        while not (await session.receive()).is_final:
            pass
    assert users(await check_rows(agent.store)) == ["One.", "Two.", "Three."]


async def test_another_handle_steers_the_run():
    from streamagent import Runtime

    agent = agent_of(ASK_STOCK, answer("x"))
    async with (
        Runtime(store=MemoryStore()) as runtime,
        agent.session("s", runtime=runtime) as one,
        agent.session("s", runtime=runtime) as two,
    ):
        async for message in one.ask("Go."):
            if message.type == "tool_call":
                await two.steer("Quick!")
        assert users(agent.model.contexts[1]) == ["Go.", "Quick!"]


async def test_hooks_give_steering_and_follow_up_messages():
    steering, later = [Message.user("now")], [Message.user("later")]

    async def steer():
        return [steering.pop()] if steering else []

    hooks = Hooks(get_steering_messages=steer, get_follow_up_messages=lambda: [later.pop()] if later else [])
    agent = agent_of(ASK_STOCK, answer("x"), hooks=hooks)
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert users(agent.model.contexts[1]) == ["Go.", "now"]
    assert users(await check_rows(agent.store)) == ["Go.", "now", "later"]


@pytest.mark.parametrize("form", [lambda text: text, lambda text: [text], lambda text: (Message.user(text),)])
async def test_hooks_may_give_texts_one_or_none(form):
    given = {"steer": ["now"], "later": ["later"]}

    def pop(kind):
        return form(given[kind].pop()) if given[kind] else None

    hooks = Hooks(get_steering_messages=lambda: pop("steer"), get_follow_up_messages=lambda: pop("later"))
    agent = agent_of(ASK_STOCK, answer("x"), hooks=hooks)
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert users(await check_rows(agent.store)) == ["Go.", "now", "later"]


@pytest.mark.parametrize("odd", [3, [3], [Message.stop("stop")]])
async def test_what_hooks_give_that_is_no_message_of_a_user_is_refused(odd):
    agent = agent_of(ASK_STOCK, hooks=Hooks(get_steering_messages=lambda: odd))
    async with agent.session("s") as session:
        with pytest.raises(MessageError):
            await session.ask("Go.")


async def test_a_program_stops_the_run_after_a_turn():
    seen = []

    def enough(end):
        seen.append((end.session, end.number, end.stop.query["reason"]))
        return True

    agent = agent_of(ASK_STOCK, answer("never"), hooks=Hooks(should_stop_after_turn=enough))
    async with agent.session("s") as session:
        await session.follow_up("left alone")
        result = await session.ask("Go.")
    assert seen == [("s", 1, "tool_calls")]
    assert result.stop.query == {"reason": "stopped", "turn": 1}
    assert [m.content for m in await agent.store.inbox("s")] == ["left alone"]
    await check_rows(agent.store)


async def test_stopping_after_a_final_turn_adds_no_second_stop():
    agent = agent_of(answer("x"), hooks=Hooks(should_stop_after_turn=lambda _: True))
    async with agent.session("s") as session:
        assert [m.type for m in await session.ask("Go.")] == ["text", "text", "stop"]


async def test_the_next_turn_may_have_another_model_prompt_and_settings():
    second = ScriptedModel(answer("from the second"))
    settings = ModelSettings(reasoning_effort="high")
    next_turn = NextTurn(model=second, settings=settings, system="Think.")
    agent = agent_of(ASK_STOCK, hooks=Hooks(prepare_next_turn=lambda _: next_turn), system="Act.")
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).text == "from the second"
    assert agent.model.contexts[0][0].content == "Act."
    assert second.contexts[0][0].content == "Think."
    assert agent.plan.model is agent.model  # the agent stays as it was


@pytest.mark.parametrize(
    "odd", [lambda: NextTurn(model="mock"), lambda: NextTurn(settings={}), lambda: NextTurn(system=3), dict]
)
async def test_a_next_turn_that_is_none_is_refused(odd):
    agent = agent_of(ASK_STOCK, hooks=Hooks(prepare_next_turn=lambda _: odd()))
    async with agent.session("s") as session:
        with pytest.raises(ConfigError):
            await session.ask("Go.")


async def test_a_hook_that_prepares_nothing_changes_nothing():
    agent = agent_of(ASK_STOCK, answer("x"), hooks=Hooks(prepare_next_turn=lambda _: None))
    async with agent.session("s") as session:
        assert (await session.ask("Go.")).text == "x"


async def test_the_context_is_transformed_then_converted():
    async def only_last(messages):
        return messages[-1:]

    def loud(messages):
        return [Message(role=m.role, content=m.content.upper()) for m in messages]

    agent = agent_of(answer("x"), hooks=Hooks(transform_context=only_last, convert_to_llm=loud), system="Be brief.")
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert [m.content for m in agent.model.contexts[0]] == ["GO."]
    assert "transform" in repr(agent.pipeline)


async def test_transform_is_a_stage_of_its_own():
    pipeline = Pipeline(context=[transform(lambda messages: messages[:0])], reply=[persist()])
    agent = Agent(ScriptedModel(answer("x")), pipeline=pipeline)
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert agent.model.contexts == [[]]


@pytest.mark.parametrize("key", ["fresh", None])
async def test_a_key_is_asked_for_before_each_model_call(key):
    asked = []

    class Keyed(ScriptedModel):
        name = "acme/large"

        def stream(self, context, *, settings, **options):
            asked.append(settings.extra.get("api_key"))
            return super().stream(context, settings=settings, **options)

    hooks = Hooks(get_api_key=lambda provider: key and f"{key}-{provider}")
    agent = Agent(Keyed(ASK_STOCK, answer("x")), tools=[stock], hooks=hooks)
    async with agent.session("s") as session:
        await session.ask("Go.")
    assert asked == [key and "fresh-acme"] * 2


async def test_the_hooks_of_tool_calls_reach_the_agents_own_dispatcher():
    hooks = Hooks(
        before_tool_call=lambda asked: Decision(args={"product": asked.args["product"] + "s"}),
        after_tool_call=lambda asked, output: Output(f"{asked.args['product']}: {output.content}"),
    )
    agent = agent_of(ASK_STOCK, answer("x"), hooks=hooks)
    async with agent.session("s") as session:
        [result] = [m for m in await session.ask("Go.") if m.type == "tool_result"]
    assert result.content == "mugs: 15"


@pytest.mark.parametrize("wrong", [{"steering": "some"}, {"follow_ups": None}, {"hooks": {}}])
def test_loop_options_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match="takes"):
        Agent(**wrong)


async def test_a_hook_that_fails_ends_the_run_loudly():
    def broken(_):
        raise ZeroDivisionError

    agent = agent_of(answer("x"), hooks=Hooks(should_stop_after_turn=broken))
    async with agent.session("s") as session:
        with pytest.raises(ZeroDivisionError):
            await session.ask("Go.")
    await check_rows(agent.store)


async def test_steering_works_while_a_tool_runs():
    steered = anyio.Event()

    @tool(name="stock")
    async def wait(product: str) -> str:
        """Wait until somebody steered."""
        await steered.wait()
        return "15"

    agent = Agent(ScriptedModel(ASK_STOCK, answer("x")), tools=[wait])
    async with agent.session("s") as session, anyio.create_task_group() as tasks:
        reply = session.ask("Go.")
        tasks.start_soon(reply.result)
        await anyio.wait_all_tasks_blocked()
        await session.steer("Quick!")
        steered.set()
    assert users(agent.model.contexts[1]) == ["Go.", "Quick!"]


async def test_steering_does_not_lift_the_turn_limit():
    agent = agent_of(ASK_STOCK, max_turns=3)
    async with agent.session("s") as session:
        async for message in session.ask("Go."):
            if message.type == "tool_call":
                await session.steer("More!")
    assert len(agent.model.contexts) == 3
    assert message.query["reason"] == "turn_limit"
    await check_rows(agent.store)
