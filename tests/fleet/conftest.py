import pytest

from tests.nats_server import NatsServer


@pytest.fixture(scope="session")
def nats_server():
    """A NATS server, one a process of the suite."""
    server = NatsServer()
    yield server
    server.remove()


@pytest.fixture
def own_nats_server():
    """A NATS server that a test may kill."""
    server = NatsServer()
    yield server
    server.remove()
