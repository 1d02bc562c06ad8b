"""What came of a demo run, asked of ClickHouse: the table per policy version, the curve, the report's figures."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from spanloop import chart
from spanloop.consumers.query import Result, opened
from spanloop.infra.settings import Settings

if TYPE_CHECKING:
    from spanloop.demo import DemoConfig
    from spanloop.demo_view import Monitor

Query = Callable[[str], Result]

# The version that drew a rollout: that of its first trained token.
PER_VERSION = """
SELECT version, count() AS rollouts, round(avg(final_reward), 3) AS mean_reward, sum(trained_tokens) AS tokens,
       round(avg(staleness), 2) AS mean_staleness, max(staleness) AS max_staleness
FROM (
  SELECT t.rollout_id AS rollout_id, t.final_reward AS final_reward,
         t.calls[1].policy_versions[1].version AS version, d.trained_tokens AS trained_tokens, d.staleness AS staleness
  FROM v_trajectories AS t
  LEFT JOIN (
    SELECT m.rollout_id AS rollout_id, m.trained_tokens AS trained_tokens, m.max_staleness AS staleness
    FROM v_decisions ARRAY JOIN members AS m
  ) AS d ON d.rollout_id = t.rollout_id
  WHERE t.final AND t.mode = 'train'
)
GROUP BY version ORDER BY version
"""

# Rollouts in the order in which their attempts ended.
ORDERED = "SELECT final_reward FROM v_rollouts WHERE final AND mode = 'train' ORDER BY ended"

FIGURES: dict[str, str] = {
    "rollouts": "SELECT count() FROM v_rollouts WHERE final",
    "spans": "SELECT count() FROM v_spans",
    "model_calls": "SELECT count() FROM v_calls",
    "trajectories": "SELECT count() FROM v_trajectories",
    "rows_trained": "SELECT sum(m.trained_rows) FROM v_decisions ARRAY JOIN members AS m",
    "policy_versions": "SELECT count() FROM v_resources WHERE kind = 'policy'",
    "reward_first": f"SELECT avg(final_reward) FROM ({ORDERED} LIMIT 100)",
    "reward_last": f"SELECT avg(final_reward) FROM ({ORDERED} DESC LIMIT 100)",
    "max_staleness_trained": "SELECT max(m.max_staleness) FROM v_decisions ARRAY JOIN members AS m",
    "groups": "SELECT count() FROM v_decisions",
    "groups_used": "SELECT count() FROM v_decisions WHERE outcome = 'used'",
    "groups_without_spread": "SELECT count() FROM v_decisions WHERE reason = 'zero_spread'",
    "dead_letters": "SELECT count() FROM v_dead_letters",
}
DROPPED = """
SELECT m.reason AS reason, count() AS rows FROM v_decisions ARRAY JOIN members AS m
WHERE m.reason IS NOT NULL GROUP BY reason ORDER BY reason
"""


def finish(
    config: DemoConfig, home: Path, settings: Settings, monitor: Monitor, console: Console, *, interrupted: bool
) -> None:
    """Prints the table and the curve, writes the report, says what to try next."""
    wall_s = time.monotonic() - monitor.started
    with opened(settings, None) as query:
        if not interrupted:  # drawing takes a second of the five that Ctrl-C promises
            show(query(PER_VERSION), home, config, console)
        if config.report is not None:
            figures = report(query, config, monitor, wall_s, interrupted=interrupted)
            config.report.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
            console.print(f"report: {config.report}")
        example = query("SELECT rollout_id FROM v_rollouts WHERE final ORDER BY final_reward DESC LIMIT 1").rows
    console.print("\ntry", style="bold")
    statement = "select policy_version, count(), avg(output_tokens) from v_calls group by 1 order by 1"
    spanloop = program()
    console.print(f'  {spanloop} sql --home {home} "{statement}"', soft_wrap=True, highlight=False)
    rollout = example[0][0] if example else "ro-…"
    console.print(f"  {spanloop} show --home {home} {rollout}", soft_wrap=True, highlight=False)
    console.print(f"  {spanloop} tail --home {home} spans -n 3", soft_wrap=True, highlight=False)


def program() -> str:
    """What to type for `spanloop` here: its name, or its path while its environment is not active."""
    if shutil.which("spanloop"):
        return "spanloop"
    script = os.path.relpath(sys.argv[0])
    return "python -m spanloop" if script.endswith("__main__.py") else script


def show(result: Result, home: Path, config: DemoConfig, console: Console) -> None:
    """The table per policy version, and the curve as text and PNG."""
    table = Table(*(name.replace("_", " ") for name in result.columns), title="per policy version, from ClickHouse")
    for row in result.rows:
        table.add_row(*("–" if cell is None else str(cell) for cell in row))
    console.print(table)
    seen = [(int(row[0]), float(row[2])) for row in result.rows if row[0] is not None and row[2] is not None]
    if not seen:
        return
    versions, rewards = [v for v, _ in seen], [r for _, r in seen]
    console.print("mean reward by policy version (of 1.2)")
    for line in chart.text(rewards, low=0.0, high=1.2):
        console.print(line, highlight=False)
    chart.png(home / "reward.png", versions, rewards, f"spanloop demo, seed {config.seed}")
    console.print(f"curve: {home / 'reward.png'}", soft_wrap=True)


def report(query: Query, config: DemoConfig, monitor: Monitor, wall_s: float, *, interrupted: bool) -> dict[str, Any]:
    """The figures of `--report`, each with the SQL that gave it; what no SQL can give says how it was measured."""
    dropped = {str(reason): int(rows) for reason, rows in query(DROPPED).rows}
    found = {name: query(statement).rows[0][0] for name, statement in FIGURES.items()}
    return {
        "seed": config.seed,
        "control": config.control,
        "interrupted": interrupted,
        "wall_s": round(wall_s, 2),
        **found,
        "rows_dropped": dropped,
        "max_consumer_lag": max(monitor.max_lag.values()),
        "max_consumer_lag_by_group": monitor.max_lag,
        "sql": {**FIGURES, "rows_dropped": " ".join(DROPPED.split())},
        "measured": {
            "wall_s": "from the first task on; making the policy and starting services are not in it",
            "max_consumer_lag": "end offsets minus committed offsets of each consumer group, sampled every 2 s",
        },
    }
