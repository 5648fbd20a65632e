"""`Opening`: how a run of a session begins, or an answer that is stored is shown again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyio import current_time

from .lineage import Lineage
from .message import Message
from .pipeline import Chain
from .plan import Plan
from .prompts import answer_to
from .records import Standing
from .resume import find, look_back
from .run import Run
from .tasks import RunTasks

if TYPE_CHECKING:
    from .runtime import Runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Where runs begin, and with what.

    Args:
        runtime: Where the session lives.
        session: Its id.
        plan: What answers.
        lineage: Where the runs stand in the tree of a sub-agent's runs; `None` for the root of a tree.
    """

    runtime: Runtime
    session: str
    plan: Plan
    lineage: Lineage | None

    async def begin(
        self, fence: int, *, asks: bool, again: bool, fail: Callable[[BaseException], None], standing: Standing | None
    ) -> tuple[Run | None, Sequence[Message]]:
        """Settle what an earlier run left, or take it up.

        Args:
            fence: The run's.
            asks: It has a prompt of its own.
            again: Its prompt's answer was shown again: it begins only to go on with that.
            fail: Takes the failure of its background tasks.
            standing: How the session stands; `None` to look.

        Returns:
            The run, if there is something to do, and the rows that were added.
        """
        runtime, plan = self.runtime, self.plan
        lineage = self.lineage or Lineage.root(max_depth=plan.max_depth, max_children=plan.max_children)
        late = current_time() + (plan.timeout if plan.timeout is not None else float("inf"))
        deadline = min(lineage.deadline, late)
        repeatable, model = plan.pipeline.repeats, plan.model.name
        left = None if standing is None else standing.left
        found = await find(
            runtime.store, self.session, fence=fence, asks=asks, repeatable=repeatable, model=model, left=left
        )
        if again and found.cut is None:  # it is given up, and others' prompts are not for this one
            return None, found.rows
        tasks = RunTasks(runtime.tasks, fail)
        run = Run(self.session, runtime.store, fence, plan, tasks, deadline, left=found.left, cut=found.cut)
        run.started, run.lineage, run.starter = found.started, lineage, runtime.start_child
        run.behind_row = max((row.sequence or 0 for row in (*found.rows, found.left.last) if row), default=0)
        run.outcomes.update((call, record.outcome) for call, record in run.started.items() if record.outcome)
        if standing is not None and standing.left.at_rest and not standing.left.approvals:  # nothing was done since
            run.waiting = standing.inbox
        return run, found.rows

    async def replay(self, prompt: Message) -> Chain:
        """Show a prompt and its stored answer, by the stages that change what is shown."""
        chain = Chain(self.runtime.store.read(self.session, after=(prompt.sequence or 1) - 1))
        await chain.extend([answer_to(prompt), *self.plan.pipeline.shown], self.runtime.bare_run(self.session))
        return chain

    async def was_cut(self, prompt: Message) -> bool:
        """Tell whether a prompt is that of a run whose process died: it is gone on with."""
        if (await self.runtime.store.unfinished(self.session)).at_rest:
            return False
        return prompt.id == (await look_back(self.runtime.store, self.session)).prompt
