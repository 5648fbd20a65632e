"""`ReplayModel` plays recorded provider streams, `Recorder` records them.

A recording is a file of JSON lines. Each line has `at`, the seconds since the request, and one of: `chunk`, a chunk
object; `sse`, text as it came over the network; `error`, `{kind, message, retryable}` of what the stream failed with;
`end`, the last line of a request: `true` when the answer was complete, `false` when it broke off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TextIO

import anyio
import orjson

from streamagent._core.sse import DONE, SSEDecoder, parse_event
from streamagent.errors import ConfigError, ModelError

from .attempt import Chunks
from .chunks import ChunkModel, Request

Line = Mapping[str, Any]


class ReplayModel(ChunkModel):
    """Answer with recorded streams; each request plays the next one, whatever it asks.

    Args:
        recording: A file of JSON lines, or such lines as objects.
        speed: How fast time goes; 0 for no waiting.

    Raises:
        ConfigError: The recording cannot be read; the text names the line.
    """

    def __init__(self, recording: str | Path | Iterable[Line], *, speed: float = 1.0) -> None:
        super().__init__("replay", sleep=self._pause)
        lines = _read(Path(recording)) if isinstance(recording, str | Path) else recording
        self._speed = speed
        self._requests = _requests(list(lines))

    async def chunks(self, request: Request) -> Chunks:  # noqa: ARG002 - the answer is fixed
        """Play the next recorded request; see `ChunkModel.chunks`."""
        lines = next(self._requests, None)
        if lines is None:
            raise ModelError("the recording is over: all its requests were played", kind="protocol")
        decoder = SSEDecoder()
        clock = 0.0
        for line in lines:
            await self._pause(line.get("at", clock) - clock)
            clock = line.get("at", clock)
            if "error" in line:
                error = {"message": "recorded failure", "kind": "provider_error", **line["error"]}
                raise ModelError(error["message"], kind=error["kind"], retryable=bool(error.get("retryable")))
            if line.get("end"):
                yield DONE
            if "chunk" in line:
                yield line["chunk"]
            for event in decoder.feed(line.get("sse", "").encode()):
                chunk = event if event == DONE else parse_event(event)
                if chunk is not None:
                    yield chunk

    async def _pause(self, seconds: float) -> None:
        await anyio.sleep(max(0.0, seconds) / self._speed if self._speed else 0.0)


class Recorder(ChunkModel):
    """Ask another model and write down its stream, for `ReplayModel`. Use it in a `with` block.

    Args:
        model: The model.
        path: The file; requests are appended.
    """

    def __init__(self, model: ChunkModel, path: str | Path) -> None:
        super().__init__(model.name)
        self._model = model
        self._file: TextIO = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - closed by `close`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    async def prepare(self) -> None:
        """Prepare the model."""
        await self._model.prepare()

    async def chunks(self, request: Request) -> Chunks:
        """Pass on the model's chunks; see `ChunkModel.chunks`."""
        start = anyio.current_time()
        lines: list[Line] = []  # one answer, so that concurrent ones are not mixed up
        ended = False

        def note(**line: Any) -> None:
            lines.append({"at": round(anyio.current_time() - start, 6), **line})

        source = self._model.chunks(request)
        try:
            async for chunk in source:
                ended = ended or chunk == DONE
                if isinstance(chunk, Mapping):
                    note(chunk=chunk)
                yield chunk
        except ModelError as error:
            note(error={"kind": error.kind, "message": str(error), "retryable": error.retryable})
            raise
        finally:
            note(end=ended)
            self._file.writelines(orjson.dumps(line).decode() + "\n" for line in lines)
            await source.aclose()


def _read(path: Path) -> Iterator[Line]:
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"the recording cannot be read: {error}") from error
    for number, line in enumerate(text.splitlines(), 1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ConfigError(f"{path}, line {number}: a line is an object with 'chunk', 'sse', 'error' or 'end'")
        yield value


def _requests(lines: list[Line]) -> Iterator[list[Line]]:
    """Cut the recording after each `end`; the last request may lack it, and is taken for complete."""
    request: list[Line] = []
    for line in lines:
        request.append(line)
        if "end" in line:
            yield request
            request = []
    if request:
        yield [*request, {"end": "sse" not in request[-1]}]
