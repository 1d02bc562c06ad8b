"""The loader's decisions, without an engine or a broker."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spanloop.infra.clock import ManualClock
from spanloop.schemas.errors import ConflictingResource
from spanloop.schemas.records import Resource, Worker
from spanloop.trainer.loader_plan import LEASE_LABEL, LEASE_S, Lease, Versions

POLICY = "policy"


def beat(worker: str, clock: ManualClock, *, held: bool = True) -> Worker:
    labels = [LEASE_LABEL] if held else []
    return Worker(worker_id=worker, role="engine", host="http://e:1", labels=labels, beat_ns=clock.now_ns())


def test_a_lease_goes_to_the_first_and_to_another_only_after_silence() -> None:
    clock, lease = ManualClock(), Lease("http://e:1")

    def holder() -> str | None:
        return None if lease.holder is None else lease.holder.worker_id

    assert lease.free(clock.now_ns())
    lease.see(beat("a", clock))
    lease.see(beat("b", clock))
    assert holder() == "a"
    clock.advance(LEASE_S)
    assert not lease.free(clock.now_ns())
    lease.see(beat("b", clock))
    assert holder() == "a"
    clock.advance(0.1)
    assert lease.free(clock.now_ns())
    lease.see(beat("b", clock))
    assert holder() == "b"
    lease.see(beat("a", clock))
    assert holder() == "b"
    lease.see(beat("a", clock, held=False))
    assert holder() == "b"
    lease.see(beat("b", clock, held=False))
    assert holder() is None


def test_other_engines_and_roles_have_no_say_in_a_lease() -> None:
    clock, lease = ManualClock(), Lease("http://e:1")
    lease.see(replace(beat("a", clock), host="http://e:2"))
    lease.see(replace(beat("a", clock), role="worker"))
    assert lease.holder is None


def made(number: int, epoch: int = 1) -> Resource:
    return Resource(name=POLICY, version=number, kind="policy", uri=f"/w/{number}", epoch=epoch)


def test_the_newest_writer_decides_which_version_is_wanted() -> None:
    versions = Versions(POLICY)
    assert versions.wanted(None) is None
    for record in (made(1), made(2), made(3, epoch=2), made(4, epoch=1)):  # 4 came from a trainer that was fenced
        versions.see(record)
    assert versions.wanted(2) == made(3, epoch=2)
    assert versions.wanted(3) is None


def test_a_refused_version_gives_way_to_the_last_good_one() -> None:
    versions = Versions(POLICY)
    versions.see(made(1))
    versions.good(made(1))
    versions.see(made(2))
    versions.refuse(made(2))
    assert versions.wanted(1) is None
    assert versions.wanted(None) == made(1)
    versions.refuse(made(1))  # its folder is gone
    assert versions.wanted(None) is None
    versions.see(made(3))
    assert versions.wanted(None) == made(3)


def test_the_first_record_of_a_version_wins() -> None:
    versions = Versions(POLICY)
    versions.see(made(1))
    versions.see(replace(made(1), created_ns=5))  # the same again
    with pytest.raises(ConflictingResource, match="never reused"):
        versions.see(replace(made(1), uri="/elsewhere"))
    assert versions.newest == made(1)
