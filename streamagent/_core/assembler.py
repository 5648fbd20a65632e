"""`Assembler`: from a provider's chunks to messages, whatever the provider (the rules of the quirk cases)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from operator import eq
from typing import Any, Final

from streamagent.errors import ModelError
from streamagent.message import Message, clean_text

from .blocks import Blocks
from .calls import Calls
from .delta import Delta, read_chunk
from .think import Kind, Piece, Pieces, ThinkSplitter
from .usage import merge_usage

# As many equal pieces in a row mean a model that is stuck (quirk Q51); short ones are white space and rules of dashes.
_REPEATED: Final[Mapping[Kind, int]] = {"text": 128, "reasoning": 256}
_SHORT: Final = 2
# Signed reasoning comes whole and in pieces, each in its JSON: this holds more than models think in one answer.
OPAQUE_LIMIT: Final = 16 * 1024 * 1024
# Characters of text, reasoning and arguments; no model writes a tenth of it in one answer, so it would never end (F09).
ANSWER_LIMIT: Final = 16 * 1024 * 1024

# What providers call their reasons, and what it means here; a reason that is not known means `stop`.
_FINISH: Final[Mapping[str, str]] = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "refusal": "content_filter",
    "malformed_function_call": "malformed_call",
    "unexpected_tool_call": "malformed_call",
    "malformed_response": "provider_error",
    "error": "provider_error",
    "abort": "provider_error",
    "network_error": "provider_error",
    "insufficient_system_resource": "overloaded",
}
# Of several reasons the gravest holds: nothing may run that any of them forbids.
_GRAVITY: Final = ("", "stop", "length", "content_filter", "provider_error", "overloaded", "malformed_call")
_FAILED: Final[Mapping[str, str]] = {
    "provider_error": "the provider reported an error",
    "overloaded": "the provider is overloaded",
    "malformed_call": "the model wrote a call that its provider could not read",
    "truncated": "the answer broke off",
}


class Assembler:
    """Put one answer together. The last message is always one `stop`, on success and on every failure.

    Args:
        tools: Names of the tools that the model was offered.
        model: Who answers, for the `stop`; else what the chunks say.
        attempt: Which try of the model this is, from 1.
        think_tags: Take a leading `<think>` block of the text as reasoning.
        starts_in_think: The model's template has opened the block already.
    """

    __slots__ = (
        "_attempt",
        "_blocks",
        "_calls",
        "_finish",
        "_last",
        "_last_kind",
        "_model",
        "_opaque_size",
        "_out",
        "_repetitions",
        "_size",
        "_stopped",
        "_thought",
        "_usage",
    )

    def __init__(
        self,
        *,
        tools: Collection[str] = (),
        model: str = "",
        attempt: int = 1,
        think_tags: bool = False,
        starts_in_think: bool = False,
    ) -> None:
        splitter = ThinkSplitter(starts_in_think=starts_in_think) if think_tags or starts_in_think else None
        self._attempt = attempt
        self._out: list[Message] = []
        self._blocks = Blocks(self._out, attempt=attempt, splitter=splitter)
        self._calls = Calls(tools, attempt=attempt)
        self._model = model
        self._finish = ""
        self._usage: dict[str, Any] = {}
        self._last, self._last_kind = "", ""
        self._repetitions = 0
        self._thought = False
        self._opaque_size = 0
        self._size = 0
        self._stopped = False

    @property
    def yielded(self) -> bool:
        """Whether text, reasoning or a call was returned, so that asking again would show."""
        return self._blocks.shown or self._calls.shown

    def feed(self, *chunks: Mapping[str, Any] | Delta | Piece | Pieces) -> list[Message]:
        """Take chunks; those of one network read should come together, as their text is one fragment then.

        Args:
            chunks: Parsed `chat.completion.chunk`s of OpenAI's shape, or what `read_event` made of them. After the
                `stop` they mean nothing.

        Returns:
            What can be shown now; ends with the `stop` when a chunk tells of an error.

        Raises:
            ModelError: A chunk is none, or a limit is passed (kind `protocol`; `repetition` for an answer that does not
                end). That chunk has changed nothing; what came of those before it is returned by the next call.
        """
        for chunk in chunks:
            if self._stopped:
                break
            if type(chunk) is tuple:
                kind, said = chunk
                self._say(kind, said) if isinstance(said, str) else self._say_all(kind, said)
                continue
            delta = chunk if isinstance(chunk, Delta) else read_chunk(chunk)
            self._check(delta)
            self._take(delta)
        self._blocks.flush()
        return self._collected()

    def end(self, *, done: bool) -> list[Message]:
        """Take the end of the stream.

        Args:
            done: `[DONE]` was seen, or the provider's own proof that the answer is complete.

        Returns:
            What was held back, what closes open messages, and the `stop`.
        """
        if self._stopped:
            return []
        finish = self._finish or ("stop" if done else "truncated")
        if finish in _FAILED:
            return self.fail(ModelError(_FAILED[finish], kind=finish, retryable=True))
        self._blocks.close(cut=finish if finish == "content_filter" else None)
        reason, error = self._outcome(finish)
        self._stop(reason, error, inferred=not self._finish)
        return self._collected()

    def fail(self, error: ModelError) -> list[Message]:
        """Take the failure of the transport.

        Args:
            error: What the `stop` says.

        Returns:
            What closes open messages, and the `stop`. What was held back is dropped: half a tag is no text.
        """
        if not self._stopped:
            self._break(error)
        return self._collected()

    def _check(self, delta: Delta) -> None:
        """Refuse what passes a limit, before anything changes."""
        size, opaque_size = self._size, self._opaque_size + delta.size
        for _, piece in delta.pieces:
            size += len(piece)
        for call in delta.calls:
            size += len(call.arguments)
        if delta.calls:
            self._calls.check(delta.calls)
        if opaque_size > OPAQUE_LIMIT:
            raise ModelError(f"the provider sent more than {OPAQUE_LIMIT} bytes of opaque data", kind="protocol")
        if size > ANSWER_LIMIT:
            raise _endless()
        self._size, self._opaque_size = size, opaque_size

    def _take(self, delta: Delta) -> None:
        if delta.model and not self._model and isinstance(delta.model, str):
            self._model = clean_text(delta.model)
        if delta.usage:
            self._usage = merge_usage(self._usage, delta.usage)
        if delta.finish:
            finish = _FINISH.get(delta.finish.lower(), "stop")
            self._finish = max(self._finish, finish, key=_GRAVITY.index)
        if delta.error is not None:
            self._break(delta.error)
            return
        for kind, piece in self._pieces(delta):
            self._blocks.add(kind, piece)
            if self._is_stuck(kind, piece):
                self._break_stuck(kind)
                return
        if delta.calls and (fragments := self._calls.add(delta.calls)):
            self._blocks.close()
            self._out += fragments

    def _say(self, kind: Kind, piece: str) -> None:
        """Take a chunk that is a piece of text or reasoning and nothing else, as `_take` does."""
        size = self._size + len(piece)
        if size > ANSWER_LIMIT:
            raise _endless()
        self._size = size
        if kind == "reasoning":
            self._thought = True
        self._blocks.add(kind, piece)
        if self._is_stuck(kind, piece):
            self._break_stuck(kind)

    def _say_all(self, kind: Kind, pieces: list[str]) -> None:
        """Take pieces that came together, as `_say` does one by one."""
        whole = "".join(pieces)
        size = self._size + len(whole)
        if size > ANSWER_LIMIT or any(map(eq, pieces, pieces[1:])) or (pieces[0] == self._last):
            for piece in pieces:
                if not self._stopped:
                    self._say(kind, piece)
            return
        self._size = size
        self._thought |= kind == "reasoning"
        self._blocks.add(kind, whole)
        self._last, self._last_kind, self._repetitions = pieces[-1], kind, 1

    def _pieces(self, delta: Delta) -> Sequence[Piece]:
        """Put opaque data aside and return the pieces to show; blocks repeat what came by field (quirk Q79)."""
        if delta.pieces and delta.pieces[0][0] == "reasoning":
            self._thought = True
        opaque = self._blocks.opaque
        for name, value in delta.opaque:
            opaque.add(name, value)
        thoughts = [opaque.add_block(block) for block in delta.blocks]
        if self._thought or not thoughts:
            return delta.pieces
        return [*(("reasoning", thought) for thought in thoughts), *delta.pieces]

    def _is_stuck(self, kind: Kind, piece: str) -> bool:
        if piece != self._last or kind != self._last_kind:
            self._last, self._last_kind, self._repetitions = piece, kind, 1
            return False
        self._repetitions += 1
        return self._repetitions >= _REPEATED[kind] and len(piece) > _SHORT

    def _outcome(self, finish: str) -> tuple[str, ModelError | None]:
        """Return the reason to stop; the provider's is advice (rule 5)."""
        if finish == "content_filter":
            return finish, ModelError("the provider's content filter ended the answer", kind=finish)
        if finish == "length":
            return finish, None
        if self._calls:
            return "tool_calls", None
        if self._blocks.shown:
            return "stop", None
        return "error", ModelError("the model's answer is empty", kind="empty_response", retryable=True)

    def _break(self, error: ModelError) -> None:
        self._blocks.drop()
        self._stop("error", error)

    def _break_stuck(self, kind: Kind) -> None:
        self._break(ModelError(f"the model repeated the same piece {_REPEATED[kind]} times", kind="repetition"))

    def _stop(self, reason: str, error: ModelError | None, *, inferred: bool = False) -> None:
        self._blocks.close(cut="error" if reason == "error" else None)
        told: dict[str, Any] = {
            "usage": self._usage,
            "model": self._model,
            "error": error and {"kind": error.kind, "message": str(error), "retryable": error.retryable},
            "finish_inferred": inferred,
        }
        query = {"reason": reason, **{key: value for key, value in told.items() if value}}
        self._out += [*self._calls.close(reason), Message(type="stop", query=query, attempt=self._attempt)]
        self._stopped = True

    def _collected(self) -> list[Message]:
        out = self._out[:]
        self._out.clear()
        return out


def _endless() -> ModelError:
    return ModelError(f"the answer does not end: more than {ANSWER_LIMIT} characters came", kind="repetition")
