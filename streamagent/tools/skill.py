"""`Skill`: an instruction that a model reads when it needs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamagent.calls import Output
from streamagent.errors import ConfigError, ToolError

from .function import FunctionTool

_HEADING = "You have skills: instructions for special tasks. Before such a task, read its skill by the tool `skill`."


@dataclass(frozen=True, slots=True)
class Skill:
    """A named instruction.

    Args:
        name: What the model asks for it by.
        description: When it is of use; one line, which the model always sees.
        text: The instruction, which the model sees when it asks.

    Raises:
        ConfigError: The name or description is empty or longer than a line, or something is no text.
    """

    name: str
    description: str
    text: str

    def __post_init__(self) -> None:
        for what, value in (("name", self.name), ("description", self.description)):
            if not isinstance(value, str) or not value.strip() or len(value.splitlines()) > 1:
                raise ConfigError(f"the {what} of a skill is one line of text, not {value!r:.80}")
        if not isinstance(self.text, str):
            raise ConfigError(f"the text of a skill is text, not {self.text!r:.80}")


def skill_tool(skills: Sequence[Skill]) -> FunctionTool[..., Any]:
    """Make the tool `skill(name)`, which gives a skill's text.

    Args:
        skills: What it knows.

    Raises:
        ConfigError: Two have one name, or something is no skill.
    """
    texts: dict[str, str] = {}
    for item in skills:
        if not isinstance(item, Skill):
            raise ConfigError(f"skills are Skill(name, description, text), not {item!r:.80}")
        if item.name in texts:
            raise ConfigError(f"two skills are named {item.name!r}; give one of them another name")
        texts[item.name] = item.text

    async def skill(name: str) -> Output:
        """Read a skill: the full instructions for a task.

        Args:
            name: The skill's name.
        """
        if name not in texts:
            raise ToolError(f"There is no skill {name!r}. Known: {', '.join(texts)}.")
        return Output(texts[name])  # at its length: half an instruction is none

    return FunctionTool(skill)


def with_skills(system: str | None, skills: Sequence[Skill]) -> str | None:
    """Append the names and descriptions of skills to a system prompt."""
    if not skills:
        return system
    listed = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills)
    return "\n\n".join(filter(None, [system, f"{_HEADING}\n{listed}"]))
