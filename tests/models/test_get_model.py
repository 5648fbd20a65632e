"""Models by name."""

import subprocess
import sys

import pytest

from streamagent.errors import ConfigError
from streamagent.models import get_model
from streamagent.models.direct import DirectModel
from streamagent.models.local import LocalModel, local_available
from streamagent.models.mock import MockModel
from streamagent.models.provider import ProviderModel
from streamagent.models.replay import ReplayModel


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("mock", MockModel),
        ("openai/gpt", DirectModel),
        ("anthropic:claude", ProviderModel),
        ("bedrock/anthropic.claude", ProviderModel),
        ("ollama/llama3:8b", DirectModel),
    ],
)
def test_a_name_gives_a_model(name, kind):
    assert type(get_model(name)) is kind


def test_a_recording_is_named_by_its_file(tmp_path):
    path = tmp_path / "session.jsonl"
    path.touch()
    assert type(get_model(f"replay:{path}")) is ReplayModel


@pytest.mark.skipif(not local_available(), reason="the wheels of the local model are not installed")
def test_the_local_model_has_a_name():
    assert type(get_model("local")) is LocalModel


def test_a_model_is_returned_as_it_is():
    model = MockModel()
    assert get_model(model) is model


@pytest.mark.parametrize("name", ["", "gpt-5", "openai/", "/gpt", "replay:", "mock:x", "local:x", 5, None])
def test_what_names_nothing_is_refused_with_examples(name):
    with pytest.raises(ConfigError, match="openai/gpt-5-mini"):
        get_model(name)


def test_nothing_heavy_is_imported_before_it_is_used():
    heavy = "{'litellm', 'pydantic', 'aiosqlite', 'aiohttp', 'openai', 'httpx'}"
    code = f"""
import sys, streamagent.models
for name in ("mock", "openai/gpt", "anthropic/claude"):
    streamagent.models.get_model(name)
sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
