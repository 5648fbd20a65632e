"""Docstrings in the three common styles."""

import pytest

from streamagent.tools.docstring import parse_docstring

GOOGLE = """Count the stock
    of a product.

    More about it.

    Args:
        product (str, optional): Its name: as on
            the label.

            Or its number.
        depth (list[tuple(int)]): How deep.
        *rest: What else.
        bare:
        not an item

    Returns:
        count: Units, not a parameter.
    """

NUMPY = """Count the stock of a product.

    Parameters
    ----------
    product : str
        Its name: as on
        the label.
    x, y : int, default 3
        A place.
    z
        Height.

    Returns
    -------
    count : int
        Not a parameter.
    """

SPHINX = """Count the stock of a product.
    :param product: Its name: as on
        the label.
    :param int depth: How deep.
    :type depth: int
    :returns: Units.
    """


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GOOGLE, {"product": "Its name: as on the label. Or its number.", "depth": "How deep.", "rest": "What else."}),
        (NUMPY, {"product": "Its name: as on the label.", "x": "A place.", "y": "A place.", "z": "Height."}),
        (SPHINX, {"product": "Its name: as on the label.", "depth": "How deep."}),
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_each_style_gives_summary_and_parameters(text, expected):
    """The first paragraph, and each parameter's text in one line."""
    summary, parameters = parse_docstring(text)
    assert summary == "Count the stock of a product."
    assert {name: text for name, text in parameters.items() if text} == expected


@pytest.mark.parametrize("text", [None, "", "\n\n"])
def test_no_docstring_says_nothing(text):
    """Nothing is a description of nothing."""
    assert parse_docstring(text) == ("", {})


def test_a_docstring_may_begin_with_its_parameters():
    """Then there is no summary."""
    assert parse_docstring("\n    Args:\n        a: First.\n    ") == ("", {"a": "First."})


def test_an_unknown_section_is_no_parameter():
    """Only sections of parameters are read."""
    assert parse_docstring("Do.\n\nRaises:\n    ValueError: Always.\n\nNote\n----\nx : y\n    z")[1] == {}
