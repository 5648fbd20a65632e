"""`NatsBus`: NATS JetStream hands out which sessions have something to do."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from anyio import AsyncContextManagerMixin, CancelScope, Event, create_task_group, sleep
from anyio import move_on_after as within

from streamagent.errors import ConfigError

from ._order import NatsOrder, session_of
from ._server import PATIENCE, check_options, close, require_asyncio

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js import JetStreamContext

logger = logging.getLogger("streamagent")

CONSUMER = "workers"
HINT = "NatsBus needs nats-py: pip install 'streamagent[nats]'"
ACK_WAIT = 30.0  # seconds: twice a lease, so that the lease of whoever died with an order is over
DELIVERIES = 3  # as often as a run is tried whose process dies each time
RETRY = 1.0  # seconds between two tries to reach the server
PULL = 5.0  # seconds for which one request for an order stands at the server
WAITING = 100_000  # such requests at once: one a worker
_UNAVAILABLE = 503  # what the server says that has no JetStream
MOST = 1_000_000  # orders that wait, one a session; the oldest are dropped beyond, and found by looking
AGE = 3600.0  # seconds after which an order is dropped: whatever it was about was found by looking


class NatsBus(AsyncContextManagerMixin):
    """Hand out sessions by a NATS server with JetStream; asyncio's.

    Orders are messages of a work-queue stream: each goes to one worker, and to another one when that says nothing for
    `ack_wait` seconds. After three times it is left to the workers' looking, and a warning names the session. Per
    session one order waits at most.

    Args:
        url: `nats://user:password@host:port`, or several of one cluster, with commas between; errors show neither user
            nor password.
        name: Of the stream, and how its subjects begin. One store and tenant has one name.
        ack_wait: After which silence of a worker an order goes to another one, in seconds.
        replicas: How many servers of a cluster keep the stream.

    Raises:
        ConfigError: An option cannot be used, or nats-py is not installed.
        UnsupportedBackendError: On entering: the event loop is not asyncio's.
    """

    def __init__(self, url: str, *, name: str = "streamagent", ack_wait: float = ACK_WAIT, replicas: int = 1) -> None:
        check_options(url, name, ack_wait, replicas)
        try:
            import nats  # noqa: F401 - says here that it is missing, not in a task
        except ImportError as error:
            raise ConfigError(HINT) from error
        self._servers = url.split(",")
        self._name = name
        self._ack_wait = ack_wait
        self._replicas = replicas
        self._client: Client | None = None
        self._ready = Event()
        self._failing = False

    def __repr__(self) -> str:
        return f"NatsBus({self._place!r}, name={self._name!r})"

    @property
    def _place(self) -> str:
        """Where the servers are, without users and passwords."""
        return ",".join(server.rpartition("@")[2] for server in self._servers)

    @property
    def interval(self) -> float:
        """How often whoever works on an order says so, in seconds."""
        return self._ack_wait / 3

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self, None]:
        require_asyncio()
        try:
            async with create_task_group() as tasks:
                tasks.start_soon(self._connect)
                try:
                    yield self
                finally:
                    tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:  # nobody sees that there is one
            error = group.exceptions[0] if len(group.exceptions) == 1 else group
            raise error from error.__cause__
        finally:
            client, self._client, self._ready = self._client, None, Event()
            if client is not None:
                await close(client)

    async def announce(self, session: str) -> None:
        """Say that a session has something to do; it takes the place of what was said of it before."""
        if not self._ready.is_set() or self._client is None or not self._client.is_connected:
            logger.debug("nobody is told that session %s has something to do: no NATS server", session)
            return
        body = json.dumps({"session": session}).encode()
        await self._try("announce", self._jetstream.publish(self._subject(session), body, timeout=PATIENCE))

    async def listen(self) -> AsyncGenerator[NatsOrder, None]:
        """Take orders; without a server it waits until there is one."""
        pull: JetStreamContext.PullSubscription | None = None
        try:
            while True:
                await self._ready.wait()
                try:
                    pull = pull or await self._jetstream.pull_subscribe_bind(consumer=CONSUMER, stream=self._name)
                    [message] = await pull.fetch(1, timeout=PULL)
                except TimeoutError:
                    continue
                except _errors():
                    logger.debug("no orders from NATS", exc_info=True)
                    pull = None
                    await sleep(RETRY)
                    await self._try("prepare", self._prepare())  # the server may have forgotten the stream
                    continue
                order = await self._read(message)
                if order is not None:
                    yield order
        finally:
            if pull is not None:  # else the next order would come to a request that nobody waits for any more
                with CancelScope(shield=True):
                    await _patiently(pull.unsubscribe())

    @property
    def _jetstream(self) -> JetStreamContext:
        assert self._client is not None  # noqa: S101 - `_ready` is set
        return self._client.jetstream(timeout=PATIENCE)

    def _subject(self, session: str) -> str:
        """Name a session in the alphabet of subjects."""
        return f"{self._name}.work.{hashlib.sha256(session.encode(errors='surrogatepass')).hexdigest()[:32]}"

    async def _connect(self) -> None:
        """Connect, and make what is needed, however long that takes."""
        while not self._ready.is_set():
            try:
                if self._client is None or self._client.is_closed:
                    await self._open()
                await self._prepare()
                await self._watch()
                self._ready.set()
                self._failing = False
            except Exception as error:  # noqa: BLE001 - foreign code; a bus is a hint
                told = f"{_reason(error)}{_remedy(error, self._name)}"
                self._warn(f"cannot use NATS at {self._place} yet; workers look by themselves: {told}")
                await sleep(RETRY)

    async def _open(self) -> None:
        """Connect a client, which from then on connects again by itself."""
        from nats.aio.client import Client

        client = self._client = Client()
        try:
            await client.connect(
                self._servers,
                name="streamagent",
                connect_timeout=2,
                reconnect_time_wait=1,
                max_reconnect_attempts=-1,
                error_cb=self._missed,
                disconnected_cb=self._told("NATS went away; workers look by themselves"),
                reconnected_cb=self._told("NATS is back"),
            )
        except Exception:
            self._client = None
            await close(client)
            raise
        self._failing = False

    async def _prepare(self) -> None:
        """Make the stream and its consumer, if they are not there."""
        from nats.js.api import ConsumerConfig, RetentionPolicy, StreamConfig

        stream = StreamConfig(
            name=self._name,
            subjects=[f"{self._name}.work.*"],
            retention=RetentionPolicy.WORK_QUEUE,
            max_msgs_per_subject=1,
            max_msgs=MOST,
            max_age=AGE,
            num_replicas=self._replicas,
        )
        consumer = ConsumerConfig(
            durable_name=CONSUMER,
            ack_wait=self._ack_wait,
            max_deliver=DELIVERIES,
            max_waiting=WAITING,
            max_ack_pending=-1,
        )
        await self._jetstream.add_stream(stream)
        await self._jetstream.add_consumer(self._name, consumer)

    async def _watch(self) -> None:
        """Hear of orders that came to nothing each time."""
        assert self._client is not None  # noqa: S101 - it is connected
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{self._name}.{CONSUMER}"
        await self._client.subscribe(subject, queue="streamagent", cb=self._report)

    async def _read(self, message: Msg) -> NatsOrder | None:
        """Take a message for what it says; what says nothing is dropped."""
        session = session_of(message.data)
        if session is None:
            logger.warning("a message of stream %s is no order, and is dropped", self._name)
            await _patiently(message.term())
            return None
        return NatsOrder(message, session, _patiently)

    async def _report(self, advisory: Msg) -> None:
        """Say of an order that came to nothing each time; what is left of it is removed."""
        await self._try("report", self._drop(json.loads(advisory.data)["stream_seq"]))

    async def _drop(self, sequence: int) -> None:
        found = await self._jetstream.get_msg(self._name, sequence)
        await self._jetstream.delete_msg(self._name, sequence)
        logger.warning(
            "session %s was handed out %d times and nobody came to its end; it is left to the workers' looking",
            session_of(found.data or b""),
            DELIVERIES,
        )

    async def _try(self, what: str, call: Any) -> None:
        """Do something that nothing depends on."""
        try:
            await call
        except _errors() as error:
            self._warn(f"NATS: cannot {what}: {_reason(error)}")
        else:
            self._failing = False

    def _told(self, text: str) -> Any:
        async def tell() -> None:
            if self._client is not None:  # else it is this process that goes away
                logger.info(text)

        return tell

    async def _missed(self, error: Exception) -> None:
        """Hear from the client what failed; it tries again by itself."""
        logger.debug("NATS: %r", error)
        if self._client is not None and not self._client.is_connected:
            self._warn(f"cannot reach NATS at {self._place}; workers look by themselves meanwhile: {_reason(error)}")

    def _warn(self, text: str) -> None:
        """Say it once, not each time."""
        logger.log(logging.DEBUG if self._failing else logging.WARNING, text)
        self._failing = True


def _errors() -> tuple[type[Exception], ...]:
    """Return what the client raises when the server is not there, does not answer in time, or says no."""
    from nats.errors import Error

    return (Error, OSError, EOFError)


def _reason(error: Exception) -> str:
    """Say what is wrong, in the server's words if it has some; another error may quote the password."""
    said = getattr(error, "description", None) or (str(error) if isinstance(error, _errors()) else "")
    return f"{type(error).__name__}: {said:.200}" if said else type(error).__name__


def _remedy(error: Exception, stream: str) -> str:
    """Say what to do about a stream that the server does not make."""
    from nats.errors import NoRespondersError
    from nats.js.errors import APIError

    code = getattr(error, "code", None)
    if isinstance(error, NoRespondersError) or code == _UNAVAILABLE:
        return "; does the server have JetStream (nats-server -js)?"
    if not isinstance(error, APIError):
        return ""
    return (
        f"; give NatsBus the options that stream {stream} was made with, or another name=, or delete the stream: "
        f"nats stream rm {stream}"
    )


async def _patiently(call: Any) -> None:
    """Tell the server something about an order; an order that is lost for that comes again."""
    with within(PATIENCE):
        try:
            await call
        except _errors():
            logger.debug("NATS did not hear of an order", exc_info=True)
