"""What the demo is made of: its trainer's configuration, its end by Ctrl-C, what it shows and what it reports."""

from __future__ import annotations

import io
import math
import shlex
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.live import Live

from spanloop import demo_report
from spanloop.consumers.where import where
from spanloop.demo import DemoConfig, run_demo
from spanloop.demo_interrupt import ALL_S, INTERRUPTED
from spanloop.demo_parts import as_toml
from spanloop.demo_view import View, waiting
from spanloop.infra.clickhouse import connect, migrate
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError
from spanloop.trainer.config import TrainerConfig, load_config

CONFIG = TrainerConfig(
    run_id="run",
    trainer_id="tr",
    policy="policy",
    model_dir=Path("/models/π 'quoted' \\"),
    folder=Path("/runs/😀"),
    correction="mu",
    total_steps=4,
)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), min_size=1)
configs = st.builds(
    TrainerConfig,
    run_id=names,
    trainer_id=names,
    policy=names,
    model_dir=st.just(CONFIG.model_dir),
    folder=st.just(CONFIG.folder),
    correction=st.sampled_from(["mu", "none"]),
    total_steps=st.integers(0, 10**9),
    lr=st.floats(1e-12, 1e20),
    clip=st.tuples(st.floats(0, 1), st.floats(1.5, 100)),
    std=st.booleans(),
    credit=st.none() | st.integers(1, 10**6),
    publish_every=st.just(0),
    follow=st.none() | names,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trainer.toml"


def test_a_configuration_comes_back_from_its_file(path: Path) -> None:
    for config in (CONFIG, replace(CONFIG, credit=192, follow="other", publish_every=0, clip=(0.5, 1e-5 + 1))):
        path.write_text(as_toml(config), "utf-8")
        assert load_config(path) == config


@given(configs)
def test_any_configuration_comes_back(tmp_path_factory: pytest.TempPathFactory, config: TrainerConfig) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(as_toml(config), "utf-8")
    assert load_config(path) == config


def test_none_where_the_default_is_another_value_is_refused_not_lost() -> None:
    with pytest.raises(ConfigError, match="no_engine_s is None"):
        as_toml(replace(CONFIG, no_engine_s=None))


class Seen:
    """Stands for the monitor of a run."""

    rollouts, version, staleness, started, reward = 3, 1, 0, 0.0, 0.5
    lag = max_lag = {"sink": 0}  # noqa: RUF012 nobody changes it


def view(console: Console) -> View:
    return View(console, Seen(), total=8)  # pyright: ignore[reportArgumentType] has what is looked at


STUBBORN = """
import time
from spanloop.demo_interrupt import Interrupt
with Interrupt() as interrupt:
    interrupt.last = lambda: print("last", flush=True)
    for _ in range(2):
        try:
            print("busy", flush=True)
            time.sleep(600)
        except KeyboardInterrupt:
            print(interrupt.left_s(0.0), flush=True)
"""


def test_an_interrupt_comes_once_and_ends_a_process_in_time_that_does_not_end_by_itself() -> None:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout as out:
        assert out.readline() == "busy\n"
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert [out.readline() for _ in range(2)] == ["0.0\n", "busy\n"]
        child.send_signal(signal.SIGTERM)  # it is being done already
        assert out.readline() == "last\n"
        assert time.monotonic() - began > ALL_S / 2
    assert child.wait() == INTERRUPTED


@pytest.mark.parametrize("step", ["_enable_redirect_io", "show_cursor"])
def test_what_is_cut_while_it_starts_to_be_shown_leaves_the_terminal_as_it_was(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def cut(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    def spinner(console: Console) -> AbstractContextManager[object]:
        return waiting(console, "starting")

    for enter in (view, spinner):
        console = Console(file=(written := io.StringIO()), force_terminal=True, width=80)
        monkeypatch.setattr(Console if step == "show_cursor" else Live, step, cut)
        with pytest.raises(KeyboardInterrupt), enter(console):
            time.sleep(60)
        assert written.getvalue().rindex("\x1b[?25h") > written.getvalue().rfind("\x1b[?25l")
        with Live("next", console=console):  # nothing is live any more, so this may be
            console.print("line")


def test_what_follows_the_figures_has_a_line_of_its_own_without_a_terminal() -> None:
    console = Console(file=(written := io.StringIO()), width=200)
    with view(console):
        pass
    console.print("next")
    assert written.getvalue().splitlines()[-1] == "next"
    assert "lag: sink 0" in written.getvalue()


def test_fewer_rollouts_than_a_batch_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--rollouts 63: expected at least 64"):
        run_demo(DemoConfig(rollouts=63, home=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_commands_to_try_are_whole_where_the_folder_has_a_space_and_the_last_shows_calls() -> None:
    commands = [shlex.split(line) for line in demo_report.hints(Path("/my runs/it's"), "ro-1")]
    assert [words[words.index("--home") + 1] for words in commands] == ["/my runs/it's"] * 3
    holds = where(commands[2][-1])
    begin: dict[str, Any] = {"record": {"begin": True, "spans": []}}
    assert not holds(begin)
    assert holds({"record": {"begin": False, "spans": [{"call": None}, {"call": {"model": "policy"}}]}})


def test_a_report_of_a_run_that_has_nothing_is_all_null() -> None:
    told = demo_report.report(None, DemoConfig(seed=7), None, interrupted=True)
    assert (told["seed"], told["interrupted"]) == (7, True)
    assert {told[name] for name in (*demo_report.FIGURES, "rows_dropped", "wall_s", "max_consumer_lag")} == {None}


def test_rows_trained_and_dropped_are_all_rows_there_are(clickhouse_url: str) -> None:
    settings = Settings(clickhouse_url=clickhouse_url, clickhouse_database="rows_dropped")
    client = connect(settings)
    migrate(client, settings.clickhouse_database)
    for attempt, rows in (("used", 3), ("both", 4), ("whole", 1), ("none", 0), ("late", 2)):
        client.command(
            f"INSERT INTO trajectories (rollout_id, attempt_id, revision, rows) "
            f"SELECT 'ro', '{attempt}', 1, arrayResize(any(rows), {rows}) FROM trajectories WHERE false"
        )
    client.command(
        "INSERT INTO decisions (group_id, members) VALUES ('g', "
        "[('ro', 'used', 0.5, 3, 9, 1, NULL), ('ro', 'both', 0.5, 1, 3, 1, 'stale, too_long'),"
        " ('ro', NULL, NULL, 0, 0, NULL, NULL)]), "
        "('h', [('ro', 'whole', 0, 0, 0, NULL, 'zero_spread'), ('ro', 'none', 0, 0, 0, NULL, 'no_llm_calls')])"
    )
    dropped = {str(row["reason"]): int(row["rows"]) for row in client.rows(demo_report.DROPPED)}
    assert dropped == {"stale, too_long": 3, "zero_spread": 1, "undecided": 2}
    ((trained,),) = client.query(demo_report.FIGURES["rows_trained"]).result_rows
    ((rows,),) = client.query("SELECT sum(row_count) FROM v_trajectories").result_rows
    assert trained + sum(dropped.values()) == rows == 10
    client.close()


def test_a_mean_over_nothing_is_null() -> None:
    class Answer:
        rows = ((math.nan,),)

    assert demo_report.figure(lambda _: Answer(), "SELECT avg(1) WHERE false") is None  # pyright: ignore[reportArgumentType, reportUnknownLambdaType] test
