"""How a conversation is shaped for a very small model."""

import pytest

from streamagent.calls import ToolSpec
from streamagent.message import Message
from streamagent.models.local_shape import question, results, shape_answer, shape_call


def spec(name, description, **properties):
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return ToolSpec(name=name, description=description, parameters=parameters)


TEXT = {"type": "string"}
STOCK = spec("stock", "Units of a product in stock.", product=TEXT)
READ = spec("read", "Read a file; the products are in products.json.", path=TEXT)


def call(tool="stock", **args):
    return Message(type="tool_call", query={"tool": tool, "id": "1", "args": args})


def result(of, content):
    return Message(role="tool", type="tool_result", content=content, query={"call": of.id, "id": "1"})


def test_two_examples_stand_before_the_question():
    shaped = shape_call([Message.user("How many blue mugs are left?")], [STOCK])
    assert [message.type for message in shaped] == ["text", "tool_call", "tool_result", "text"] * 2 + ["text"]
    assert shaped[0].content == "blue mugs?"
    assert shaped[1].query["args"] == {"product": "blue mugs"}
    assert shaped[-1].content == "How many blue mugs are left?"


def test_the_example_is_of_the_tool_that_the_question_is_about():
    shaped = shape_call([Message.user("Which products are there?")], [STOCK, READ])
    assert shaped[1].query["tool"] == "read"


def test_what_stands_out_in_the_description_is_used_when_nothing_does_in_the_question():
    assert shape_call([Message.user("What do you have?")], [READ])[1].query["args"] == {"path": "products.json"}


def test_what_stands_out_in_the_instructions_is_used_too():
    history = [Message.system("Everything is in notes.txt."), Message.user("What do you have?")]
    plain = spec("read", "Read a file.", path=TEXT)
    assert shape_call(history, [plain])[1].query["args"] == {"path": "notes.txt"}


def test_what_stands_out_in_the_question_comes_first():
    assert shape_call([Message.user("Show a.txt")], [READ])[1].query["args"] == {"path": "a.txt"}


def test_a_tool_without_parameters_has_an_example_too():
    shaped = shape_call([Message.user("What time is it?")], [spec("clock", "The time.")])
    assert (shaped[0].content, shaped[1].query["args"]) == ("clock?", {})


def test_a_tool_that_cannot_be_filled_has_an_example_without_arguments():
    shaped = shape_call([Message.user("x")], [spec("odd", "", id={"type": "string", "format": "uuid"})])
    assert shaped[1].query["args"] == {}


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ('[{"name": "Blue mug", "units": 15, "tags": ["a", "b"]}, 7]', "- Blue mug: 15 units, tags a, b\n- 7"),
        ('{"name": "Blue mug", "at": {"row": 3}}', "- Blue mug: at 3: "),
        ("15", "- blue mugs: 15"),
        ("plenty", "- blue mugs: plenty"),
        ("one\ntwo", "- one\ntwo"),
        ("{}", "- : "),
    ],
)
def test_results_are_lines_before_the_question(content, lines):
    asked = call(product="blue mugs")
    shaped = shape_answer([Message.user("How many?"), asked, result(asked, content)])
    assert shaped[-1].content == f"Data:\n{lines}\n\nHow many?"


def test_a_result_without_its_call_is_a_line_too():
    orphan = Message(role="tool", type="tool_result", content="15")
    assert shape_answer([Message.user("How many?"), orphan])[-1].content.startswith("Data:\n- 15\n")


def test_a_result_of_a_call_without_arguments_is_named_result():
    asked = call("clock")
    assert "- result: 12:30" in shape_answer([Message.user("When?"), asked, result(asked, "12:30")])[-1].content


@pytest.mark.parametrize(("content", "examples"), [("15", 2), ("[1, 2]", 1)])
def test_a_single_value_has_an_example_more(content, examples):
    asked = call(product="mugs")
    assert len(shape_answer([Message.user("x"), asked, result(asked, content)])) == 2 * examples + 1


def test_a_large_result_is_cut():
    asked = call(product="mugs")
    assert len(shape_answer([Message.user("x"), asked, result(asked, "y" * 10_000)])[-1].content) < 3_100


def test_only_results_of_the_last_question_count():
    asked = call(product="mugs")
    history = [Message.user("How many?"), asked, result(asked, "15"), Message(content="15."), Message.user("Thanks")]
    assert results(history) == []
    assert [message.content for message in shape_answer(history)] == ["How many?", "15.", "Thanks"]


def test_a_long_history_is_cut_at_its_start():
    history = [Message.user("a" * 2_000), Message.user("b" * 2_000), Message.user("c")]
    assert [message.content[0] for message in shape_answer(history)] == ["b", "c"]


def test_one_long_question_stays():
    assert len(shape_answer([Message.user("a" * 9_000)])) == 1


def test_without_a_question_it_is_empty():
    assert question([]) == ""
