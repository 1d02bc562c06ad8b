"""How a member leaves its group in the middle of what the group does."""

from __future__ import annotations

import subprocess
import sys
import time

from waiting import LIMIT_S, until

from spanloop.infra.kafka import Member, Position
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import TASKS

LEAVES = """
import sys, time
from spanloop.infra.kafka import Member
from spanloop.infra.settings import Settings
from spanloop.schemas.topics import TASKS

class Slow(Member):
    def _assigned(self, consumer, parts):
        time.sleep(i * 2e-5)
        super()._assigned(consumer, parts)

settings = Settings(profile="embedded", bootstrap=sys.argv[1], prefix=sys.argv[2])
for i in range(60):
    member = Slow(settings, f"test{i}", [TASKS])
    while not member.raw().memberid():
        time.sleep(0.001)
    time.sleep(0.01)
    member.close()
"""


def test_a_member_that_leaves_takes_nothing_of_what_it_was_about_to_be_given(embedded_settings: Settings) -> None:
    given: list[list[Position]] = []
    taken: list[list[Position]] = []
    member = Member(embedded_settings, "test", [TASKS], on_assign=given.append, on_revoke=taken.append)
    until(lambda: bool(member.raw().memberid()), "it to join, which it does without being polled")
    time.sleep(0.5)  # the assignment follows
    member.close()
    assert given == taken == []


def test_members_that_leave_while_they_are_given_partitions_all_do(embedded_settings: Settings) -> None:
    # One that does not holds the interpreter's lock for ever: only a process of its own can be ended then.
    settings = embedded_settings
    command = [sys.executable, "-c", LEAVES, settings.bootstrap, settings.prefix]
    subprocess.run(command, check=True, timeout=LIMIT_S)
