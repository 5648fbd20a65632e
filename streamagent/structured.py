"""`Output`: the type of an answer; `StructuredReply`: an answer that is an object, filled while it streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, TypeVar

from ._core.response_format import in_words
from .errors import ConfigError, ModelError
from .message import Message
from .protocols import DEFAULT_SETTINGS, ModelSettings
from .reply import Reply, Result, TurnText

T = TypeVar("T")

REPAIRS_LIMIT = 3  # a model that fails three times with the reason before its eyes does not learn it in the fourth
_ERRORS_SHOWN = 8  # of a validation; the first ones say enough
_GROWTH = 64  # an answer is read again when it grew by this part of its length: all readings cost no more than 64


class Output(Generic[T]):
    """The type of object that an answer shall be.

    Args:
        type_: A pydantic model, dataclass or `TypedDict`.
        repairs: How often an answer that does not fit is given back to the model with what is wrong; 0 to 3.

    Raises:
        ConfigError: Pydantic has no JSON Schema for the type, or it is not that of an object.
    """

    def __init__(self, type_: type[T], *, repairs: int = 1) -> None:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError

        if not isinstance(repairs, int) or not 0 <= repairs <= REPAIRS_LIMIT:
            raise ConfigError(f"repairs is 0 to {REPAIRS_LIMIT}, not {repairs!r}")
        try:
            self._adapter: TypeAdapter[T] = TypeAdapter(type_)
            self.schema = _rooted(self._adapter.json_schema())
        except PydanticUserError as error:
            raise ConfigError(f"output={type_!r:.80} has no JSON Schema: {error.message}") from error
        if self.schema.get("type") != "object":
            raise ConfigError(f"output={type_!r:.80} is no object; make it a field of a pydantic model")
        self.repairs = repairs

    def settings(self, settings: ModelSettings = DEFAULT_SETTINGS) -> ModelSettings:
        """Return settings with which a provider is held to the schema, if it can be."""
        return replace(settings, response_schema=self.schema)

    def instruction(self, system: str | None = None) -> str:
        """Return a system prompt that asks for the object in words, behind what `system` says."""
        return in_words(self.schema, system)

    def partial(self, text: str) -> dict[str, Any] | None:
        """Read what is there of an unfinished answer; a text that is cut is there as far as it goes."""
        from pydantic_core import from_json

        try:
            value = from_json(_bare(text), allow_partial="trailing-strings")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def parse(self, text: str) -> T:
        """Read a whole answer.

        Raises:
            ModelError: It does not fit (kind `invalid_output`); the text says where and why.
        """
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(_bare(text))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            wrong = [f"{'.'.join(map(str, item['loc'])) or 'the answer'}: {item['msg']}" for item in found]
            raise ModelError("; ".join(wrong[:_ERRORS_SHOWN]), kind="invalid_output") from error


def as_output(output: type[T] | Output[T]) -> Output[T]:
    """Take an `Output` as it is, and make one of a type."""
    return output if isinstance(output, Output) else Output(output)


class StructuredReply(Reply, Generic[T]):
    """An answer that is an object: `partials()` while it comes, `object()` at the end; and all that a `Reply` gives.

    Args:
        reply: The answer, of a session or of a model alone.
        output: What it shall be.
        again: Gives the model a message that says what is wrong, and returns its next answer, which is then read as
            the rest of this one. Without it nothing is repaired.
    """

    def __init__(
        self, reply: Reply, output: type[T] | Output[T], *, again: Callable[[Message], Reply] | None = None
    ) -> None:
        self._reply = reply
        self._output = as_output(output)
        self._again = again
        self._round = 0
        self._text = TurnText()
        self._stop: Message | None = None

    async def __anext__(self) -> Message:
        try:
            message = await anext(self._reply)
        except StopAsyncIteration:
            repair = self._repair()
            if repair is None:
                raise
            self._reply = repair
            message = await anext(repair)
        self._text.add(message)
        if message.type == "stop" and not message.path:
            self._stop = message
        return message

    async def aclose(self) -> None:
        """Stop the answer and release what it holds; idempotent."""
        self._again = None
        await self._reply.aclose()

    async def partials(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the object as plain data whenever there is more of it; after a repair it begins anew."""
        shown: dict[str, Any] | None = None
        read = 0
        async for message in self:
            grown = self._text.size - read
            if not grown or (0 < grown < read // _GROWTH and message.type != "stop"):
                continue
            read += grown
            partial = self._output.partial(str(self._text))
            if partial is not None and partial != shown:
                shown = partial
                yield partial

    async def object(self) -> T:
        """Wait for the end and return the validated object.

        Raises:
            ModelError: The answer failed, or does not fit (kind `invalid_output`); the text says what is wrong.
        """
        async for _ in self:
            continue
        return self._judge()

    def _judge(self) -> T:
        if self._stop is None:
            raise ModelError("the answer was left before its end", kind="truncated")
        reason = Result([self._stop]).raise_for_error().reason
        if reason != "stop":
            raise ModelError(f"the answer ended by {reason!r}, before its object was whole", kind="invalid_output")
        return self._output.parse(str(self._text))

    def _repair(self) -> Reply | None:
        if self._again is None or self._round >= self._output.repairs:
            return None
        try:
            self._judge()
        except ModelError as error:
            if error.kind != "invalid_output" or Result([self._stop] if self._stop else []).reason != "stop":
                return None
            self._round += 1
            return self._again(_feedback(str(error), self._round))
        return None


def _feedback(wrong: str, number: int) -> Message:
    """Tell the model what is wrong; `query.feedback` says that no user wrote it."""
    text = f"This is not the JSON object that was asked for. {wrong}. Answer again, with the whole object only."
    return Message(role="user", content=text, query={"feedback": {"of": "output", "round": number}})


def _rooted(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put the schema itself where a recursive type has a reference to it; providers want an object at the root."""
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return {**schema["$defs"][name], "$defs": schema["$defs"]} if name else schema


def _bare(text: str) -> str:
    """Take a fence of Markdown off."""
    text = text.strip()
    if not text.startswith("```"):
        return text
    _, _, inner = text.partition("\n")
    return inner.removesuffix("```")
