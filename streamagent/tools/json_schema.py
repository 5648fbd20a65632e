"""Parameters that are given as JSON Schema, by hand or by another system.

Such a schema may be hostile: patterns run in linear time, references are local, and work is bounded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from streamagent.errors import ConfigError

from .schema import MAX_ECHO, MAX_PROBLEMS, Arguments, Parameters, dotted, refusal, shorten, unknown_names

if TYPE_CHECKING:
    from referencing import Resource

MAX_REFERENCES = 10_000  # followed in one check: references that double at each level would never end otherwise
REFUSED = frozenset({"$dynamicRef", "patternProperties", "unevaluatedItems", "unevaluatedProperties"})  # unbounded work

_references: ContextVar[Iterator[int]] = ContextVar("streamagent_references")


def check_object(schema: Any) -> None:
    """Refuse what is not the schema of an object, without importing anything.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        raise ConfigError(f"parameters are a JSON Schema with type 'object', not {schema!r:.{MAX_ECHO}}")
    if not isinstance(schema.get("properties", {}), Mapping):
        raise ConfigError("the `properties` of parameters are an object: name to schema")


def from_schema(schema: Mapping[str, Any], *, any_name: bool = False) -> Parameters:
    """Take a JSON Schema (draft 2020-12) as it is; arguments are checked, not converted.

    Args:
        schema: Of an object.
        any_name: Leave names that `properties` does not have to the rest of the schema; otherwise they are refused.

    Raises:
        ConfigError: The schema is not valid, refers to another document, or has a pattern that needs backtracking.
    """
    check_object(schema)
    validator = _validator(dict(schema))

    def validate(arguments: Arguments) -> dict[str, Any]:
        known = dict(arguments)
        problems = [] if any_name else unknown_names(known, schema)
        problems += _problems(validator, known)
        if problems:
            raise refusal(problems, known)
        return known

    return Parameters(schema, validate)


def _problems(validator: Any, arguments: dict[str, Any]) -> list[tuple[str, str]]:
    token = _references.set(iter(range(MAX_REFERENCES)))
    try:
        found = itertools.islice(validator.iter_errors(arguments), MAX_PROBLEMS + 1)
        return [(dotted(error.absolute_path), _message(error)) for error in found]
    except RecursionError:
        return [("arguments", "nested too deep")]
    finally:
        _references.reset(token)


def _message(error: Any) -> str:
    """Say what is wrong; jsonschema's own text begins with the value, which may be long."""
    whole: str = error.message
    return whole if len(whole) <= MAX_ECHO else f"does not fit {error.validator}: {error.validator_value}"


def _validator(schema: dict[str, Any]) -> Any:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped] # it ships no types
    from jsonschema.exceptions import SchemaError, ValidationError  # type: ignore[import-untyped]
    from jsonschema.validators import extend  # type: ignore[import-untyped]
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012

    try:
        Draft202012Validator.check_schema(schema)
        registry: Registry[Any] = Registry()
        root = DRAFT202012.create_resource(schema)
        patterns = dict(_patterns(root, registry.resolver_with_root(root)))
    except SchemaError as error:
        raise ConfigError(f"parameters are no JSON Schema: {shorten(error.message)}") from error
    except RecursionError as error:
        raise ConfigError("parameters are nested too deep") from error

    def pattern(validator: Any, value: str, instance: Any, schema: Any) -> Iterator[Any]:
        del schema
        if validator.is_type(instance, "string") and not patterns[value](instance):
            yield ValidationError(f"does not match the pattern {value}")

    follow = Draft202012Validator.VALIDATORS["$ref"]

    def reference(validator: Any, value: str, instance: Any, schema: Any) -> Iterator[Any]:
        if next(_references.get(), None) is None:
            yield ValidationError(f"cannot be checked: the schema leads through more than {MAX_REFERENCES} references")
        else:
            yield from follow(validator, value, instance, schema)

    return extend(Draft202012Validator, {"pattern": pattern, "$ref": reference})(schema, registry=registry)


def _patterns(resource: Resource[Any], resolver: Any) -> Iterator[tuple[str, Callable[[str], bool]]]:
    """Compile each pattern of a schema, and refuse what could reach outside or run without end."""
    from referencing.exceptions import Unresolvable

    keywords = resource.contents if isinstance(resource.contents, Mapping) else {}
    if refused := REFUSED & keywords.keys():
        raise ConfigError(f"parameters cannot use {', '.join(sorted(refused))}")
    if "pattern" in keywords:
        yield keywords["pattern"], _linear(keywords["pattern"])
    if "$ref" in keywords:
        try:
            resolver.lookup(keywords["$ref"])
        except Unresolvable as error:
            raise ConfigError(f"parameters refer to {keywords['$ref']!r}, which is not in them") from error
    for below in resource.subresources():
        yield from _patterns(below, resolver.in_subresource(below))


def _linear(pattern: str) -> Callable[[str], bool]:
    """Compile a pattern with Rust's engine, whose time is linear in the text."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except SchemaError as error:
        raise ConfigError(f"pattern {pattern!r} of the parameters cannot be matched in linear time: {error}") from error
