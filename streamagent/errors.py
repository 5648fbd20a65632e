"""The error classes. Each text names the thing that is wrong and what to do about it."""

from __future__ import annotations


class StreamAgentError(Exception):
    """Base of every error that this package raises on purpose."""


class MessageError(StreamAgentError, ValueError):
    """Data is not a message, or fragments do not belong together."""


class ArchiveError(StreamAgentError, ValueError):
    """A file is no exported session, or not all of one; the text names the line."""


class ConfigError(StreamAgentError, ValueError):
    """A name, option or file that cannot be used as given."""


class CursorError(ConfigError):
    """A cursor that is none, or that is ahead of the session. HTTP would say 400 or 409."""


class UnsupportedBackendError(StreamAgentError, RuntimeError):
    """A part that is asyncio's (SQLite, LiteLLM) was opened under another event loop."""


class MessageTooLarge(StreamAgentError):
    """A message, an image or a file beyond the limit of what has to hold it."""


class ToolError(StreamAgentError):
    """Raised by a tool to give the model this text, without the exception's type in front."""


class InvalidArguments(ToolError):
    """A call's arguments do not fit the tool's parameters."""


class ModelError(StreamAgentError):
    """A model call that failed.

    Args:
        message: What happened, without secrets.
        kind: `rate_limited`, `quota`, `auth`, `not_found`, `bad_request`, `context_overflow`, `overloaded`,
            `provider_error`, `connection`, `timeout`, `truncated`, `malformed_call`, `empty_response`,
            `content_filter`, `repetition`, `protocol` or `invalid_output`.
        retryable: The same request may succeed later.
        retry_after: Seconds that the provider asked to wait, if it did.
    """

    def __init__(self, message: str, *, kind: str, retryable: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after


class SessionError(StreamAgentError):
    """Base of the errors of a session."""


class SessionBusy(SessionError):
    """Another run of this session is active; send a message to steer it, or wait.

    Args:
        message: What happened.
        owner: Id of the process that has it, when that is another one.
    """

    def __init__(self, message: str, *, owner: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner


class HandedOver(SessionError):
    """This process is ending: it begins no run, and leaves what it has not finished to others; follow the session."""


class SessionClosed(SessionError):
    """The session's block was left; open it again."""


class CursorGone(SessionError):
    """What a cursor stands in was deleted, or is not there for this viewer. HTTP would say 410: begin anew."""


class SlowConsumer(SessionError):
    """A viewer took too long for one message; the session is unharmed.

    Args:
        message: What happened.
        cursor: Behind what was taken last, as text: where to go on.
    """

    def __init__(self, message: str, *, cursor: str) -> None:
        super().__init__(message)
        self.cursor = cursor


class InboxFull(SessionError):
    """As many messages wait in the session as may; answer some of them, or send later."""


class ConflictError(SessionError):
    """A client key was used before with another message, a fork's id is taken, or a session still has forks.

    Of an approval: it was decided otherwise before.
    """


class ApprovalNotFound(SessionError):
    """The session has no such request for an approval; another session's looks the same."""


class ApprovalGone(SessionError):
    """A decision came too late: nothing waits for it any more, and it has no effect."""


class StoreError(StreamAgentError):
    """Base of the errors of a store. Nothing was written when one is raised, unless it is a `StoreUncertain`."""


class StoreBusy(StoreError):
    """Another process holds a lock, or nothing was free, for longer than the timeout."""


class StoreUncertain(StoreError):
    """The connection was lost while something was committed, and it could not be found out whether it was.

    Look at the session's rows before you write it again.
    """


class StoreFull(StoreError):
    """The disk, or the database's size limit, is full."""


class StoreReadOnly(StoreError):
    """The database cannot be written."""


class StoreCorrupt(StoreError):
    """The file is damaged, or is no database of ours."""


class StoreSchemaError(StoreError):
    """The database was written by a newer version of this package."""


class LeaseLost(StoreError):
    """Another runner has taken the session over; this one must stop at once."""
