"""`image` and `file`: what becomes of paths, bytes and addresses."""

import base64

import pytest

from streamagent._core.request import build_request
from streamagent.attachments import file, image
from streamagent.errors import ConfigError, MessageTooLarge
from streamagent.message import Message

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 8
KINDS = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0",
    "image/gif": b"GIF89a",
    "image/webp": b"RIFF\x10\0\0\0WEBPVP8 ",
}


@pytest.mark.parametrize("mime", KINDS)
def test_an_image_is_known_by_its_first_bytes(mime):
    message = image(KINDS[mime])
    assert (message.role, message.type) == ("user", "image")
    assert message.query == {"mime": mime, "data": base64.b64encode(KINDS[mime]).decode()}


@pytest.mark.parametrize("kind", [str, lambda path: path])
def test_an_image_is_read_from_a_path_whatever_its_name_says(tmp_path, kind):
    path = tmp_path / "a.jpg"
    path.write_bytes(PNG)
    query = image(kind(path)).query
    assert (query["mime"], query["name"], base64.b64decode(query["data"])) == ("image/png", "a.jpg", PNG)


@pytest.mark.parametrize("url", ["https://example.com/a.png", "HTTP://example.com/b"])
def test_an_address_is_left_to_the_provider(url):
    assert image(url).query == {"url": url}
    assert build_request([image(url)])[0]["content"] == [{"type": "image_url", "image_url": {"url": url}}]


def test_a_message_of_an_image_survives_json():
    message = image(PNG)
    assert Message.from_json(message.to_json()) == message


@pytest.mark.parametrize("make", [image, file])
def test_the_limit_is_met_and_not_passed(make):
    assert make(PNG, max_bytes=len(PNG)).type == "image"
    with pytest.raises(MessageTooLarge, match="more than 15 bytes; make it smaller, or raise max_bytes"):
        make(PNG, max_bytes=len(PNG) - 1)


def test_no_more_of_a_file_is_read_than_the_limit(tmp_path):
    path = tmp_path / "huge.png"
    with path.open("wb") as opened:
        opened.truncate(1 << 40)
    with pytest.raises(MessageTooLarge, match=r"huge\.png"):
        image(path)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (b"", "empty"),
        (b"<svg/>", "no PNG, JPEG, GIF or WebP"),
        (b"%PDF-1.7", r"send it with file\(\)"),
        ("/no/such/file", "cannot be read: No such file or directory; give a file's path or bytes"),
        ("a\0b", "cannot be read"),
        ("data:image/png;base64,QUJD", "cannot be read"),
    ],
)
def test_what_is_no_image_is_refused(source, said):
    with pytest.raises(ConfigError, match=said):
        image(source)


@pytest.mark.parametrize(
    ("data", "options", "mime"),
    [
        (b"%PDF-1.7", {}, "application/pdf"),
        (b"a;b", {"name": "a.csv"}, "text/csv"),
        (b"hello", {}, "text/plain"),
        (b"\xff\x00", {}, "application/octet-stream"),
        (b"hello", {"mime": "application/toml"}, "application/toml"),
        (PNG, {"mime": "application/x-thing"}, "application/x-thing"),
        (b"hello", {"mime": "image/png"}, "image/png"),
    ],
)
def test_what_a_file_is_comes_from_its_bytes_its_name_its_text_or_the_caller(data, options, mime):
    message = file(data, **options)
    assert (message.type, message.query["mime"]) == ("file", mime)


def test_a_file_has_its_own_name_or_a_given_one(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Remember.")
    assert build_request([file(path)])[0]["content"] == "[file: notes.txt]\nRemember."
    assert file(path, name="other").query["name"] == "other"


def test_an_image_is_an_image_also_as_a_file():
    assert file(PNG).type == "image"
