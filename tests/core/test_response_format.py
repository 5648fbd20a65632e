"""Schemas as OpenAI's strict mode wants them."""

from enum import Enum

from pydantic import BaseModel, TypeAdapter

from streamagent._core.response_format import in_words, response_format, without_words


class Colour(Enum):
    """Of a mug."""

    BLUE = "blue"
    RED = "red"


class Mug(BaseModel):
    """A mug."""

    default: str
    colour: Colour = Colour.BLUE


class Order(BaseModel):
    """An order."""

    mugs: list[Mug]
    gift: Mug | None = None
    properties: dict[str, str] | None = None


class Plain(BaseModel):
    """Without free keys."""

    mugs: list[Mug]
    gift: Mug | None = None


def objects(value):
    """All schemas of objects within a schema."""
    if isinstance(value, dict):
        found = [inner for name in sorted(value) if name != "$defs" for inner in objects(value[name])]
        mine = [value] if value.get("type") == "object" else []
        return mine + found + objects(value.get("$defs"))
    return [inner for item in value for inner in objects(item)] if isinstance(value, list) else []


def test_every_object_requires_all_its_properties_and_allows_no_other():
    schema = TypeAdapter(Plain).json_schema()
    told = response_format(schema)["json_schema"]
    assert (told["name"], told["strict"]) == ("Plain", True)
    assert [(item["required"], item["additionalProperties"]) for item in objects(told["schema"])] == [
        (["mugs", "gift"], False),
        (["default", "colour"], False),
    ]
    assert told["schema"]["$defs"]["Mug"]["properties"]["default"] == {"title": "Default", "type": "string"}
    assert told["schema"]["$defs"]["Colour"]["enum"] == ["blue", "red"]
    assert "default" not in told["schema"]["properties"]["gift"]
    assert schema == TypeAdapter(Plain).json_schema()


def test_an_object_with_free_keys_is_told_as_it_is():
    schema = TypeAdapter(Order).json_schema()
    assert response_format(schema)["json_schema"] == {"name": "Order", "schema": schema, "strict": False}


def test_an_object_without_properties_has_free_keys():
    assert not response_format({"type": "object"})["json_schema"]["strict"]


def test_a_name_is_one_that_a_provider_takes():
    named = {"type": "object", "properties": {}, "title": "Bestellung[Größe]" + "x" * 80}
    name = response_format(named)["json_schema"]["name"]
    assert (name[:17], len(name)) == ("Bestellung_Gr__e_", 64)
    assert response_format({"type": "object", "properties": {}})["json_schema"]["name"] == "answer"


def test_words_are_put_behind_the_prompt_and_taken_off_again():
    assert without_words(in_words({"type": "object"}, "Be brief.")) == "Be brief."
    assert without_words(in_words({"type": "object"}, None)) == ""
    assert without_words("Be brief.") == "Be brief."
