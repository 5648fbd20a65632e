"""What a docstring says about a function and its parameters: Google, NumPy and Sphinx style."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

_GOOGLE_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Keyword Args):\s*$")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(?P<names>\w+)(?:\s*\(.*?\))?\s*:(?:\s+(?P<text>.*))?$")
_NUMPY_SECTION = re.compile(r"(?:Other )?Parameters\s*$")
_NUMPY_ITEM = re.compile(r"(?P<names>\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::(?P<type>.*))?$")
_SPHINX_ITEM = re.compile(r":(?:param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(?P<names>\w+):\s*(?P<text>.*)$")


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Read a docstring.

    Args:
        text: The docstring, or `None`.

    Returns:
        The first paragraph in one line, and the description of each parameter in one line.
    """
    lines = inspect.cleandoc(text or "").split("\n")
    parameters = {
        **_items(lines, _SPHINX_ITEM),
        **_items(_google(lines), _GOOGLE_ITEM),
        **_items(_numpy(lines), _NUMPY_ITEM),
    }
    return " ".join(_first_paragraph(lines)), parameters


def _first_paragraph(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line or line.startswith(":") or _GOOGLE_SECTION.match(line):
            return
        yield line.strip()


def _google(lines: list[str]) -> list[str]:
    """Return the indented lines below `Args:`, moved to the left."""
    body: list[str] = []
    inside = False
    for line in lines:
        if line[:1].strip():
            inside = _GOOGLE_SECTION.match(line) is not None
        elif inside:
            body.append(line)
    return inspect.cleandoc("\n".join(["", *body])).split("\n")


def _numpy(lines: list[str]) -> list[str]:
    """Return the lines below an underlined `Parameters`, up to the next underlined title."""
    body: list[str] = []
    inside = False
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below and not below.strip("-"):
            inside = _NUMPY_SECTION.match(line) is not None
        elif inside and line.strip("-"):
            body.append(line)
    return body


def _items(lines: list[str], pattern: re.Pattern[str]) -> dict[str, str]:
    """Collect items, which begin at the left edge, with the indented lines that continue them."""
    found: dict[str, list[str]] = {}
    text: list[str] = []
    for line in lines:
        if not line or line[0].isspace():
            text.append(line.strip())
            continue
        match = pattern.match(line)
        text = [match.groupdict().get("text") or ""] if match else []
        for name in re.findall(r"\w+", match["names"]) if match else ():
            found[name] = text
    return {name: " ".join(filter(None, text)) for name, text in found.items()}
