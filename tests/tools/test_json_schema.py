"""Parameters given as JSON Schema: checked as they are, and safe when they are hostile."""

import pytest

from streamagent.errors import ConfigError, InvalidArguments
from streamagent.tools.json_schema import MAX_REFERENCES, REFUSED, from_schema
from streamagent.tools.schema import MAX_PROBLEMS


def schema(**properties):
    return {"type": "object", "properties": properties}


def refusal(given, arguments, **options):
    with pytest.raises(InvalidArguments) as caught:
        from_schema(given, **options).validate(arguments)
    return str(caught.value)


def test_arguments_that_fit_pass_as_they_are():
    """Nothing is converted."""
    given = schema(product={"type": "string", "pattern": "^m"}, count={"$ref": "#/$defs/count"})
    given["$defs"] = {"count": {"type": "integer"}}
    parameters = from_schema(given)
    assert parameters.schema is given
    assert parameters.validate({"product": "mug", "count": 3}) == {"product": "mug", "count": 3}


def test_a_refusal_lists_each_path_and_what_was_received():
    """As for a signature."""
    given = {**schema(items={"type": "array", "items": {"type": "integer"}}), "required": ["name"]}
    text = refusal(given, {"items": [1, "x"], "colour": "red"})
    assert "- colour: no such argument; there are: items" in text
    assert "- arguments: 'name' is a required property" in text
    assert "- items.1: 'x' is not of type 'integer'" in text
    assert text.endswith('Received: {"items": [1, "x"], "colour": "red"}')


def test_any_name_leaves_unknown_names_to_the_schema():
    """They pass, unless the schema itself forbids them."""
    open_schema = schema(a={})
    assert from_schema(open_schema, any_name=True).validate({"b": 1}) == {"b": 1}
    closed = {**open_schema, "additionalProperties": False}
    assert "Additional properties are not allowed" in refusal(closed, {"b": 1}, any_name=True)


def test_a_problem_of_a_huge_value_is_told_without_it():
    """Otherwise the value would hide what is wrong with it."""
    text = refusal(schema(a={"type": "string", "maxLength": 3}), {"a": "x" * 1_000})
    assert "- a: does not fit maxLength: 3\n" in text


def test_the_problems_have_a_limit():
    """A long list of wrong items is cut."""
    given = schema(a={"type": "array", "items": {"type": "integer"}})
    assert refusal(given, {"a": ["x"] * (MAX_PROBLEMS + 5)}).count("- a.") == MAX_PROBLEMS


@pytest.mark.parametrize(
    "given",
    [
        None,
        [],
        {},
        {"type": "string"},
        {"type": ["object", "null"]},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"a": {"type": "strange"}}},
        {"type": "object", "required": "a"},
    ],
    ids=str,
)
def test_what_is_not_the_schema_of_an_object_is_refused(given):
    """With an error when the tool is made, not when it is called."""
    with pytest.raises(ConfigError, match="parameters"):
        from_schema(given)


@pytest.mark.parametrize("reference", ["https://example.org/a.json", "file:///etc/passwd", "#/$defs/missing", "other"])
def test_a_reference_that_leaves_the_schema_is_refused(reference):
    """Nothing is fetched, and nothing dangles."""
    with pytest.raises(ConfigError, match="which is not in them"):
        from_schema(schema(a={"items": {"$ref": reference}}))


@pytest.mark.parametrize("keyword", sorted(REFUSED))
def test_keywords_of_unbounded_work_are_refused(keyword):
    """They would run patterns that backtrack, or references that are not counted."""
    with pytest.raises(ConfigError, match=f"cannot use .{keyword[1:]}"):
        from_schema(schema(a={keyword: {} if keyword != "$dynamicRef" else "#x"}))


def test_a_property_may_be_named_like_a_keyword():
    """Names of properties are no keywords, and a schema may be `true`."""
    given = schema(**{"$ref": True, "pattern": {"type": "string"}})
    assert from_schema(given).validate({"$ref": 1, "pattern": "("}) == {"$ref": 1, "pattern": "("}


@pytest.mark.parametrize("pattern", ["(?=a)b", "(a)\\1", "("])
def test_a_pattern_that_needs_backtracking_is_refused(pattern):
    """Such a pattern could run for ever."""
    with pytest.raises(ConfigError, match=r"linear time|not a .regex"):
        from_schema(schema(a={"pattern": pattern}))


def test_a_pattern_takes_linear_time():
    """A pattern that explodes in a backtracking engine does not; other types are not its matter."""
    given = schema(a={"pattern": "^(a+)+$"})
    assert "- a: does not match the pattern ^(a+)+$" in refusal(given, {"a": "a" * 100_000 + "b"})
    assert from_schema(given).validate({"a": 1}) == {"a": 1}


def test_references_that_double_are_cut_off():
    """Thirty levels would be a thousand million steps."""
    levels = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}, {"$ref": f"#/$defs/l{n + 1}"}]} for n in range(30)}
    given = {**schema(a={"$ref": "#/$defs/l0"}), "$defs": {**levels, "l30": {"type": "integer"}}}
    parameters = from_schema(given)
    assert parameters.validate({"a": 1}) == {"a": 1}
    with pytest.raises(InvalidArguments):
        parameters.validate({"a": "x"})


@pytest.mark.parametrize(("count", "fits"), [(MAX_REFERENCES, True), (MAX_REFERENCES + 1, False)])
def test_so_many_references_are_followed(count, fits):
    """At the limit all are checked; one more is refused."""
    given = {**schema(a={"items": {"$ref": "#/$defs/x"}}), "$defs": {"x": {"type": "integer"}}}
    if fits:
        assert from_schema(given).validate({"a": [1] * count})
    else:
        assert f"more than {MAX_REFERENCES} references" in refusal(given, {"a": [1] * count})


def test_a_reference_to_itself_is_an_error_not_a_crash():
    """A schema that never arrives."""
    given = {**schema(a={"$ref": "#/$defs/x"}), "$defs": {"x": {"$ref": "#/$defs/x"}}}
    assert "nested too deep" in refusal(given, {"a": 1})


def test_a_schema_that_is_nested_too_deep_is_refused():
    """Before it can exhaust the stack."""
    inner = {}
    for _ in range(5_000):
        inner = {"not": inner}
    with pytest.raises(ConfigError, match="nested too deep"):
        from_schema(schema(a=inner))
