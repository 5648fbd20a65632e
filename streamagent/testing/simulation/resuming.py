"""What a simulation asks of a run whose process dies: with the same answers, the same rows (I12)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import AsyncIterable, Sequence
from itertools import count
from random import Random

from anyio import fail_after

from streamagent._core.profiles import profile_for
from streamagent._core.request import build_request
from streamagent.calls import ToolSpec
from streamagent.message import Message
from streamagent.protocols import DEFAULT_SETTINGS, ModelSettings, Stream
from streamagent.resume import CRASHES

from .model import SeededModel
from .programs import DAY, process_of
from .world import Process, World

_MINTED = re.compile(r'"(id|tool_call_id)": "\w*"')  # what a builder makes of ids that a context has twice


class SteadyModel:
    """Improvises by what it is asked: the same request has the same answer, in whichever process and attempt.

    Args:
        seed: What decides besides.
    """

    name = "seeded"

    def __init__(self, seed: int) -> None:
        self._seed = seed

    async def stream(
        self,
        context: AsyncIterable[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        settings: ModelSettings = DEFAULT_SETTINGS,  # noqa: ARG002 - the protocol's
        deadline: float = math.inf,  # noqa: ARG002
    ) -> Stream:
        """Improvise a turn that ends well; see `streamagent.protocols.Model`."""
        given = [message async for message in context]
        request = json.dumps(build_request(given, profile_for("other/model")), sort_keys=True)
        asked = f"{self._seed} {_MINTED.sub('', request)}"
        said = [*SeededModel(Random(asked)).turn(given, tools)]  # noqa: S311 - to be repeated, not to be secret
        calls = any(message.type == "tool_call" for message in said)
        for message in said:
            if message.type != "stop":
                yield message
        yield Message.stop("tool_calls" if calls else "stop", model="other/model")


async def answered(world: World, prompts: Sequence[str]) -> list[Message]:
    """Ask each prompt until it is answered, in one process after the other; whoever is asked for an approval gives it.

    Args:
        world: Where the processes live, and perhaps die; so often in a run that it is not given up.
        prompts: What they ask.

    Returns:
        The rows.
    """
    numbers = count(1)
    with fail_after(DAY):
        for key, prompt in enumerate(prompts):
            world.deaths, alive = 0, False
            while not alive:
                process = Process(world, next(numbers), harmless=world.deaths == CRASHES - 1)
                async with process_of(world, process) as client:
                    await client.ask_until_done(prompt, f"key {key}")
                if not (alive := process.alive):
                    await world.store.retire(process.owner)
    return await world.check()
