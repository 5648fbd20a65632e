"""What is said to, and of, a NATS server by whom nothing depends on it."""

from __future__ import annotations

import logging
import math
from typing import Any
from urllib.parse import urlsplit

from anyio import CancelScope
from anyio import move_on_after as within

from streamagent.errors import ConfigError, UnsupportedBackendError

logger = logging.getLogger("streamagent")

PATIENCE = 1.0  # seconds for the server to take something; a hint is not worth more
_SCHEMES = ({"nats", "tls"}, {"ws", "wss"})  # those of one cluster are of one kind


def require_asyncio() -> None:
    """Refuse another event loop."""
    from asyncio import get_running_loop

    try:
        get_running_loop()
    except RuntimeError:
        raise UnsupportedBackendError("NatsBus runs on asyncio, because nats-py does; use asyncio, or no bus") from None


def check_options(url: str, name: str, ack_wait: float, replicas: int) -> None:
    """Refuse what cannot be used; the text shows no password."""
    if not isinstance(url, str) or not _is_cluster(url.split(",")):
        raise ConfigError("NatsBus takes a URL such as nats://host:4222")
    if not isinstance(name, str) or not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
        raise ConfigError(f"NatsBus(name=…) takes letters, digits, '_' and '-', not {name!r:.80}")
    if not isinstance(ack_wait, int | float) or not 0 < ack_wait < math.inf:
        raise ConfigError(f"NatsBus(ack_wait=…) takes seconds above 0, not {ack_wait!r:.80}")
    if replicas not in range(1, 6):
        raise ConfigError(f"NatsBus(replicas=…) is 1 to 5, not {replicas!r:.80}")


def _is_cluster(servers: list[str]) -> bool:
    try:
        urls = [urlsplit(server) for server in servers]
        named = all(url.hostname and url.port != 0 for url in urls)  # `port` raises for what is none
    except ValueError:
        return False
    return named and any({url.scheme for url in urls} <= kind for kind in _SCHEMES)


async def close(client: Any) -> None:
    """Close a client, in whatever state it is."""
    with CancelScope(shield=True), within(PATIENCE):
        try:
            await client.close()
        except Exception:  # foreign code; one that never connected cannot be closed
            logger.debug("a NATS client did not close", exc_info=True)
