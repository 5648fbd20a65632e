"""What a tool takes, as JSON Schema, and the check of a call's arguments against it.

Pydantic and jsonschema are imported at first use: importing a module of tools costs neither.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args

from streamagent.calls import ToolContext
from streamagent.errors import ConfigError, InvalidArguments

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_PROBLEMS = 20  # a model mends a few at a time; a long list of wrong items says the same again and again
MAX_ECHO = 500  # characters of what was received, and of one problem: enough to see what is meant

Arguments = Mapping[str, Any]
Problem = tuple[str, str]  # where, and what is wrong


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a tool takes.

    Args:
        schema: JSON Schema of the arguments, an object.
        validate: Returns the arguments as the function wants them, or raises `InvalidArguments`.
    """

    schema: Mapping[str, Any]
    validate: Callable[[Arguments], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a function, as far as a model gives them.

    Args:
        named: Those that are given by name.
        extra: The one that takes all other names, if there is one.
        context: Name of the one that wants the `ToolContext`, if there is one.
        preset: What a `functools.partial` has set by name; the model neither sees nor changes it.
    """

    named: Mapping[str, inspect.Parameter]
    extra: inspect.Parameter | None
    context: str | None
    preset: Mapping[str, Any]


def read_signature(function: Callable[..., Any], *, evaluate: bool = True) -> Signature:
    """Read a function's parameters.

    Args:
        function: Any callable.
        evaluate: Resolve annotations that are text, which needs the names that they use.

    Raises:
        ConfigError: It cannot be called by name, or an annotation has an unknown name.
    """
    try:
        found = inspect.signature(function, eval_str=evaluate).parameters
    except Exception as error:
        raise ConfigError(
            f"the signature of {function!r} cannot be read ({error}); the types that it names must be importable at "
            "run time, from the module's top level"
        ) from error
    preset = function.keywords if isinstance(function, functools.partial) else {}
    named: dict[str, inspect.Parameter] = {}
    extra = context = None
    for name, parameter in found.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise ConfigError(f"parameter {str(parameter)!r} has no name for a model to give; make it a named one")
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = parameter
        elif ToolContext in (parameter.annotation, *get_args(parameter.annotation)):
            context = name
        elif name not in preset:
            named[name] = parameter
    return Signature(named, extra, context, preset)


def from_signature(signature: Signature, descriptions: Mapping[str, str]) -> Parameters:
    """Derive parameters from a function's annotations; arguments are converted where nothing is lost (`"3"` to 3).

    Args:
        signature: The function's.
        descriptions: What its docstring says; a `Field(description=…)` of the annotation goes first.

    Raises:
        ConfigError: An annotation has no JSON Schema.
    """
    from pydantic import ValidationError

    adapter = _adapter(signature)
    schema = _schema(adapter, signature, descriptions)

    def validate(arguments: Arguments) -> dict[str, Any]:
        known = (
            dict(arguments) if signature.extra else {k: v for k, v in arguments.items() if k in schema["properties"]}
        )
        problems = [] if signature.extra else unknown_names(arguments, schema)
        try:
            valid = adapter.validate_python(known)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)
            problems += [(dotted(item["loc"]), item["msg"]) for item in details]
        if problems:
            raise refusal(problems, arguments)
        return valid

    return Parameters(schema, validate)


def _adapter(signature: Signature) -> TypeAdapter[dict[str, Any]]:
    """Validate into a `TypedDict`: its keys may have any name, and what was not given stays away."""
    import typing_extensions
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    typed_dict: Any = typing_extensions.TypedDict
    fields = {name: _field(parameter) for name, parameter in signature.named.items()}
    if signature.extra:
        arguments = typed_dict("arguments", fields, extra_items=_annotation(signature.extra))
    else:
        arguments = typed_dict("arguments", fields)
    # Models write numbers where text is asked for, such as an order's number.
    arguments.__pydantic_config__ = ConfigDict(coerce_numbers_to_str=True)
    try:
        return TypeAdapter(arguments)
    except (PydanticUserError, SchemaError, TypeError) as error:
        raise ConfigError(f"parameters ({', '.join(fields)}) that JSON cannot give: {error}") from error


def _field(parameter: inspect.Parameter) -> Any:
    import typing_extensions
    from pydantic.fields import FieldInfo

    annotation = _annotation(parameter)
    if isinstance(parameter.default, FieldInfo):
        annotation = Annotated[annotation, parameter.default]
        required = parameter.default.is_required()
    else:
        required = parameter.default is parameter.empty
    return annotation if required else typing_extensions.NotRequired[annotation]


def _annotation(parameter: inspect.Parameter) -> Any:
    return Any if parameter.annotation is parameter.empty else parameter.annotation


def _schema(
    adapter: TypeAdapter[dict[str, Any]], signature: Signature, descriptions: Mapping[str, str]
) -> dict[str, Any]:
    """Write the schema: with defaults and descriptions, without pydantic's titles, tokens that say nothing."""
    from pydantic.errors import PydanticInvalidForJsonSchema
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    class Generator(GenerateJsonSchema):
        ignored_warning_kinds: set[JsonSchemaWarningKind] = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

        def field_title_should_be_set(self, schema: Any) -> bool:
            del schema
            return False

    try:
        schema = adapter.json_schema(schema_generator=Generator)
    except PydanticInvalidForJsonSchema as error:
        raise ConfigError(f"parameters that JSON cannot give: {error}") from error
    del schema["title"]
    schema.setdefault("additionalProperties", signature.extra is not None)
    for name, found in schema["properties"].items():
        if descriptions.get(name):
            found.setdefault("description", descriptions[name])
        parameter = signature.named.get(name)
        if parameter and parameter.default is not parameter.empty and "default" not in found:
            with contextlib.suppress(PydanticSerializationError):  # a default that JSON cannot hold stays Python's
                found["default"] = to_jsonable_python(parameter.default)
    return schema


def unknown_names(arguments: Arguments, schema: Mapping[str, Any]) -> list[Problem]:
    """Say which arguments the schema does not name, and which it does."""
    known = schema.get("properties", {})
    text = f"no such argument; there are: {', '.join(known)}" if known else "the tool takes no arguments"
    return [(name, text) for name in arguments if name not in known]


def dotted(path: Iterable[str | int]) -> str:
    """Write a path into the arguments, such as `items.0.name`."""
    return ".".join(map(str, path)) or "arguments"


def refusal(problems: list[Problem], arguments: Arguments) -> InvalidArguments:
    """Make the error from which a model can mend its call."""
    lines = ["The arguments do not fit:"]
    lines += [f"- {where}: {shorten(what)}" for where, what in problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"- and {len(problems) - MAX_PROBLEMS} more")
    lines.append(f"Received: {shorten(json.dumps(arguments, ensure_ascii=False, default=repr))}")
    return InvalidArguments("\n".join(lines))


def shorten(text: str) -> str:
    """Cut a text that is quoted in an error."""
    return text if len(text) <= MAX_ECHO else f"{text[:MAX_ECHO]}… ({len(text)} characters)"
