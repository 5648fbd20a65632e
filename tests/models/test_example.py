"""Arguments made up from a schema."""

import pytest

from streamagent.models.example import content_words, example_arguments, key_phrase

PROMPT = "How many blue mugs are left, 7 or -2.5?"


def fill(schema, prompt=PROMPT, **rest):
    return example_arguments({"type": "object", "properties": {"x": schema}, "required": ["x"], **rest}, prompt)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "blue mugs"),
        ({}, "blue mugs"),
        ({"type": "string", "maxLength": 4}, "blue"),
        ({"type": "string", "default": "d"}, "d"),
        ({"const": "c"}, "c"),
        ({"type": "string", "enum": ["C", "F"]}, "C"),
        ({"type": "string", "examples": ["e"]}, "e"),
        ({"type": "integer"}, 7),
        ({"type": "number", "minimum": 10}, 10.0),
        ({"type": "integer", "maximum": 5}, 5),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": ["integer", "null"]}, 7),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [False, False]),
        ({"type": "object", "properties": {"y": {"type": "boolean"}}, "required": ["y"]}, {"y": False}),
        ({"anyOf": [{"type": "boolean"}, {"type": "null"}]}, False),
    ],
)
def test_a_required_parameter_is_filled_by_its_type(schema, value):
    assert fill(schema) == {"x": value}


def test_numbers_are_taken_in_order():
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
    assert example_arguments(schema, "What is 17 plus 25?") == {"a": 17, "b": 25}


def test_without_a_number_it_is_zero():
    assert fill({"type": "integer"}, "How many?") == {"x": 0}


def test_without_a_word_there_is_a_text():
    assert fill({"type": "string"}, "??") == {"x": "text"}


def test_optional_parameters_are_left_out():
    assert example_arguments({"properties": {"x": {"type": "string"}}}, PROMPT) == {}


def test_references_are_followed():
    definitions = {"unit": {"enum": ["C"]}}
    assert fill({"$ref": "#/$defs/unit"}, **{"$defs": definitions}) == {"x": "C"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a$"},
        {"type": "string", "format": "uuid"},
        {"type": "string", "minLength": 99},
        {"type": "stone"},
        {"$ref": "#/$defs/missing/deeper"},
        {"$ref": "#/properties/x"},
    ],
    ids=["pattern", "format", "too short", "unknown type", "dangling", "endless"],
)
def test_what_nothing_simple_fits_is_said_to_be_unfit(schema):
    assert fill(schema) is None


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Tell me about 'red cups' please", "red cups"),
        ("Show me what is in config.toml.", "config.toml"),
        ("The products are in data/products.json. Read it", "data/products.json"),
        ("What is the weather in New York?", "New York"),
        ("Write to ann@example.com", "ann@example.com"),
        ("How many are left?", ""),
    ],
)
def test_what_stands_out_is_found(text, phrase):
    assert key_phrase(text) == phrase


@pytest.mark.parametrize(("text", "words"), [("Do we have green pens?", "green pens"), ("How many are left?", "")])
def test_the_words_that_matter_are_found(text, words):
    assert content_words(text) == words
