"""What a fault knows of an agent's work: what it has in hand, and that a line half written is none yet."""

from __future__ import annotations

import json
from pathlib import Path

from faults.diary import Diary


def test_an_attempt_is_in_hand_from_its_begin_until_it_is_over(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "diary")
    assert diary.in_hand(7) == set()
    told = [("at-1", "begun", "7"), ("at-2", "begun", "7"), ("at-3", "begun", "8"), ("at-1", "over", "7")]
    lines = "".join(json.dumps(["ro-1", *line]) + "\n" for line in told)
    diary.path.write_text(lines + '["ro-1", "at-2", "ov')
    assert diary.in_hand(7) == {"at-2"}
    assert diary.done(7) == {"at-1"}
    assert diary.told("begun") == [("at-1", "7"), ("at-2", "7"), ("at-3", "8")]
