"""Providers with a form of their own, of which LiteLLM's configuration is only a part."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from .wires import Asked, Parse, Wire, Written, part, takes

_STREAM = ("streaming_response", "sync_stream")
_GEMINI = "litellm.llms.vertex_ai.gemini"
_GOOGLE = dict.fromkeys(("vertex_project", "vertex_location"))
_GEMINI_BODY = (
    *("gemini_api_key", "messages", "api_base", "model", "client", "timeout", "extra_headers", "optional_params"),
    *("logging_obj", "custom_llm_provider", "litellm_params", *_GOOGLE, "vertex_auth_header", "context_caching"),
)
_GEMINI_URL = (
    *("model", "auth_header", "gemini_api_key", *_GOOGLE, "vertex_credentials"),
    *("stream", "custom_llm_provider", "api_base"),
)


class _Apart(Wire):
    """A provider whose iterator is apart from its configuration."""

    _iterator: Any

    def _parser(self, **more: Any) -> Parse:
        parse: Parse = self._iterator(streaming_response=None, sync_stream=False, **more).chunk_parser
        return parse


class AnthropicWire(_Apart):
    """Anthropic: apart from its configuration are its iterator, and what it lets pass of beta versions."""

    base = "https://api.anthropic.com"
    bases = ("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL")
    methods = ("should_fake_stream", "validate_environment", "transform_request", "sign_request")

    def look_up(self) -> None:
        """See `Wire.look_up`."""
        self._iterator = _iterator("litellm.llms.anthropic.chat.handler", "tool_name_reverse_map")
        self._names = part("litellm.llms.anthropic.chat.transformation", "ANTHROPIC_TOOL_NAME_REVERSE_MAP_KEY")
        self._filtered = takes(
            part("litellm.anthropic_beta_headers_manager", "update_request_with_filtered_beta"),
            *("update_request_with_filtered_beta", "headers", "request_data", "provider", "api_base"),
        )
        self._gated = takes(
            part("litellm.anthropic_beta_gated_fields", "strip_beta_gated_request_body"),
            *("strip_beta_gated_request_body", "request", "headers", "drop_params", "model", "provider"),
        )

    def write(self, asked: Asked) -> Written:
        """See `Wire.write`."""
        params = asked["optional_params"]
        params.pop("stream", None)
        asked["optional_params"] = {**params, "is_vertex_request": False}
        base = asked["api_base"].rstrip("/")
        url = base if base.endswith("/v1/messages") else f"{base.removesuffix('/v1')}/v1/messages"
        asked |= {"api_base": url}
        asked["headers"] = self._ask("validate_environment", asked)
        told = {"provider": self._provider, "api_base": url}
        body = self._ask("transform_request", asked)
        headers, body = self._filtered(headers=asked["headers"], request_data=body, **told)
        dropped = {"drop_params": asked["litellm_params"].get("drop_params"), "model": asked["model"]}
        gated = self._gated(body, headers, **dropped, provider=self._provider)
        return url, headers, {**gated, **self._streaming()}

    def parser(self, asked: Asked) -> Parse:
        """See `Wire.parser`."""
        names = asked["litellm_params"].get(self._names)
        return self._parser(tool_name_reverse_map=names)


class GeminiWire(_Apart):
    """Gemini: apart from its configuration are its address, its body and its iterator."""

    bases = ("GEMINI_API_BASE",)
    keys = ("GOOGLE_API_KEY", "GEMINI_API_KEY", "PALM_API_KEY")
    methods = ("should_fake_stream", "validate_environment", "sign_request")

    def look_up(self) -> None:
        """See `Wire.look_up`."""
        module = f"{_GEMINI}.vertex_and_google_ai_studio_gemini"
        self._iterator = _iterator(module, "logging_obj")
        vertex = part(module, "VertexLLM")()
        self._url = takes(getattr(vertex, "get_token_and_url", None), "get_token_and_url", *_GEMINI_URL)
        body = part(f"{_GEMINI}.transformation", "sync_transform_request_body")
        self._body = takes(body, "sync_transform_request_body", *_GEMINI_BODY)

    def write(self, asked: Asked) -> Written:
        """See `Wire.write`."""
        asked["optional_params"].pop("stream", None)
        told = {
            "model": asked["model"],
            "api_base": asked["api_base"],
            "gemini_api_key": asked["api_key"],
            "custom_llm_provider": "gemini",
            **_GOOGLE,
        }
        key, url = self._url(**told, stream=True, auth_header=None, vertex_credentials=None)
        headers = self._ask("validate_environment", {**asked, "api_key": key})
        body = self._body(
            **told,
            **{name: asked[name] for name in ("messages", "optional_params", "litellm_params")},
            logging_obj=_log(asked),
            extra_headers=asked["headers"],
            vertex_auth_header=key,
            context_caching=False,  # it asks Google, by LiteLLM's transport
            client=None,
            timeout=None,
        )
        return url, headers, body

    def parser(self, asked: Asked) -> Parse:
        """See `Wire.parser`."""
        return self._parser(logging_obj=_log(asked))


class CohereWire(Wire):
    """Cohere: its configuration says all, but LiteLLM reads lines of JSON where Cohere sends events."""

    base = "https://api.cohere.com/v2/chat"
    bases = ("COHERE_API_BASE",)
    keys = ("COHERE_API_KEY", "CO_API_KEY")
    reader = ("litellm.llms.cohere.common_utils", "CohereV2ModelResponseIterator")

    def write(self, asked: Asked) -> Written:
        """See `Wire.write`."""
        asked["model"] = asked["model"].replace("v2/", "")
        url, headers, body = super().write(asked)
        kept = {name: value for name, value in headers.items() if name.lower() != "accept"}
        return url, {**kept, "Accept": "text/event-stream"}, body

    def parser(self, asked: Asked) -> Parse:
        """See `Wire.parser`; of some events LiteLLM looks for the name, and for the rest under `data`."""
        parse = super().parser(asked)
        return lambda event: parse({**event, "event": event.get("type"), "data": event})


DIALECTS: Mapping[str, type[Wire]] = {
    "anthropic": AnthropicWire,
    "gemini": GeminiWire,
    "cohere": CohereWire,
    "cohere_chat": CohereWire,
}


def _iterator(module: str, *more: str) -> Any:
    made = takes(part(module, "ModelResponseIterator"), "ModelResponseIterator", *_STREAM, *more)
    takes(made.chunk_parser, "chunk_parser", "self", "chunk")
    return made


def _log(asked: Asked) -> Any:
    """Make what the code for Gemini reads of LiteLLM's log."""
    return SimpleNamespace(optional_params=asked["optional_params"], litellm_params=asked["litellm_params"])
