"""An agent that does nothing but emit ten spans: what is left is the price of the loop."""

from __future__ import annotations

from spanloop import operation, rollout


@rollout
def noop(task: object) -> float:
    del task
    for step in range(9):
        with operation(f"step-{step}"):
            pass
    with operation("answer"):
        return 1.0
