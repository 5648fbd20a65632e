"""aiostream's operators as stages, and our streams as aiostream's.

aiostream is licensed under the GPL-3.0; this is the only module that imports it, when it is first used.

Any `aiostream.pipe` operator can stand in a pipeline as it is. This module has the same operators with names that a
pipeline prints well, and the way back::

    from streamagent import operators

    pipeline += operators.pipe("filter", lambda message: message.type != "progress")

    async with operators.stream(session.ask("…")).stream() as streamer:
        ...
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable
from typing import TYPE_CHECKING, Any, cast

from .errors import ConfigError
from .protocols import Source, Stage, Stream

if TYPE_CHECKING:
    from aiostream.core import Stream as Operated


def pipe(operator: str, /, *args: Any, **options: Any) -> Stage:
    """Make a stage of one of aiostream's pipe operators.

    Args:
        operator: Its name in `aiostream.pipe`, such as `map`, `filter`, `timeout`, `spaceout`, `takewhile`.
        args: What it takes.
        options: What it takes by keyword.

    Raises:
        ConfigError: aiostream has no such operator.
    """
    from aiostream import pipe as operators

    found = getattr(operators, operator, None)
    if operator.startswith("_") or not callable(found):
        raise ConfigError(f"aiostream.pipe has no operator {operator!r}")
    apply = cast("Callable[[Stream], Source]", found(*args, **options))

    def stage(stream: Stream) -> Source:
        return apply(stream)

    return named(stage, f"{operator}({', '.join(_arguments(args, options))})")


def named(stage: Stage, name: str) -> Stage:
    """Give a stage the name that a pipeline prints."""
    stage.__qualname__ = name
    return stage


def _arguments(args: tuple[Any, ...], options: dict[str, Any]) -> list[str]:
    shown = [getattr(value, "__name__", None) or repr(value) for value in args]
    return [*shown, *(f"{name}={value!r}" for name, value in options.items())]


def stream(source: AsyncIterable[Any]) -> Operated[Any]:
    """Make an aiostream stream of a session, a reply or an open pipeline, to merge, time out or zip it.

    Args:
        source: Any async iterable of messages.
    """
    from aiostream import stream as operators

    return operators.iterate(source)
