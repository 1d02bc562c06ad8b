from __future__ import annotations

from pathlib import Path

from spanloop.consumers.letters import LAST_COUNTS
from spanloop.infra.access import PARTS, REPLAYED, rows
from spanloop.schemas.topics import DEAD_LETTERS, TOPICS

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_page_on_security_has_the_same_table() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    begin = lines.index("|---|---|---|---|---|---|---|") + 1
    assert lines[begin : begin + len(PARTS)] == list(rows())
    assert not lines[begin + len(PARTS)].startswith("|")


def test_whoever_shares_in_the_loop_may_write_dead_letters_and_somebody_writes_each_topic() -> None:
    for part in ("controller", "assembler", "worker", "gateway", "sink", "trainer", "loader"):
        assert DEAD_LETTERS in PARTS[part].writes
    assert {t.name for access in PARTS.values() for t in access.writes} == set(TOPICS)
    assert [part for part, access in PARTS.items() if access.transactional] == ["controller"]


def test_a_replay_may_write_what_letters_are_put_back_on() -> None:
    assert {t.name for t in REPLAYED} == TOPICS.keys() - LAST_COUNTS - {DEAD_LETTERS.name}
