"""What LiteLLM knows of a provider: where it listens, how a request is written, what an event of its answer says.

All of it is LiteLLM's inside, which may change with each version. So everything is looked at before it is used, and
where something is not as expected the wire is `Unfit`.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from streamagent import exactjson

from .faults import find_secrets

Asked = dict[str, Any]  # a request on its way through LiteLLM, whose methods edit it: arguments of theirs by name
Written = tuple[str, Mapping[str, Any], Mapping[str, Any]]  # address, headers, body
Parse = Callable[[dict[str, Any]], Any]

# LiteLLM's methods in the order in which its own transport calls them, with what it calls them with.
_METHODS: Mapping[str, tuple[str, ...]] = {
    "should_fake_stream": ("model", "stream", "custom_llm_provider"),
    "validate_environment": (
        *("headers", "model", "messages", "optional_params"),
        *("litellm_params", "api_key", "api_base"),
    ),
    "get_complete_url": ("api_base", "api_key", "model", "optional_params", "litellm_params", "stream"),
    "transform_request": ("model", "messages", "optional_params", "litellm_params", "headers"),
    "sign_request": (
        *("headers", "optional_params", "request_data", "api_base"),
        *("api_key", "model", "stream", "fake_stream"),
    ),
    "get_model_response_iterator": ("streaming_response", "sync_stream"),
}
_NO_STREAM = {"streaming_response": None, "sync_stream": False}


class Unfit(Exception):
    """LiteLLM itself must be asked; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request, and what reads its answer.

    Args:
        url: Where to.
        headers: Its headers.
        body: Its body.
        key: The key, if there is one.
        parse: Reads the events of this answer.
        plain: It makes nothing else of OpenAI's form than we do.
    """

    url: str
    headers: Mapping[str, str]
    body: bytes
    key: str | None
    parse: Parse
    plain: bool


class Wire:
    """A provider whose whole form is in its configuration, with a stream of OpenAI's chat completions.

    Args:
        provider: LiteLLM's name of the provider.
        config: Its configuration.
    """

    # What LiteLLM looks up outside of the configuration.
    base: ClassVar[str | None] = None
    bases: ClassVar[tuple[str, ...]] = ()
    keys: ClassVar[tuple[str, ...]] = ()
    methods: ClassVar[tuple[str, ...]] = tuple(_METHODS)
    reader: ClassVar[tuple[str, str]] = (
        "litellm.llms.openai.chat.gpt_transformation",
        "OpenAIChatCompletionStreamingHandler",
    )
    plain = False

    def __init__(self, provider: str, config: Any) -> None:
        self._provider, self._config = provider, config

    def check(self, model: str) -> None:
        """Find out whether all that is needed is there.

        Raises:
            Unfit: It is not.
        """
        for name in self.methods:
            takes(getattr(self._config, name, None), name, *_METHODS[name])
        for sign in ("has_custom_stream_wrapper", "uses_async_transform_request"):
            if getattr(self._config, sign, False):
                raise Unfit(f"its configuration says {sign}")
        if self._ask("should_fake_stream", {"model": model, "stream": True, "custom_llm_provider": self._provider}):
            raise Unfit("it does not stream")
        self.look_up()

    def look_up(self) -> None:
        """Find what is no part of the configuration, and whether its stream can be cut into events.

        Raises:
            Unfit: Something is missing.
        """
        found = self._ask("get_model_response_iterator", _NO_STREAM)
        if not isinstance(found, part(*self.reader)):
            raise Unfit(f"its stream is not known to be one of events ({type(found).__name__})")
        takes(found.chunk_parser, "chunk_parser", "chunk")
        self.plain = type(found).chunk_parser is part(*Wire.reader).chunk_parser

    def call(self, asked: Asked) -> Call:
        """Write a request.

        Raises:
            Unfit: This one needs LiteLLM itself.
        """
        params = asked["optional_params"]
        if odd := [name for name in ("json_mode", "fake_stream") if params.pop(name, False)]:
            raise Unfit(f"this request needs {odd[0]}")
        more = params.pop("extra_body", None) or {}
        asked["api_base"] = asked["api_base"] or _first(self.bases) or self.base
        asked["api_key"] = asked["api_key"] or _first(self.keys)
        url, headers, data = self.write(asked)
        data = {**data, **more}
        signed, raw = self._ask(
            "sign_request",
            {**asked, "headers": headers, "api_base": url, "request_data": data, "fake_stream": False},
        )
        body = raw or exactjson.dumps(data)
        if not any(find_secrets(signed)):
            raise Unfit("its configuration does not find a key")
        sent = {"url": url, "headers": _sent(signed), "body": body, "key": asked["api_key"]}
        return Call(**sent, parse=self.parser(asked), plain=self.plain)

    def write(self, asked: Asked) -> Written:
        """Return the address, the headers and the body of a request."""
        own = dict(asked["headers"])
        made = self._ask("validate_environment", asked)
        names = {name.lower() for name in own}
        asked["headers"] = {**{name: value for name, value in made.items() if name.lower() not in names}, **own}
        url, body = self._ask("get_complete_url", asked), self._ask("transform_request", asked)
        return url, asked["headers"], {**body, **self._streaming()}

    def parser(self, asked: Asked) -> Parse:  # noqa: ARG002 - for those that depend on it
        """Make what reads the events of one answer."""
        parse: Parse = self._ask("get_model_response_iterator", _NO_STREAM).chunk_parser
        return parse

    def _streaming(self) -> Mapping[str, bool]:
        return {"stream": True} if self._config.supports_stream_param_in_request_body else {}

    def _ask(self, name: str, values: Mapping[str, Any]) -> Any:
        return getattr(self._config, name)(**{argument: values[argument] for argument in _METHODS[name]})


def part(module: str, name: str) -> Any:
    """Return something of LiteLLM's.

    Raises:
        Unfit: It is not there.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Unfit(f"this version of LiteLLM has no {module}.{name}") from error


def takes(function: Any, name: str, *arguments: str) -> Any:
    """Return a function of LiteLLM's that takes these arguments, and needs no others.

    Raises:
        Unfit: It does not.
    """
    try:
        inspect.signature(function).bind(**dict.fromkeys(arguments))
    except (TypeError, ValueError) as error:
        raise Unfit(f"this version of LiteLLM has another {name}") from error
    return function


def _sent(headers: Mapping[str, Any]) -> dict[str, str]:
    known = {name: str(value) for name, value in headers.items() if value is not None}
    return known if "content-type" in map(str.lower, known) else {**known, "Content-Type": "application/json"}


def _first(names: tuple[str, ...]) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)
