"""Google's ADK over LiteLLM, with `InMemorySessionService`: its sessions are not stored."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai.types import Content, Part

from benchmarks.contender import Contender, Heard
from benchmarks.workload import MODEL, PROMPT, Workload, stock

_APP, _USER = "shop", "user"


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    model = LiteLlm(model=f"openai/{MODEL}", api_base=workload.url, api_key="none")
    sessions = InMemorySessionService()
    runner = Runner(agent=LlmAgent(name="shop", model=model, tools=[stock]), app_name=_APP, session_service=sessions)

    async def run(name: str, hear: Heard) -> None:
        await sessions.create_session(app_name=_APP, user_id=_USER, session_id=name)
        prompt = Content(role="user", parts=[Part(text=PROMPT)])
        streamed = RunConfig(streaming_mode=StreamingMode.SSE)
        async for event in runner.run_async(user_id=_USER, session_id=name, new_message=prompt, run_config=streamed):
            if event.partial and event.content:
                for part in event.content.parts or ():
                    hear(part.text or "")

    async def idle(name: str) -> object:
        return await sessions.create_session(app_name=_APP, user_id=_USER, session_id=name)

    yield Contender(run=run, idle=idle)
