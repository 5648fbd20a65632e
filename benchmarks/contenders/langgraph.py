"""LangGraph: LangChain's `create_agent`, whose checkpoints `AsyncSqliteSaver` keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from benchmarks.contender import Contender, Heard, Past
from benchmarks.workload import MODEL, PROMPT, Workload, stock


@asynccontextmanager
async def open_contender(workload: Workload) -> AsyncIterator[Contender]:
    """Give what runs one session."""
    model = ChatOpenAI(model=MODEL, base_url=workload.url, api_key="none", streaming=True, stream_usage=True)
    async with AsyncSqliteSaver.from_conn_string(str(Path(workload.folder, "checkpoints.db"))) as saver:
        agent = create_agent(model, tools=[stock], checkpointer=saver)

        async def run(name: str, hear: Heard) -> None:
            prompt = {"messages": [{"role": "user", "content": PROMPT}]}
            async for chunk, _ in agent.astream(prompt, _thread(name), stream_mode="messages"):
                if isinstance(chunk, AIMessageChunk) and chunk.content:
                    hear(chunk.content)

        async def fill(name: str, past: Past) -> None:
            messages = [_message(role, content) for role, content in past]
            await agent.aupdate_state(_thread(name), {"messages": messages})

        yield Contender(run=run, fill=fill)


def _thread(name: str) -> dict[str, dict[str, str]]:
    return {"configurable": {"thread_id": name}}


def _message(role: str, content: str) -> AIMessage | HumanMessage:
    return AIMessage(content) if role == "assistant" else HumanMessage(content)
