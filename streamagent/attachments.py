"""`image` and `file`: messages that bring a picture or a file into a session."""

from __future__ import annotations

import base64
import mimetypes
import os
from pathlib import Path
from typing import Any

from .errors import ConfigError, MessageTooLarge
from .message import Message

IMAGE_BYTES = 5 * 1024 * 1024  # Anthropic's limit for one image, the lowest of the large providers
FILE_BYTES = 20 * 1024 * 1024  # with base64's third on top below the request limits of 32 MB and more

_HEAD = 16  # bytes in which a file shows what it is
_MAGIC = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def image(source: str | os.PathLike[str] | bytes, *, max_bytes: int = IMAGE_BYTES) -> Message:
    """Make a user's message of an image; what it is shows in its first bytes, whatever its name says.

    Args:
        source: The path of a PNG, JPEG, GIF or WebP file, which is read at once; its bytes; or an `http` or `https`
            address, which the provider reads.
        max_bytes: Largest image, in bytes.

    Raises:
        ConfigError: It is no such image, or cannot be read.
        MessageTooLarge: It is larger.
    """
    if isinstance(source, str) and source.lower().startswith(("http://", "https://")):
        return Message(role="user", type="image", query={"url": source})
    data, name = _read(source, max_bytes)
    mime = _sniff(data[:_HEAD])
    if mime not in _IMAGES:
        raise ConfigError(f"{name or 'this'} is no PNG, JPEG, GIF or WebP image; convert it, or send it with file()")
    return _message("image", mime, data, name)


def file(
    source: str | os.PathLike[str] | bytes,
    *,
    name: str | None = None,
    mime: str | None = None,
    max_bytes: int = FILE_BYTES,
) -> Message:
    """Make a user's message of a file; an image becomes what `image` makes of it.

    The model reads text, cut when it is long, and PDF where the provider takes it; of another file its name.

    Args:
        source: The file's path, which is read at once, or its bytes.
        name: What the model is told that it is called; by default the path's last part.
        mime: What it is; by default what its first bytes, its name, or its text say.
        max_bytes: Largest file, in bytes.

    Raises:
        ConfigError: It is empty, or cannot be read.
        MessageTooLarge: It is larger.
    """
    data, found = _read(source, max_bytes)
    name = name or found
    sniffed = _sniff(data[:_HEAD])
    mime = mime or sniffed or mimetypes.guess_type(name)[0] or _guess(data)
    return _message("image" if mime == sniffed and mime in _IMAGES else "file", mime, data, name)


def _read(source: str | os.PathLike[str] | bytes, max_bytes: int) -> tuple[bytes, str]:
    """Return the bytes, and the name of the path."""
    if isinstance(source, bytes):
        data, name = source, ""
    else:
        path = Path(source)
        try:
            with path.open("rb") as opened:
                data, name = opened.read(max_bytes + 1), path.name
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"{str(source)!r:.200} cannot be read: {reason}; give a file's path or bytes") from error
    if len(data) > max_bytes:
        raise MessageTooLarge(f"{name or 'this'} has more than {max_bytes} bytes; make it smaller, or raise max_bytes")
    if not data:
        raise ConfigError(f"{name or 'this'} is empty: there is nothing to send")
    return data, name


def _sniff(head: bytes) -> str:
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _MAGIC.items() if head.startswith(magic)), "")


def _guess(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "text/plain"


def _message(kind: str, mime: str, data: bytes, name: str) -> Message:
    query: dict[str, Any] = {"mime": mime, "data": base64.b64encode(data).decode()}
    return Message(role="user", type=kind, query={**query, "name": name} if name else query)
