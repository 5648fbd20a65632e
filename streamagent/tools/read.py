"""`read`: files below one folder, for a model."""

from __future__ import annotations

import codecs
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from streamagent._core.output import MAX_BYTES, MAX_LINES
from streamagent.calls import Output, Tool, ToolContext
from streamagent.errors import ConfigError, ToolError
from streamagent.message import clean_text

from .beneath import open_beneath, real_root
from .function import tool

COUNTED_BYTES = 64 * 1024 * 1024  # a larger file's lines are not counted to its end: that would take seconds
_SNIFFED = 8 * 1024  # bytes in which a file shows what it is; git looks at about as many

_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_BYTE_ORDER_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def read_tool(root: str | os.PathLike[str], *, max_lines: int = MAX_LINES, max_bytes: int = MAX_BYTES) -> Tool:
    """Make the tool `read(path, offset, limit)`, which reads text files below `root` and names images.

    Args:
        root: The folder; nothing outside of it can be read, whatever links point there.
        max_lines: Longest page, in lines.
        max_bytes: Longest page, in bytes of UTF-8.

    Raises:
        ConfigError: `root` is no folder, or a limit is below 1.
    """
    if max_lines < 1 or max_bytes < 1:
        raise ConfigError(f"a page has 1 line and 1 byte or more, not {max_lines} and {max_bytes}")
    folder = real_root(root)

    @tool
    def read(context: ToolContext, path: str, offset: int = 1, limit: int = max_lines) -> Output:
        """Read a text file page by page, or look at what an image file is.

        Args:
            context: Of the call.
            path: The file, relative to the folder that can be read.
            offset: First line to read, counted from 1.
            limit: How many lines to read.
        """
        if offset < 1 or limit < 1:
            raise ToolError(f"offset and limit count from 1, not {offset} and {limit}")
        with open_beneath(folder, path) as file:
            page = _Page(first=offset, max_lines=min(limit, max_lines), max_bytes=max_bytes)
            return _image(file, path) or _text(file, path, page, context.cancelled.is_set)

    return read


@dataclass(slots=True)
class _Page:
    """The lines of a text from one on, as many as fit."""

    first: int
    max_lines: int
    max_bytes: int
    lines: list[str] = field(default_factory=list)
    size: int = 0
    full: bool = False

    def offer(self, line: str) -> None:
        """Take the next line, or be full; a line that is too long for any page is taken in part."""
        size = len(line.encode())
        self.full = len(self.lines) == self.max_lines or (self.lines != [] and self.size + size > self.max_bytes)
        if not self.full:
            self.lines.append(line)
            self.size += size

    def output(self, total: str) -> Output:
        """Return the lines, and what is left out of how many."""
        last = self.first + len(self.lines) - 1
        text, notices = "".join(self.lines), []
        if self.size > self.max_bytes:
            text = text.encode()[: self.max_bytes].decode(errors="ignore")
            notices.append(f"line {last} is longer than {self.max_bytes} bytes; this is its beginning")
        if self.full:
            notices.append(f"lines {self.first} to {last} of {total}; read on with offset={last + 1}")
        if not notices:
            return Output(text)
        return Output(f"{text}\n[{'. '.join(notices)}]", details={"first": self.first, "last": last})


def _image(file: BinaryIO, path: str) -> Output | None:
    head = file.read(16)
    file.seek(0)
    mime = next((mime for magic, mime in _IMAGES.items() if head.startswith(magic)), None)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        mime = "image/webp"
    if mime is None:
        return None
    size = os.fstat(file.fileno()).st_size
    return Output(f"{path} is an image ({mime}, {size} bytes)", details={"path": path, "mime": mime, "bytes": size})


def _text(file: BinaryIO, path: str, page: _Page, cancelled: Callable[[], bool]) -> Output:
    """Fill the page; read no further than the count of lines needs."""
    size = os.fstat(file.fileno()).st_size
    number = 0
    with io.TextIOWrapper(file, _encoding(file, path, size), errors="replace", newline="\n") as text:
        for number, line in enumerate(_lines(text, page.max_bytes + 1, cancelled), 1):
            if number >= page.first and not page.full:
                page.offer(line)
            if cancelled() or (page.full and size > COUNTED_BYTES):
                return page.output(f"a file of {size} bytes")
    if number == 0 and page.first == 1:
        return Output("(the file is empty)")
    if number < page.first:
        raise ToolError(f"offset {page.first} is past the end: {path!r} has {number} lines")
    return page.output(str(number))


def _encoding(file: BinaryIO, path: str, size: int) -> str:
    head = file.read(_SNIFFED)
    file.seek(0)
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    if b"\0" in head:
        raise ToolError(f"{path!r} is a binary file of {size} bytes; only text and images can be read")
    return "utf-8"


def _lines(text: io.TextIOWrapper, room: int, cancelled: Callable[[], bool]) -> Iterator[str]:
    """Yield each line, clean, of a long one the first `room` characters or more; the rest of it is passed over."""
    while part := text.readline(room):
        line = clean_text(part)
        while part and not part.endswith("\n") and not cancelled():
            part = text.readline(_SNIFFED)
            if len(line) < room:
                line += clean_text(part)
        yield line
