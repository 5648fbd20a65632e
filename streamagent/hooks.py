"""`Hooks`: the agent loop's hooks by pi's names. Each is short for a stage or an option; the docs show both."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from .calls import AfterToolCall, BeforeToolCall
from .errors import ConfigError
from .message import Message
from .protocols import Model, ModelSettings

T = TypeVar("T")
Maybe: TypeAlias = Awaitable[T] | T
Given: TypeAlias = str | Message | Sequence[str | Message] | None
Drain = Literal["one_at_a_time", "all"]
Lane = Literal["prompt", "steer", "follow_up", "decision", "cancel"]
_LANES: dict[str, Lane] = {"approval": "decision", "cancel": "cancel"}  # of types that have one of their own


def lane_of(message: Message) -> Lane:
    """Tell which lane of the inbox a message waits in."""
    said = (message.query or {}).get("lane")
    asked: Lane = said if said in ("steer", "follow_up") else "prompt"
    return _LANES.get(message.type, asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """A model turn that is over, with the results of its calls.

    Args:
        session: Id of the session.
        number: Which turn of the run it was, from 1.
        stop: The turn's `stop`: reason, usage, model.
    """

    session: str
    number: int
    stop: Message


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTurn:
    """What the next turns of the run use instead; `None` leaves it as it was.

    Args:
        model: What answers; of a name, what `get_model` gives.
        settings: Options of the model calls, such as `reasoning_effort`.
        system: The system prompt.

    Raises:
        ConfigError: A value of a wrong type.
    """

    model: Model | None = None
    settings: ModelSettings | None = None
    system: str | None = None

    def __post_init__(self) -> None:
        if self.model is not None and not callable(getattr(self.model, "stream", None)):
            raise ConfigError(f"NextTurn(model=…) takes a model, as get_model(name) makes it, not {self.model!r:.80}")
        for name, kind in (("settings", ModelSettings | None), ("system", str | None)):
            if not isinstance(value := getattr(self, name), kind):
                raise ConfigError(f"NextTurn({name}=…) takes {kind}, not {value!r:.80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the loop asks a program; every hook may be a plain or an async function.

    Args:
        transform_context: Messages in, messages out, before each model call. It gets the whole context at once: a
            context stage does the same with bounded memory.
        convert_to_llm: As `transform_context`, right after it: drops or rewrites what is no message for a model.
        get_api_key: Gets the provider's name before each model call and returns a key, or `None`.
        before_tool_call: As in `tool_dispatch`; an agent that is given a pipeline refuses it.
        after_tool_call: As in `tool_dispatch`; likewise.
        prepare_next_turn: Asked after each turn but the last; may change model, settings and system prompt.
        should_stop_after_turn: True ends the run after this turn, with a `stop` of reason `stopped`; the inbox is left
            alone.
        get_steering_messages: Gives messages or texts to put in at the next border, beside those that `session.steer`
            sent; `None` for none.
        get_follow_up_messages: Gives such when the run would be over, beside those of `session.follow_up`.
    """

    transform_context: Callable[[list[Message]], Maybe[list[Message]]] | None = None
    convert_to_llm: Callable[[list[Message]], Maybe[list[Message]]] | None = None
    get_api_key: Callable[[str], Maybe[str | None]] | None = None
    before_tool_call: BeforeToolCall | None = None
    after_tool_call: AfterToolCall | None = None
    prepare_next_turn: Callable[[TurnEnd], Maybe[NextTurn | None]] | None = None
    should_stop_after_turn: Callable[[TurnEnd], Maybe[bool]] | None = None
    get_steering_messages: Callable[[], Maybe[Given]] | None = None
    get_follow_up_messages: Callable[[], Maybe[Given]] | None = None


NO_HOOKS = Hooks()


async def settled(value: Any) -> Any:
    """Take what a plain or an async function of a user returned."""
    return await value if inspect.isawaitable(value) else value


async def said_by(value: Any, kind: type[T], hook: str) -> T | None:
    """Take what a hook returned, unless it must not return that."""
    said = await settled(value)
    if isinstance(said, kind) or said is None:
        return said
    raise TypeError(f"{hook} returns {kind.__name__} or None, not {said!r:.80}")
