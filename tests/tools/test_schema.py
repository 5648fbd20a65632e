"""Parameters from a function's signature: the schema, the conversion, and the text of a refusal."""

import datetime as dt
import enum
import functools
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from streamagent.calls import ToolContext
from streamagent.errors import ConfigError, InvalidArguments
from streamagent.tools.schema import MAX_ECHO, MAX_PROBLEMS, from_signature, read_signature


def parameters(function, **descriptions):
    return from_signature(read_signature(function), descriptions)


def properties(function, **descriptions):
    schema = parameters(function, **descriptions).schema
    Draft202012Validator.check_schema(schema)
    return schema["properties"]


def refusal(function, arguments):
    with pytest.raises(InvalidArguments) as caught:
        parameters(function).validate(arguments)
    return str(caught.value)


class Colour(enum.Enum):
    BLUE = "blue"
    RED = "red"


class Item(BaseModel):
    name: str
    count: int = 1


@dataclass
class Box:
    items: list[Item]


class Place(TypedDict):
    shelf: int


def test_a_plain_signature_is_an_object_without_titles():
    """Required are the parameters without a default; other names are not allowed."""

    def stock(product: str, limit: int = 10): ...

    assert parameters(stock).schema == {
        "type": "object",
        "properties": {"product": {"type": "string"}, "limit": {"type": "integer", "default": 10}},
        "required": ["product"],
        "additionalProperties": False,
    }


def test_no_parameters_are_an_empty_object():
    """A tool may take nothing."""
    assert parameters(lambda: None).schema == {"type": "object", "properties": {}, "additionalProperties": False}


def test_descriptions_come_from_the_annotation_and_then_the_docstring():
    """A `Field` is nearer to the parameter than the docstring."""

    def stock(a: Annotated[int, Field(description="field", ge=1)], b: int, c: int): ...

    found = properties(stock, a="docstring", b="docstring", c="")
    assert found == {
        "a": {"type": "integer", "description": "field", "minimum": 1},
        "b": {"type": "integer", "description": "docstring"},
        "c": {"type": "integer"},
    }


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (int, "5", 5),
        (float, "1.5", 1.5),
        (bool, "true", True),
        (str, 12, "12"),
        (Optional[int], None, None),  # noqa: UP045
        (Literal["a", "b"], "b", "b"),
        (Colour, "red", Colour.RED),
        (list[int], ["1", 2], [1, 2]),
        (set[str], ["a", "a"], {"a"}),
        (dict[str, int], {"a": "1"}, {"a": 1}),
        (Item, {"name": "mug"}, Item(name="mug", count=1)),
        (Box, {"items": [{"name": "mug", "count": "2"}]}, Box([Item(name="mug", count=2)])),
        (Place, {"shelf": "3"}, {"shelf": 3}),
        (dt.date, "2026-01-02", dt.date(2026, 1, 2)),
        (uuid.UUID, str(uuid.UUID(int=1)), uuid.UUID(int=1)),
        (Path, "a/b", Path("a/b")),
        (Any, [1], [1]),
    ],
)
def test_arguments_are_converted_to_the_annotation(annotation, given, expected):
    """What a model wrote as text or JSON arrives as the type that the function asks for."""

    def function(value): ...

    function.__annotations__["value"] = annotation
    assert properties(function) is not None
    assert parameters(function).validate({"value": given}) == {"value": expected}


def test_a_parameter_without_annotation_takes_anything():
    """No annotation, no condition."""
    assert properties(lambda value: value) == {"value": {}}


@pytest.mark.parametrize("name", ["schema", "json", "copy", "model_dump", "_hidden", "class_", "title", "self_"])
def test_a_parameter_may_have_any_name(name):
    """Also one that pydantic uses itself."""
    namespace = {}
    exec(
        f"def function({name}: int, title: str = ''): ..." if name != "title" else "def function(title: int): ...",
        namespace,
    )
    assert name in properties(namespace["function"])
    assert parameters(namespace["function"]).validate({name: "1"}) == {name: 1}


def test_what_was_not_given_is_left_to_the_function():
    """A default need not be JSON, and stays the function's own object."""
    marker = object()

    def function(a: int = 1, b: Any = marker, c: Path = Path("x")): ...

    assert parameters(function).validate({}) == {}
    assert properties(function)["a"]["default"] == 1
    assert "default" not in properties(function)["b"]
    assert properties(function)["c"]["default"] == "x"


def test_a_field_as_default_is_a_field():
    """The form that is common elsewhere: required without a default, filled in with one."""

    def function(a: int = Field(description="first"), b: int = Field(3, le=5)): ...

    assert parameters(function).schema["required"] == ["a"]
    assert properties(function)["b"] == {"type": "integer", "default": 3, "maximum": 5}
    assert parameters(function).validate({"a": 1}) == {"a": 1, "b": 3}


def test_an_alias_is_what_the_model_writes():
    """And the function gets its own name."""

    def function(a: Annotated[int, Field(alias="from")]): ...

    assert list(properties(function, a="unused")) == ["from"]
    assert parameters(function).validate({"from": 1}) == {"a": 1}


@pytest.mark.parametrize("annotation", [ToolContext, ToolContext | None, Optional[ToolContext]])  # noqa: UP045
def test_the_context_is_hidden(annotation):
    """The model does not see the parameter that gets the `ToolContext`."""

    def function(product: str, where): ...

    function.__annotations__["where"] = annotation
    signature = read_signature(function)
    assert list(signature.named) == ["product"]
    assert signature.context == "where"


def test_text_annotations_are_resolved():
    """As under `from __future__ import annotations`."""

    def function(where: "ToolContext", count: "int"): ...

    assert properties(function) == {"count": {"type": "integer"}}


def test_what_a_partial_has_set_is_neither_seen_nor_asked():
    """By name or by place."""

    def function(a: int, b: int, *, key: str, c: int = 1): ...

    assert list(properties(functools.partial(function, 1, key="secret"))) == ["b", "c"]


def test_other_names_are_allowed_by_keyword_parameters():
    """`**kwargs` opens the object; its annotation is the type of each."""

    def function(a: int, **labels: int): ...

    assert parameters(function).schema["additionalProperties"] == {"type": "integer"}
    assert parameters(function).validate({"a": 1, "x": "2"}) == {"a": 1, "x": 2}
    assert "- x: " in refusal(function, {"a": 1, "x": "no"})


def test_keyword_parameters_without_annotation_take_anything():
    """The object is open."""

    def function(**labels): ...

    assert parameters(function).schema["additionalProperties"] in (True, {})
    assert parameters(function).validate({"x": [1]}) == {"x": [1]}


def with_rest(*rest): ...


def with_place(a, /): ...


@pytest.mark.parametrize(("function", "named"), [(with_rest, r"\*rest"), (with_place, "'a'")])
def test_a_parameter_without_a_name_is_refused(function, named):
    """A model gives arguments by name."""
    with pytest.raises(ConfigError, match=named):
        read_signature(function)


def test_an_annotation_of_an_unknown_name_is_refused():
    """The error says what cannot be found."""

    def function(a: "Nowhere"): ...  # noqa: F821

    with pytest.raises(ConfigError, match="Nowhere"):
        read_signature(function)


def test_a_callable_without_signature_is_refused():
    """Some builtins have none."""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_signature(type)


class Opaque: ...


@pytest.mark.parametrize(
    "annotation",
    [Opaque, Callable[[], int], object(), Annotated[str, Field(pattern="(?=a)b")]],
    ids=["class", "callable", "object", "pattern"],
)
def test_an_annotation_without_json_schema_is_refused(annotation):
    """What JSON cannot give, and what cannot be checked in linear time."""

    def function(a): ...

    function.__annotations__["a"] = annotation
    with pytest.raises(ConfigError, match="JSON cannot give"):
        parameters(function)


def test_a_pattern_takes_linear_time():
    """A pattern that explodes in a backtracking engine does not."""

    def function(a: Annotated[str, Field(pattern="^(a+)+$")]): ...

    assert "- a: " in refusal(function, {"a": "a" * 100_000 + "b"})


def test_a_refusal_lists_each_path_and_what_was_received():
    """Enough to mend the call at once."""

    def function(box: Box, count: int, product: str): ...

    text = refusal(function, {"box": {"items": [{"name": "a"}, {"count": "x"}]}, "count": "many", "colour": "ä"})
    assert text.splitlines()[0] == "The arguments do not fit:"
    assert "- colour: no such argument; there are: box, count, product" in text
    assert "- box.items.1.name: Field required" in text
    assert "- box.items.1.count: Input should be a valid integer" in text
    assert "- count: Input should be a valid integer" in text
    assert "- product: Field required" in text
    assert text.endswith('"colour": "ä"}')


def test_a_tool_without_parameters_says_so():
    """When a model gives some."""
    assert "- x: the tool takes no arguments" in refusal(lambda: None, {"x": 1})


@pytest.mark.parametrize(("extra", "cut"), [(0, False), (1, True)])
def test_the_echo_has_a_limit(extra, cut):
    """At the limit whole, beyond it cut and measured."""

    def function(): ...

    frame = len(json.dumps({"x": ""}))
    text = refusal(function, {"x": "y" * (MAX_ECHO - frame + extra)})
    assert text.endswith(f"… ({MAX_ECHO + 1} characters)") is cut


@pytest.mark.parametrize(("wrong", "more"), [(MAX_PROBLEMS, False), (MAX_PROBLEMS + 1, True)])
def test_the_problems_have_a_limit(wrong, more):
    """Twenty are listed, the rest counted."""

    def function(numbers: list[int]): ...

    text = refusal(function, {"numbers": ["x"] * wrong})
    assert text.count("- numbers.") == MAX_PROBLEMS
    assert ("- and 1 more" in text) is more
