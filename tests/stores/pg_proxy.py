"""A TCP proxy on the loopback in front of PostgreSQL, which loses what it is told to lose."""

import socket
import struct
import threading
from contextlib import contextmanager, suppress

COMMIT = b"COMMIT\0"  # the end of the message that says so, and of no other
POLL = 0.05  # seconds between two looks whether a connection was cut
ABRUPTLY = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset

PLANS = {
    "unsent": "COMMIT does not arrive, and both ends are told that the other one has gone",
    "unanswered": "COMMIT is carried out; the answer does not arrive, and both ends are told",
    "stuck": "COMMIT does not arrive, and nobody is told",
    "silent": "COMMIT is carried out; the answer does not arrive, and nobody is told",
}


class Link:
    """One connection: the client's end and the server's."""

    def __init__(self, client, server):
        self.ends = (client, server)
        self.plan = None
        self.gone = False
        for end in self.ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.settimeout(POLL)

    def cut(self, *, abruptly=False):
        """Hang up at both ends; `abruptly`: by a reset."""
        self.gone = True
        for end in self.ends:
            with suppress(OSError):
                if abruptly:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPTLY)
                else:
                    end.shutdown(socket.SHUT_RDWR)

    def received(self, end):
        """Return what comes from an end; nothing once it is cut."""
        while not self.gone:
            with suppress(TimeoutError):
                return end.recv(65536)
        return b""


class Proxy:
    """Takes connections on `port`.

    Args:
        target: The server's port.

    Attributes:
        plans: What happens to the next COMMITs, one each: keys of `PLANS`, or `None` to let one pass.
        refusing: New connections are cut at once.
        piecewise: Everything is passed on byte by byte.
        links: The connections that there are, and were.
    """

    def __init__(self, target):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = []
        self._flows = threading.Event()
        self._flows.set()
        self.port = self._listener.getsockname()[1]
        self.links = []
        self.plans = []
        self.refusing = self.piecewise = False
        self._start(self._listen)

    def cut(self, **how):
        """Lose all connections."""
        for link in self.links:
            link.cut(**how)

    def stall(self):
        """Pass nothing on, and tell nobody, until `resume`."""
        self._flows.clear()

    def resume(self):
        """Pass on what has come."""
        self._flows.set()

    def close(self):
        """End everything."""
        self.resume()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def _start(self, target, *args):
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # it is down
                client.close()
                continue
            link = Link(client, server)
            self.links.append(link)
            self._start(self._pump, link, client, self._upwards)
            self._start(self._pump, link, server, self._downwards)

    def _pump(self, link, source, pass_on):
        """Pass on what comes from one end, which is closed here and nowhere else."""
        with source, suppress(OSError):
            while (data := link.received(source)) and pass_on(link, data):
                pass
            if link.plan != "stuck":
                link.cut()

    def _upwards(self, link, data):
        self._flows.wait()
        if COMMIT in data and self.plans:
            link.plan = self.plans.pop(0)
        if link.plan not in ("unsent", "stuck"):
            self._pass(data, link.ends[1])
        return link.plan != "unsent"

    def _downwards(self, link, data):
        self._flows.wait()
        if link.plan not in ("unanswered", "silent", "stuck"):
            self._pass(data, link.ends[0])
        return link.plan != "unanswered"

    def _pass(self, data, end):
        parts = [data[n : n + 1] for n in range(len(data))] if self.piecewise else [data]
        for part in parts:
            end.sendall(part)


@contextmanager
def open_proxy(target):
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
