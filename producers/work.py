"""One attempt as an agent is given it, and how the agent is run on it: called, or awaited."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from dataclasses import dataclass

from ..infra.logs import bound
from . import context, outcome
from .agent import Agent, Job
from .context import Scope
from .outcome import Outcome


@dataclass(frozen=True, slots=True)
class Work:
    """What a slot gets."""

    job: Job
    scope: Scope
    gateway_url: str  # failures of what lies behind it are not the agent's

    @property
    def attempt_id(self) -> str:
        """The attempt."""
        return self.scope.attempt_id


def perform(agent: Agent, work: Work) -> Outcome:
    """Runs a synchronous agent; never raises."""
    result, raised = None, None
    try:
        with context.attempt(work.scope), bound(rollout_id=work.scope.rollout_id, attempt_id=work.attempt_id):
            result = agent.run(work.job)
            if inspect.isawaitable(result):  # of a plain function that calls an asynchronous one
                result = asyncio.run(_awaited(result))
    except BaseException as error:  # noqa: BLE001 - an agent may raise anything, sys.exit() included
        raised = error
    work.scope.hand_over()
    return outcome.judge(work.scope, result, raised, work.gateway_url)


async def perform_async(agent: Agent, work: Work) -> Outcome:
    """Runs an asynchronous agent; never raises, not even when it is cancelled."""
    result, raised = None, None
    try:
        with context.attempt(work.scope), bound(rollout_id=work.scope.rollout_id, attempt_id=work.attempt_id):
            result = agent.run(work.job)
            if inspect.isawaitable(result):
                result = await result
    except BaseException as error:  # noqa: BLE001 - an agent may raise anything; its cancellation ends here too
        raised = error
    work.scope.hand_over()
    return outcome.judge(work.scope, result, raised, work.gateway_url)


async def _awaited(result: Awaitable[object]) -> object:
    return await result
