"""A chunk model whose answers are scripts, for tests of what all chunk models share."""

import anyio

from streamagent._core.sse import DONE
from streamagent.models.chunks import ChunkModel
from streamagent.models.retry import RetryPolicy


def delta(finish=None, **fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


class Naps:
    """Records what was slept instead of sleeping."""

    def __init__(self):
        self.taken = []

    async def __call__(self, seconds):
        self.taken.append(seconds)


class ScriptedModel(ChunkModel):
    """Plays one list of items for each request: chunks, `DONE`, errors to raise, `...` to hang."""

    def __init__(self, *scripts, **options):
        self.naps = Naps()
        super().__init__("script/model", sleep=self.naps, retry=RetryPolicy(jitter=lambda: 1.0), **options)
        self.scripts = list(scripts)
        self.requests = []
        self.closed = 0

    async def chunks(self, request):
        self.requests.append(request)
        try:
            for item in self.scripts.pop(0):
                if isinstance(item, Exception):
                    raise item
                if item is ...:
                    await anyio.sleep_forever()
                yield item
        finally:
            self.closed += 1


ANSWER = [delta(content="Hel"), delta(content="lo"), delta("stop"), {"choices": [], "usage": {"total_tokens": 3}}, DONE]
