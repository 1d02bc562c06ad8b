from __future__ import annotations

import csv
import io
import json
import math
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from sink_rig import Lab

from spanloop.consumers.query import Result, opened, query, render
from spanloop.consumers.show import show, tree
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.embedded_clickhouse import ClickHouseProcess
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError, InvalidQuery
from spanloop.schemas.records import Attempt, AttemptContext, Reward, Rollout, Task, Trajectory


def test_a_query_gives_columns_and_rows(lab: Lab) -> None:
    lab.store(lab.batch(lab.span("s1"), lab.span("s2")))
    found = query(lab.settings, "SELECT span_id, sequence FROM v_spans ORDER BY span_id;")
    assert found == Result(("span_id", "sequence"), (("s1", 0), ("s2", 0)))
    assert found.dicts()[0] == {"span_id": "s1", "sequence": 0}


@pytest.mark.parametrize("sql", ["DROP TABLE spans", "INSERT INTO spans (span_id) VALUES ('x')", "SELECT nonsense"])
def test_what_is_no_query_is_refused(lab: Lab, sql: str) -> None:
    with pytest.raises(InvalidQuery):
        query(lab.settings, sql)


def test_an_empty_query_says_what_is_expected(lab: Lab) -> None:
    with pytest.raises(InvalidQuery, match="the query is empty; expected a SELECT"):
        query(lab.settings, " ; ")


def test_results_render_as_csv_tsv_and_json() -> None:
    result = Result(("a", "b"), ((1, 'x,"y"'), (None, {"k": [float("nan"), b"\x00\xff"]})))
    assert list(csv.reader(io.StringIO(render(result, "csv")))) == [
        ["a", "b"], ["1", 'x,"y"'], ["", '{"k": [null, "00ff"]}'],
    ]  # fmt: skip
    assert render(result, "tsv").splitlines()[0] == "a\tb"
    assert json.loads(render(result, "json")) == [{"a": 1, "b": 'x,"y"'}, {"a": None, "b": {"k": [None, "00ff"]}}]
    with pytest.raises(ConfigError, match="xml"):
        render(result, "xml")


def test_days_and_other_types_render_as_text() -> None:
    day = date(2026, 7, 1)
    row = (day, [day], datetime(2026, 7, 1, 12, tzinfo=timezone.utc), Decimal("1.10"), UUID(int=1), {day: math.inf})
    result = Result(("day", "days", "at", "price", "id", "map"), (row,))
    texts = ["2026-07-01", "2026-07-01T12:00:00+00:00", "1.10", f"{UUID(int=1)}"]
    told = json.loads(render(result, "json"))[0]
    assert list(told.values()) == [texts[0], [texts[0]], *texts[1:], {texts[0]: None}]
    (_, cells) = csv.reader(io.StringIO(render(result, "csv")))
    assert cells == [texts[0], '["2026-07-01"]', *texts[1:], '{"2026-07-01": null}']


def test_a_day_asked_of_clickhouse_is_told(lab: Lab) -> None:
    found = query(lab.settings, "SELECT toDate('2026-07-01') AS day, [day] AS days, nan AS n, toIPv4('10.0.0.1') AS ip")
    assert json.loads(render(found, "json")) == [
        {"day": "2026-07-01", "days": ["2026-07-01"], "n": None, "ip": "10.0.0.1"}
    ]


def test_a_finished_runs_folder_is_read_without_its_services(tmp_path: Path) -> None:
    with ClickHouseProcess(tmp_path / "clickhouse") as process:
        settings = Settings(clickhouse_url=process.url)
        client = connect(settings)
        migrate(client, "spanloop")
        client.command("INSERT INTO resources (name, version, kind) VALUES ('policy', 1, 'policy')")
        client.close()
    with opened(Settings(), tmp_path) as ask:
        assert ask("SELECT name, version FROM v_resources").rows == (("policy", 1),)


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"), opened(Settings(), tmp_path):
        pass


def test_a_run_that_was_cut_before_its_tables_were_made_says_so(tmp_path: Path) -> None:
    with ClickHouseProcess(tmp_path / "clickhouse"):
        pass
    with pytest.raises(ConfigError, match="interrupted before they were made"), opened(Settings(), tmp_path):
        pass


def test_the_state_of_a_rollout_shows_the_trajectory_that_counts(lab: Lab) -> None:
    task = Task("ro-1", "run-1", group_id="g")
    lab.store(
        Rollout("ro-1", "running", task, attempt_id="at-2"),
        Rollout("ro-1", "succeeded", task, final=True, attempt_id="at-2", counting_attempt="at-1"),
        Rollout("ro-2", "queuing", Task("ro-2", "run-1")),
        *(
            Trajectory("ro-1", f"at-{n}", 1, "d", AttemptContext(attempt_number=n), final=n == 2, final_reward=n / 4)
            for n in (1, 2)
        ),
    )
    rows = lab.rows(
        "SELECT rollout_id, status, run_id, trajectory_attempt, final_reward FROM v_rollouts ORDER BY rollout_id"
    )
    assert rows == [("ro-1", "succeeded", "run-1", "at-1", 0.25), ("ro-2", "queuing", "run-1", "", None)]


def test_a_rollout_is_shown_with_its_tree_in_order(lab: Lab) -> None:
    lab.store(
        Rollout("ro-1", "succeeded", Task("ro-1", "run-1"), final=True),
        Attempt("ro-1", "at-1", "ended", outcome="succeeded"),
        Reward("rw-1", "ro-1", value=0.5),
        lab.batch(
            lab.span("c2", parent_span_id="root", sequence=3, start=1),
            lab.span("leaf", parent_span_id="c1", sequence=4),
            lab.span("c1", parent_span_id="root", sequence=2, start=9),
            lab.span("root", sequence=1),
            lab.span("lost", parent_span_id="nobody", sequence=5),
        ),
    )
    with opened(lab.settings) as ask:
        shown = show(ask, "ro-1")
        assert show(ask, "ro-none") is None
    assert shown is not None
    assert shown.rollout is not None
    assert shown.rollout["status"] == "succeeded"
    assert [r["value"] for r in shown.rewards] == [0.5]
    (attempt,) = shown.attempts
    assert attempt.attempt is not None
    assert attempt.attempt["outcome"] == "succeeded"
    assert [(n.depth, n.span["span_id"]) for n in attempt.spans] == [
        (0, "root"), (1, "c1"), (2, "leaf"), (1, "c2"), (0, "lost"),
    ]  # fmt: skip


def test_a_circle_of_parents_is_shown_once() -> None:
    spans = [
        {"span_id": a, "parent_span_id": b, "producer_id": "p", "sequence": i, "start_ns": 0}
        for i, (a, b) in enumerate([("a", "b"), ("b", "a"), ("c", "c")])
    ]
    assert sorted(n.span["span_id"] for n in tree(spans)) == ["a", "b", "c"]
