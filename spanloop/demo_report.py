"""What came of a demo run, asked of ClickHouse: the table per policy version, the curve, the report's figures."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from spanloop import chart

if TYPE_CHECKING:
    from spanloop.consumers.query import Result
    from spanloop.demo import DemoConfig
    from spanloop.demo_view import Monitor
    from spanloop.infra.settings import Settings

Query = Callable[[str], "Result"]

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
# Rows that were not trained, by what their rollout's decision says; with those trained they are all rows there are.
DROPPED = """
SELECT if(d.attempt_id = '', 'undecided', coalesce(d.reason, 'unknown')) AS reason,
       sum(toInt64(t.row_count) - d.trained_rows) AS rows
FROM v_trajectories AS t
LEFT JOIN (
  SELECT assumeNotNull(m.attempt_id) AS attempt_id, m.reason AS reason, m.trained_rows AS trained_rows
  FROM v_decisions ARRAY JOIN members AS m WHERE m.attempt_id IS NOT NULL
) AS d ON d.attempt_id = t.attempt_id
GROUP BY reason HAVING rows > 0 ORDER BY reason
"""


def finish(
    config: DemoConfig,
    home: Path,
    settings: Settings | None,
    monitor: Monitor | None,
    console: Console,
    *,
    interrupted: bool,
) -> None:
    """Writes the report, prints the table and the curve, says what to try next.

    settings: None = no service came up, so there is nothing to ask; monitor: None = no part did.
    """
    if settings is None:
        return
    from spanloop.consumers.query import opened

    with opened(settings, None) as query:
        if config.report is not None:
            save(report(query, config, monitor, interrupted=interrupted), config.report)
            console.print(f"report: {config.report}", soft_wrap=True)
        if not interrupted:  # drawing takes a second of the five that Ctrl-C promises
            show(query(PER_VERSION), home, config, console)
        example = query("SELECT rollout_id FROM v_rollouts WHERE final ORDER BY final_reward DESC LIMIT 1").rows
    console.print("\ntry", style="bold")
    for line in hints(home, example[0][0] if example else "ro-…"):
        console.print(f"  {line}", soft_wrap=True, highlight=False)


def save(figures: dict[str, Any], path: Path | None) -> None:
    """Writes the report where it was asked for."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


def hints(home: Path, rollout: str) -> list[str]:
    """Commands that look into the folder of a run, for a shell."""
    spanloop, folder = program(), shlex.quote(str(home))
    statement = "select policy_version, count(), avg(output_tokens) from v_calls group by 1 order by 1"
    return [
        f'{spanloop} sql --home {folder} "{statement}"',
        f"{spanloop} show --home {folder} {rollout}",
        f'{spanloop} tail --home {folder} spans -n 3 --where "spans.call"',
    ]


def program() -> str:
    """What to type for `spanloop` here: its name, or its path while its environment is not active."""
    if shutil.which("spanloop"):
        return "spanloop"
    script = os.path.relpath(sys.argv[0])
    return "python -m spanloop" if script.endswith("__main__.py") else shlex.quote(script)


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


def report(query: Query | None, config: DemoConfig, monitor: Monitor | None, *, interrupted: bool) -> dict[str, Any]:
    """The figures of `--report`, each with the SQL that gave it; what no SQL can give says how it was measured.

    null = there was nothing to count, or to ask, when the run was interrupted.
    """
    lag: dict[str, int] = {} if monitor is None else monitor.max_lag
    return {
        "seed": config.seed,
        "control": config.control,
        "interrupted": interrupted,
        "wall_s": None if monitor is None else round(time.monotonic() - monitor.started, 2),
        **{name: None if query is None else figure(query, statement) for name, statement in FIGURES.items()},
        "rows_dropped": None if query is None else {str(reason): int(rows) for reason, rows in query(DROPPED).rows},
        "max_consumer_lag": max(lag.values(), default=None),
        "max_consumer_lag_by_group": lag,
        "sql": {**FIGURES, "rows_dropped": " ".join(DROPPED.split())},
        "measured": {
            "wall_s": "from the first task on; making the policy and starting services are not in it",
            "max_consumer_lag": "end offsets minus committed offsets of each consumer group, sampled every 2 s",
        },
    }


def figure(query: Query, statement: str) -> Any:
    """The one value of a statement; what is no number, as a mean over nothing, is null, for JSON has no NaN."""
    value = query(statement).rows[0][0]
    return None if isinstance(value, float) and not math.isfinite(value) else value
