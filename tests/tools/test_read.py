"""The tool `read`: pages of text, names of images, and clear refusals."""

import codecs
import tracemalloc

import pytest

from streamagent._core.output import MAX_BYTES, MAX_LINES
from streamagent.calls import Output, ToolContext
from streamagent.errors import ConfigError, ToolError
from streamagent.tools import read as module
from streamagent.tools.read import read_tool

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    """One backend: nothing here depends on the event loop; the threads are tested on all."""
    return "asyncio"


@pytest.fixture
def folder(tmp_path):
    def write(data, name="file"):
        (tmp_path / name).write_bytes(data if isinstance(data, bytes) else data.encode())
        return tmp_path

    return write


def make_context():
    return ToolContext(session="s", call_id="c", idempotency_key="k")


async def read(root, *, path="file", max_lines=MAX_LINES, max_bytes=MAX_BYTES, context=None, **arguments):
    reader = read_tool(root, max_lines=max_lines, max_bytes=max_bytes)
    return await reader.run({"path": path, **arguments}, context or make_context())


def lines(count):
    return "".join(f"line {number}\n" for number in range(1, count + 1))


async def test_the_model_is_told_how_to_page(folder):
    """The tool's own spec."""
    spec = read_tool(folder("")).spec
    assert spec.name == "read"
    assert spec.parameters["required"] == ["path"]
    assert spec.parameters["properties"]["offset"]["default"] == 1
    assert all(found["description"] for found in spec.parameters["properties"].values())


async def test_a_short_file_comes_whole(folder):
    """Without a notice; line ends are kept."""
    assert await read(folder("a\r\nb\n")) == Output("a\r\nb\n")


async def test_a_page_says_where_to_go_on(folder):
    """The lines shown, of how many, and the next offset."""
    output = await read(folder(lines(150)), limit=50)
    assert output.content == f"{lines(50)}\n[lines 1 to 50 of 150; read on with offset=51]"
    assert output.details == {"first": 1, "last": 50}


async def test_the_next_page_begins_there(folder):
    """And the last one has no notice."""
    output = await read(folder(lines(3)), offset=2)
    assert output == Output("line 2\nline 3\n")


@pytest.mark.parametrize(("limit", "whole"), [(3, True), (2, False)])
async def test_a_limit_of_lines_is_exact(folder, limit, whole):
    """As many as the file has are the whole file."""
    assert ("offset" not in (await read(folder(lines(3)), limit=limit)).content) is whole


@pytest.mark.parametrize(("count", "whole"), [(MAX_LINES, True), (MAX_LINES + 1, False)])
async def test_no_page_is_longer_than_the_tools_own_limit(folder, count, whole):
    """Whatever limit a model asks for."""
    output = await read(folder("x\n" * count), limit=10_000)
    assert ("read on" not in output.content) is whole
    assert output.content.count("x\n") == MAX_LINES


@pytest.mark.parametrize(("max_bytes", "last"), [(14, 2), (13, 1)])
async def test_a_page_has_whole_lines_within_its_bytes(folder, max_bytes, last):
    """A line that does not fit is the next page's first."""
    output = await read(folder(lines(3)), max_bytes=max_bytes)
    assert output.content == f"{lines(last)}\n[lines 1 to {last} of 3; read on with offset={last + 1}]"


async def test_a_line_that_is_too_long_is_shown_in_part(folder):
    """The cut splits no character, and the next line can be read."""
    root = folder("ä" * 50_000 + "\nnext\n")
    output = await read(root, max_bytes=11)
    notice = "line 1 is longer than 11 bytes; this is its beginning. lines 1 to 1 of 2; read on with offset=2"
    assert output.content == f"{'ä' * 5}\n[{notice}]"
    assert await read(root, max_bytes=11, offset=2) == Output("next\n")


@pytest.mark.parametrize(("length", "whole"), [(100, True), (101, False)])
async def test_a_single_line_is_exact_at_the_limit(folder, length, whole):
    """As many bytes as the page has are the whole line."""
    output = await read(folder("x" * length), max_bytes=100)
    assert (output == Output("x" * length)) is whole
    assert output.content.count("x") == 100


@pytest.mark.parametrize(("text", "count"), [("a\nb", 2), ("a\nb\n", 2), ("", 0)])
async def test_an_offset_past_the_end_is_an_error(folder, text, count):
    """With the number of lines; the last line still is one."""
    with pytest.raises(ToolError, match=f"past the end: 'file' has {count} lines"):
        await read(folder(text), offset=max(count, 1) + 1)


@pytest.mark.parametrize("arguments", [{"offset": 0}, {"limit": 0}, {"offset": -1}])
async def test_offset_and_limit_count_from_one(folder, arguments):
    """Zero is no line."""
    with pytest.raises(ToolError, match="count from 1"):
        await read(folder("a"), **arguments)


async def test_an_empty_file_is_said(folder):
    """An empty answer would look like a failure."""
    assert await read(folder("")) == Output("(the file is empty)")


@pytest.mark.parametrize(
    ("data", "mime"),
    [
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 20, "image/png"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 20, "image/jpeg"),
        (b"GIF87a" + b"\0" * 20, "image/gif"),
        (b"GIF89a" + b"\0" * 20, "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
async def test_an_image_is_named_by_what_it_is(folder, data, mime):
    """Its first bytes decide, not its name."""
    output = await read(folder(data))
    assert output.content == f"file is an image ({mime}, {len(data)} bytes)"
    assert output.details == {"path": "file", "mime": mime, "bytes": len(data)}


@pytest.mark.parametrize("data", [b"RIFF\0\0\0\0WAVEfmt ", b"\x7fELF\0\0", b"a" * 8_191 + b"\0"])
async def test_a_binary_file_is_refused(folder, data):
    """A NUL where text begins is no text."""
    with pytest.raises(ToolError, match=f"binary file of {len(data)} bytes"):
        await read(folder(data))


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8 + "ä\nb\n".encode(),
        "ä\nb\n".encode("utf-16"),
        codecs.BOM_UTF16_BE + "ä\nb\n".encode("utf-16-be"),
        "ä\nb\n".encode(),
    ],
    ids=["utf-8 with mark", "utf-16 le", "utf-16 be", "utf-8"],
)
async def test_a_byte_order_mark_gives_the_encoding(folder, data):
    """The mark itself is not text."""
    assert await read(folder(data)) == Output("ä\nb\n")
    assert (await read(folder(data), limit=1)).content.startswith("ä\n\n[lines 1 to 1 of 2")


async def test_text_that_is_not_utf8_is_replaced_and_clean(folder):
    """What cannot be read is U+FFFD; NUL beyond the first look goes."""
    output = await read(folder(b"\xe9" + b"a" * 8_192 + b"\0b"))
    assert output.content == "\ufffd" + "a" * 8_192 + "b"


@pytest.mark.parametrize(("length", "whole"), [(MAX_BYTES - 1, True), (MAX_BYTES, True), (MAX_BYTES + 1, False)])
async def test_a_long_line_is_measured_without_its_nuls(folder, length, whole):
    """It comes whole when its text fits, and says so when it does not."""
    text = "x" * 8_192 + "\0x" * (length - 8_192)
    output = await read(folder(text))
    assert output.content.startswith("x" * min(length, MAX_BYTES))
    assert ("is longer than" not in output.content) is whole


async def test_a_huge_file_is_not_counted_to_its_end(folder, monkeypatch):
    """At the limit it is counted, beyond it the size is told."""
    root = folder(lines(3))
    monkeypatch.setattr(module, "COUNTED_BYTES", 21)
    assert "lines 1 to 1 of 3;" in (await read(root, limit=1)).content
    monkeypatch.setattr(module, "COUNTED_BYTES", 20)
    assert "lines 1 to 1 of a file of 21 bytes;" in (await read(root, limit=1)).content
    assert await read(root) == Output(lines(3))


async def test_memory_is_bounded_by_the_page(folder, tmp_path):
    """A sparse file of 64 MiB, in one line."""
    folder("x" * 10_000)
    with (tmp_path / "file").open("r+b") as file:
        file.truncate(64 * 1024 * 1024)
    await read(tmp_path, max_bytes=100)
    tracemalloc.start()
    try:
        output = await read(tmp_path, max_bytes=100)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert output.content.startswith("x" * 100 + "\n[line 1 is longer")


async def test_a_read_that_nobody_waits_for_stops(folder):
    """It looks at each line, and within long ones."""
    context = make_context()
    context.cancelled.set()
    output = await read(folder(lines(3)), context=context, limit=1)
    assert output == Output("line 1\n")
    assert (await read(folder("x" * 50), context=context, max_bytes=10)).content.startswith("x" * 10 + "\n[line 1")


async def test_only_what_is_below_the_root_is_read(folder):
    """The rest of the promise is tested with `open_beneath`."""
    with pytest.raises(ToolError, match="outside"):
        await read(folder("a"), path="../file")


@pytest.mark.parametrize("limits", [{"max_lines": 0}, {"max_bytes": 0}])
def test_a_page_of_nothing_is_refused(folder, limits):
    """When the tool is made."""
    with pytest.raises(ConfigError, match="1 line and 1 byte"):
        read_tool(folder("a"), **limits)
