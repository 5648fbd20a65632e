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
from .records import Begun, Standing
from .resume import find, look_back
from .run import Run
from .tasks import RunTasks

if TYPE_CHECKING:
    from .runtime import Runtime


@dataclass(slots=True, kw_only=True)
class Opening:
    """Where the runs of an answer begin, and with what.

    Args:
        runtime: Where the session lives.
        session: Its id.
        plan: What answers.
        lineage: Where the runs stand in the tree of a sub-agent's runs; `None` for the root of a tree.
        prompt: What to put into the inbox first; `None` to answer what waits there longest.
        rest: Further messages of the same prompt.
        client_key: The prompt's key for deduplication.
        fence: Of the session, while this process has it.
        begun: The prompt was put into the inbox.
        replayed: The prompt, if it has its answer already, which is shown again.
        hurried: Somebody wanted to be heard at once, before there was a run: the inbox is looked into once more.
    """

    runtime: Runtime
    session: str
    plan: Plan
    lineage: Lineage | None
    prompt: Message | None
    rest: Sequence[Message] = ()
    client_key: str | None = None
    fence: int | None = None
    begun: bool = False
    replayed: Message | None = None
    hurried: bool = False
    _standing: Standing | None = None

    async def start(self) -> Chain | None:
        """Put the prompt into the inbox; return the answer that it has already, if it has.

        The session is taken first: a prompt that waits in a session that nobody has is anybody's to answer.
        """
        self.begun = True
        self.prompt = (await self._take(self.prompt)).prompt
        if self.prompt is None or self.prompt.sequence is None:
            return None
        self.replayed = self.prompt
        return await self._replay(self.prompt)

    async def _take(self, prompt: Message | None = None) -> Begun:
        begin_run = self.runtime.holding.begin_run
        begun = await begin_run(self.session, prompt, client_key=self.client_key, rest=self.rest)
        self.fence, self._standing = begun.fence, begun.standing
        return begun

    async def open(self, fail: Callable[[BaseException], None]) -> tuple[Run | None, Sequence[Message]]:
        """Take the session, unless that was done just now, and settle what an earlier run left, or take it up.

        Args:
            fail: Takes the failure of the run's background tasks.

        Returns:
            The run, if there is something to do, and the rows that were added.
        """
        fence = self.fence or (await self._take()).fence
        standing, self._standing = None if self.hurried or self.replayed else self._standing, None
        runtime, plan = self.runtime, self.plan
        lineage = self.lineage or Lineage.root(max_depth=plan.max_depth, max_children=plan.max_children)
        late = current_time() + (plan.timeout if plan.timeout is not None else float("inf"))
        found = await find(
            runtime.store,
            self.session,
            fence=fence,
            asks=self.prompt is not None and self.replayed is None,
            repeatable=plan.pipeline.repeats,
            model=plan.model.name,
            left=None if standing is None else standing.left,
        )
        if self.replayed is not None and found.cut is None:  # it is given up, and others' prompts are not for this one
            return None, found.rows
        tasks, deadline = RunTasks(runtime.tasks, fail), min(lineage.deadline, late)
        run = Run(self.session, runtime.store, fence, plan, tasks, deadline, left=found.left, cut=found.cut)
        run.started, run.lineage, run.starter = found.started, lineage, runtime.start_child
        run.behind_row = max((row.sequence or 0 for row in (*found.rows, found.left.last) if row), default=0)
        run.outcomes.update((call, record.outcome) for call, record in run.started.items() if record.outcome)
        if standing is not None and standing.left.at_rest and not standing.left.approvals:  # nothing was done since
            run.waiting = standing.inbox
        return run, found.rows

    async def _replay(self, prompt: Message) -> Chain:
        """Show a prompt and its stored answer, by the stages that change what is shown."""
        chain = Chain(self.runtime.store.read(self.session, after=(prompt.sequence or 1) - 1))
        await chain.extend([answer_to(prompt), *self.plan.pipeline.shown], self.runtime.bare_run(self.session))
        return chain

    async def goes_on(self) -> bool:
        """Tell whether the prompt that was shown again is that of a run whose process died."""
        if self.replayed is None or (await self.runtime.store.unfinished(self.session)).at_rest:
            return False
        return self.replayed.id == (await look_back(self.runtime.store, self.session)).prompt
