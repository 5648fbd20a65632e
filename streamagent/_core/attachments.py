"""Images and files of the user as a provider takes them: parts of a message, text, or a note that one was left out."""

from __future__ import annotations

import binascii
from typing import Any

from streamagent.message import Message, clean_text

from .profiles import Profile

TEXT_CHARS = 100_000  # characters of a text file that are sent, about 25,000 tokens: it cannot crowd out the rest
_TEXT_TYPES = frozenset(
    f"application/{name}" for name in ("json", "ld+json", "javascript", "sql", "toml", "xml", "yaml", "x-yaml", "x-sh")
)


def is_text(mime: str) -> bool:
    """Tell whether files of a MIME type can be read as text."""
    return mime.startswith("text/") or mime in _TEXT_TYPES


def attachment(message: Message, profile: Profile) -> str | list[dict[str, Any]]:
    """Return what is sent of a message of type `image` or `file`.

    Args:
        message: Its query has `mime`, `name`, and `data` (base64) or `url`.
        profile: What the provider takes.

    Returns:
        Content parts, or text: of a text file its beginning, of what cannot be sent that there was one.
    """
    query = message.query or {}
    mime, url, data = (str(query.get(key) or "") for key in ("mime", "url", "data"))
    name = clean_text(str(query.get("name") or mime or "unnamed"))
    if message.role == "user" and message.type == "image" and (url or data):
        return [{"type": "image_url", "image_url": {"url": url or f"data:{mime or 'image/png'};base64,{data}"}}]
    if message.role == "user" and message.type == "file" and data:
        if mime in profile.files:
            return [{"type": "file", "file": {"filename": name, "file_data": f"data:{mime};base64,{data}"}}]
        if is_text(mime) and (text := _text(data)) is not None:
            return f"[file: {name}]\n{text}"
    return f"[{message.type} left out: {name}]"


def _text(data: str) -> str | None:
    """Decode the beginning of a text file; `None` when it is not base64."""
    encoded = data[: TEXT_CHARS // 3 * 16 + 16]  # a character has at most 4 bytes, 3 bytes are 4 of base64
    try:
        whole = binascii.a2b_base64(encoded, strict_mode=True).decode(errors="replace")
    except binascii.Error:
        return None
    text = clean_text(whole[:TEXT_CHARS])
    cut = len(whole) > TEXT_CHARS or len(encoded) < len(data)
    return f"{text}\n[… the file goes on: about {len(data) * 3 // 4} bytes in all]" if cut else text
