"""`reflect`: answers and calls are reviewed; what is not good enough goes back to the model with the reason."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from streamagent import exactjson
from streamagent.attempts import latest
from streamagent.calls import ToolSpec
from streamagent.errors import ConfigError, ModelError
from streamagent.message import Message, each, fold
from streamagent.protocols import DEFAULT_SETTINGS, Model, ModelSettings, RunContext, Stage, Stream
from streamagent.reply import Result

from ._counting import earlier

BEST = 10.0
FEEDBACK = "feedback"  # what a stop says in `query.again` whose turn is taken again with one
ROUNDS_LIMIT = 10  # as many as LiteAgent takes; each costs an answer and its reviews
_TRANSCRIPT = 32_000  # characters of a conversation, its end, that a reviewing model reads: about 8,000 tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What a reviewer says.

    Args:
        score: From 0 to 10.
        feedback: What is to be better, for the model.
        usage: Tokens that the review took.
    """

    score: float
    feedback: str = ""
    usage: Mapping[str, Any] | None = None


Reviewer = Callable[[Sequence[Message]], Awaitable[Review | float]]


def reflect(reviewers: Iterable[Reviewer], /, *, pass_mark: float = 8, rounds: int = 2, calls: bool = True) -> Stage:
    """Have each answer and each list of calls reviewed; below the pass mark the model takes the turn again.

    It stands first, next to the model. An answer streams on as it comes; calls are held until they have passed, and
    calls that have not are dropped: they are neither stored nor run. The turn's `stop` says in `query.reflection` how
    it went. The feedback follows it, as a message of role `user` whose `query.feedback` says that no user wrote it, and
    the run goes on with that, also after a crash; the stop says `query.again`. Reviewers are asked one after the other;
    the first score below the mark decides. One that fails with a `ModelError` lets the answer pass, and `reflection`
    has the error.

    Args:
        reviewers: Functions from the conversation, whose last messages are what is reviewed, to a score.
        pass_mark: Lowest score that passes, from 0 to 10.
        rounds: How often one prompt's turns are taken again; after that the last one passes, 0 to 10.
        calls: Review lists of calls, too.

    Raises:
        ConfigError: No reviewer, or a number out of its range.
        ValueError: From the stage, when a reviewer gives a score that is not from 0 to 10.
    """
    panel = _Panel(tuple(reviewers), pass_mark, rounds, calls)

    async def stage(stream: Stream, run: RunContext) -> Stream:
        turn = _Turn()
        before: Mapping[str, Any] | None = None
        async for row in earlier(run):
            before = _rejected(row)
            turn.round += before is not None
        run.again = run.again if before is None else _feedback(before)
        async for message in stream:
            if message.type != "stop":
                if not turn.takes(message, calls=calls):
                    yield message
                continue
            told = await panel.review(turn, message, run)
            rejected = told.get("passed") is False and turn.round < rounds
            for held in turn.end(rejected=rejected):
                yield held
            said: dict[str, Any] = {"reflection": told} if told else {}
            if rejected:
                told["feedback"] = turn.feedback(told)
                said["again"] = FEEDBACK
            yield replace(message, query={**(message.query or {}), **said}) if said else message
            if rejected:
                run.again = _feedback(told)
            turn = _Turn(round=turn.round + rejected)
        for held in turn.held:
            yield held

    return stage


@dataclass(slots=True)
class _Turn:
    """What the model said in a turn.

    Args:
        round: How often turns of this run were taken again.
        said: Its fragments, those of the last attempt.
        held: Calls that wait for their review, and what came after them.
    """

    round: int = 0
    attempt: int = 0
    said: list[Message] = field(default_factory=list)
    held: list[Message] = field(default_factory=list)

    def takes(self, message: Message, *, calls: bool) -> bool:
        """Note a message; return whether it is held, as no row is that passes once more."""
        if message.sequence is not None:
            return False
        if message.role == "assistant" and message.type in {"text", "tool_call"}:
            if message.attempt > self.attempt:
                self.attempt = message.attempt
                self.said.clear()
            self.said.append(message)
        if calls and (self.held or message.type == "tool_call"):
            self.held.append(message)
            return True
        return False

    def end(self, *, rejected: bool) -> list[Message]:
        """Return what was held and may pass."""
        return [message for message in self.held if not (rejected and message.type == "tool_call")]

    def feedback(self, told: Mapping[str, Any]) -> str:
        """Say what was wrong with it."""
        asked = [_line(message) for message in fold(self.said) if message.type == "tool_call"]
        what = f"tool calls {', '.join(asked)}, which were not run," if asked else "answer"
        score = f"A reviewer gave your {what} {told['score']:g} of {BEST:g} points; {told['pass_mark']:g} are needed."
        return " ".join(filter(None, (score, told["reviews"][-1].get("feedback"), "Try again.")))


def _feedback(told: Mapping[str, Any]) -> Message:
    query = {"feedback": {"of": "reflect", "round": told["round"] + 1}}
    return Message(role="user", content=told["feedback"], query=query)


def _rejected(row: Message) -> Mapping[str, Any] | None:
    """Return what a stop says of its review, when its turn was to be taken again."""
    query = row.query or {}
    told = query.get("reflection")
    return told if row.type == "stop" and query.get("again") == FEEDBACK and isinstance(told, Mapping) else None


@dataclass(frozen=True, slots=True)
class _Panel:
    """The reviewers and their rules."""

    judges: Sequence[Reviewer]
    pass_mark: float
    rounds: int
    calls: bool

    def __post_init__(self) -> None:
        if not self.judges or not all(map(callable, self.judges)):
            raise ConfigError("reflect takes a list of one or more reviewers: async functions from messages to a score")
        if not 0 <= self.pass_mark <= BEST or not 0 <= self.rounds <= ROUNDS_LIMIT:
            told = f"not {self.pass_mark} and {self.rounds}"
            raise ConfigError(f"pass_mark is 0 to {BEST:g} and rounds 0 to {ROUNDS_LIMIT}, {told}")

    async def review(self, turn: _Turn, stop: Message, run: RunContext) -> dict[str, Any]:
        """Return what the reviewers say; empty when the turn is nothing to be reviewed."""
        reason = (stop.query or {}).get("reason")
        if not turn.said or not (reason == "stop" or (reason == "tool_calls" and self.calls)):
            return {}
        own = {message.id for message in turn.said}
        rows = [row async for row in latest(run.store.read(run.session)) if row.id not in own]
        stored = [row for row in fold(rows) if (row.query or {}).get("cut") != "superseded"]
        told = {"passed": True, "pass_mark": self.pass_mark, "round": turn.round, "reviews": []}
        try:
            await self._ask([*stored, *fold(turn.said)], told)
        except ModelError as error:
            told |= {"passed": None, "error": {"kind": error.kind, "message": str(error)}}
        return told

    async def _ask(self, conversation: Sequence[Message], told: dict[str, Any]) -> None:
        for judge in self.judges:
            review = _checked(await judge(conversation))
            said = {"score": review.score, "feedback": review.feedback, "usage": review.usage}
            told["reviews"].append({key: value for key, value in said.items() if value not in (None, "")})
            told["score"] = min(told.get("score", BEST), review.score)
            if review.score < self.pass_mark:
                told["passed"] = False
                return


def _checked(review: Review | float) -> Review:
    review = review if isinstance(review, Review) else Review(score=review)
    if not 0 <= review.score <= BEST:
        raise ValueError(f"a reviewer's score is from 0 to {BEST:g}, not {review.score!r}")
    return review


_TOOL = ToolSpec(
    name="reflect",
    description="Give the score of what the assistant said last.",
    parameters={
        "type": "object",
        "properties": {
            "score": {"type": "number", "minimum": 0, "maximum": BEST, "description": "0 is useless, 10 is perfect."},
            "description": {"type": "string", "description": "What should be better, said to the assistant."},
        },
        "required": ["score"],
    },
)


def model_reviewer(model: Model, prompt: str, *, settings: ModelSettings = DEFAULT_SETTINGS) -> Reviewer:
    """Make a reviewer of a model, which is asked to call `reflect(score, description)`; no call means a score of 0.

    Args:
        model: What reviews.
        prompt: What it shall look for.
        settings: Options of its calls.

    Raises:
        ModelError: From the reviewer, when the model's answer failed.
    """
    settings = replace(settings, tool_choice=_TOOL.name)

    async def review(conversation: Sequence[Message]) -> Review:
        transcript = "\n\n".join(filter(None, map(_line, conversation)))[-_TRANSCRIPT:]
        context = each([Message.system(prompt), Message.user(f"{transcript}\n\nCall reflect with your score.")])
        source = model.stream(context, tools=[_TOOL], settings=settings)
        try:
            answer = Result(fold([message async for message in source])).raise_for_error()
        finally:
            await source.aclose()
            await context.aclose()
        args = next(((message.query or {}).get("args") for message in answer if message.type == "tool_call"), None)
        score = args.get("score") if isinstance(args, Mapping) else None
        if not isinstance(score, int | float) or math.isnan(score):
            return Review(score=0, feedback="The reviewer gave no score.", usage=answer.usage)
        feedback = str((args or {}).get("description") or "")
        return Review(score=min(max(score, 0), BEST), feedback=feedback, usage=answer.usage)

    return review


def _line(message: Message) -> str:
    """Show a message to a reviewer; what is neither text, call nor result is left out."""
    query = message.query or {}
    if message.type == "tool_call":
        return f"{query.get('tool')}({exactjson.dumps(query.get('args')).decode()})"
    if message.type in {"text", "tool_result"}:
        return f"{message.role}: {message.content}"
    return ""
