"""Recorded streams, played and written."""

import orjson
import pytest

from streamagent.errors import ConfigError, ModelError
from streamagent.models.replay import Recorder, ReplayModel

from .script import ANSWER, ScriptedModel, delta

pytestmark = pytest.mark.anyio

CHUNKS = [{"at": 0.1, "chunk": delta(content="Hel")}, {"at": 0.2, "chunk": delta(content="lo")}]
SSE = [
    {"at": 0, "sse": 'data: {"choices": [{"delta": {"content": "Hi"}}]}\n'},
    {"at": 0, "sse": "\n: ping\n\ndata: [DONE]\n\n"},
]


class Pauses(ReplayModel):
    """Notes its pauses instead of waiting."""

    def __init__(self, *args, **options):
        self.taken = []
        super().__init__(*args, **options)

    async def _pause(self, seconds):
        self.taken.append(round(seconds, 6))


async def test_chunks_are_played():
    assert str(await ReplayModel(CHUNKS, speed=0).send("Hi")) == "Hello"


async def test_what_came_over_the_network_is_played():
    result = await ReplayModel(SSE, speed=0).send("Hi")
    assert (str(result), result.reason) == ("Hi", "stop")


async def test_what_broke_off_breaks_off():
    result = await ReplayModel([*CHUNKS, {"at": 0.3, "end": False}], speed=0).send("Hi")
    assert result.error["kind"] == "truncated"


async def test_network_text_without_proof_of_its_end_breaks_off():
    assert (await ReplayModel([*SSE[:1], {"sse": "\n"}], speed=0).send("Hi")).error["kind"] == "truncated"


async def test_events_that_mean_nothing_are_skipped():
    lines = [{"at": 0, "sse": 'data: {"ping": 1}\n\n'}, *SSE]
    assert str(await ReplayModel(lines, speed=0).send("Hi")) == "Hi"


async def test_a_recorded_failure_fails():
    error = {"error": {"kind": "overloaded", "message": "busy", "retryable": False}}
    result = await ReplayModel([*CHUNKS, error], speed=0).send("Hi")
    assert (result.text, result.error["kind"]) == ("Hello", "overloaded")


async def test_requests_are_played_one_after_the_other(tmp_path):
    path = tmp_path / "session.jsonl"
    lines = [*CHUNKS, {"at": 0.3, "end": True}, {"at": 0, "chunk": delta(content="Bye")}]
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    model = ReplayModel(path, speed=0)
    assert [str(await model.send("Hi")) for _ in range(2)] == ["Hello", "Bye"]
    assert (await model.send("Hi")).error["message"].startswith("the recording is over")


async def test_the_timing_is_the_recorded_one():
    model = Pauses([*CHUNKS, {"at": 0.5, "end": True}])
    await model.send("Hi")
    assert model.taken == [0.1, 0.1, 0.3]


@pytest.mark.parametrize(("speed", "seconds"), [(0, 0.0), (2.0, 0.05), (0.5, 0.2)])
async def test_time_goes_as_fast_as_asked(speed, seconds, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("streamagent.models.replay.anyio.sleep", sleep)
    await ReplayModel(CHUNKS[:1], speed=speed).send("Hi")
    assert slept[0] == seconds


async def test_what_is_recorded_plays_the_same(tmp_path):
    failure = ModelError("busy", kind="overloaded", retryable=True)
    path = tmp_path / "session.jsonl"
    with Recorder(ScriptedModel([failure], ANSWER, [delta(content="Bye")]), path) as recorder:
        recorder._sleep = ScriptedModel().naps
        said = [await recorder.send("Hi") for _ in range(2)]
    model = ReplayModel(path, speed=0)
    played = [await model.send("Hi") for _ in range(2)]
    assert [str(result) for result in played] == [str(result) for result in said] == ["Hello", "Bye"]
    assert [result.reason for result in played] == [result.reason for result in said] == ["stop", "error"]


async def test_an_answer_that_was_left_is_recorded_as_far_as_it_came(tmp_path):
    path = tmp_path / "session.jsonl"
    model = ScriptedModel(ANSWER)
    with Recorder(model, path) as recorder:
        reply = recorder.send("Hi")
        await anext(reply)
        await reply.aclose()
    lines = [orjson.loads(line) for line in path.read_text().splitlines()]
    assert [set(line) - {"at"} for line in lines] == [{"chunk"}, {"end"}]
    assert model.closed == 1


@pytest.mark.parametrize(
    ("text", "complaint"), [("{", "line 1: not JSON"), ('{"at": 0}\n[]', "line 2: a line is an object")]
)
def test_a_damaged_recording_is_refused(tmp_path, text, complaint):
    path = tmp_path / "session.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        ReplayModel(path)


def test_a_missing_recording_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        ReplayModel(str(tmp_path / "none.jsonl"))
