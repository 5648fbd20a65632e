"""How a message is made of a row, of which a long context has many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from streamagent.message import Message, Role


def make_message(  # noqa: PLR0913, PLR0917 - a row's columns
    id: str,  # noqa: A002 - the field's name
    session: str,
    sequence: int | None,
    prev: str | None,
    role: Role,
    type: str,  # noqa: A002 - the field's name
    content: str,
    query: Mapping[str, Any] | None,
    more: bool,
    attempt: int,
    created_at: datetime,
) -> Message:
    """Make a message of all its fields, in a third of the constructor's time: a long context has many of them."""
    message = object.__new__(Message)
    _put_id(message, id)
    _put_session(message, session)
    _put_sequence(message, sequence)
    _put_prev(message, prev)
    _put_role(message, role)
    _put_type(message, type)
    _put_content(message, content)
    _put_query(message, query)
    _put_more(message, more)
    _put_attempt(message, attempt)
    _put_created_at(message, created_at)
    return message


# Straight into the slots: a frozen dataclass looks each of its fields up by name instead.
(
    _put_id,
    _put_session,
    _put_sequence,
    _put_prev,
    _put_role,
    _put_type,
    _put_content,
    _put_query,
    _put_more,
    _put_attempt,
    _put_created_at,
) = (getattr(Message, field.name).__set__ for field in fields(Message))
