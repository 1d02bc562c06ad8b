"""Engines by heartbeat: live, fitting, sticky."""

from __future__ import annotations

from spanloop.infra.clock import ManualClock
from spanloop.producers.gateway_engines import Engine, Engines, base_url
from spanloop.producers.gateway_policy import GatewayPolicy
from spanloop.schemas.records import Worker


def beat(engines: Engines, name: str, version: int | None = 1, *, policy: str | None = "p", alive: bool = True) -> None:
    engines.observe(
        Worker(name, role="engine", policy=policy, policy_version=version, host=f"http://{name}/v1", alive=alive)
    )


def test_an_attempt_keeps_its_engine_while_others_come_and_go() -> None:
    engines = Engines(GatewayPolicy(), ManualClock())
    for name in ("a", "b", "c", "d"):
        beat(engines, name)
    before = {f"at-{i}": engines.choose(f"at-{i}", "p", None) for i in range(200)}
    beat(engines, "d", alive=False)
    moved = [at for at, engine in before.items() if engines.choose(at, "p", None) != engine]
    on_d = [at for at, engine in before.items() if engine is not None and engine.worker_id == "d"]
    assert moved == on_d
    assert 20 < len(on_d) < 80


def test_an_engine_not_heard_of_is_not_used() -> None:
    clock = ManualClock()
    engines = Engines(GatewayPolicy(engine_stale_s=15), clock)
    beat(engines, "a")
    clock.advance(14)
    assert engines.choose("at", "p", None) is not None
    clock.advance(2)
    assert engines.choose("at", "p", None) is None
    assert "no live engine: none sent a heartbeat" in engines.missing("p", None)


def test_an_old_heartbeat_read_at_the_start_counts_by_its_age() -> None:
    engines = Engines(GatewayPolicy(engine_stale_s=15), ManualClock())
    worker = Worker("a", role="engine", policy="p", policy_version=1, host="a:1")
    engines.observe(worker, age_s=16)
    assert engines.live() == []
    engines.observe(worker, age_s=14)
    assert engines.live() == [Engine("a", "http://a:1", "p", 1)]


def test_only_engines_of_the_model_asked_for_and_fresh_enough_fit() -> None:
    engines = Engines(GatewayPolicy(), ManualClock())
    beat(engines, "a", 6)
    beat(engines, "b", None)
    assert [engines.choose("at", *wanted) is not None for wanted in (("p", 6), ("p", 7), ("q", None), ("", 6))] == [
        True,
        False,
        False,
        True,
    ]
    assert engines.missing("p", 7) == (
        "no live engine serves model 'p' at version 7 or newer; there is p version 6 at http://a, p version None at http://b"
    )


def test_workers_and_trainers_are_no_engines() -> None:
    engines = Engines(GatewayPolicy(), ManualClock())
    engines.observe(Worker("w", role="worker", host="http://a"))
    engines.observe(Worker("t", role="trainer", host="http://a"))
    assert engines.live() == []


def test_a_loader_that_restarts_takes_its_predecessors_place_and_its_late_goodbye_changes_nothing() -> None:
    engines = Engines(GatewayPolicy(), ManualClock())
    for name, alive in (("old", True), ("new", True), ("old", False)):
        engines.observe(Worker(name, role="engine", policy="p", policy_version=2, host="http://e", alive=alive))
    assert [engine.worker_id for engine in engines.live()] == ["new"]


def test_engines_already_tried_and_engines_that_failed_come_last() -> None:
    clock = ManualClock()
    engines = Engines(GatewayPolicy(), clock)
    beat(engines, "a")
    beat(engines, "b")
    first = engines.choose("at", "p", None)
    assert first is not None
    second = engines.choose("at", "p", None, [first.url])
    assert second is not None
    assert second != first
    engines.failed(first)
    assert engines.choose("at", "p", None) == second
    clock.advance(2)
    assert engines.choose("at", "p", None) == first


def test_the_mode_of_logprobs_comes_from_the_heartbeat_before_the_policy() -> None:
    engines = Engines(GatewayPolicy(logprob_mode="raw"), ManualClock())
    for name, versions in (("a", {"logprobs_mode": "processed_logprobs"}), ("b", dict[str, str]())):
        engines.observe(Worker(name, role="engine", host=f"http://{name}", versions=versions))
    assert [engine.logprob_mode for engine in engines.live()] == ["processed", "raw"]


def test_a_fixed_upstream_takes_every_model() -> None:
    engines = Engines(GatewayPolicy(upstream_url="https://api.example.com/v1/"))
    assert engines.choose("at", "anything", 99) == Engine(None, "https://api.example.com", None, None)


def test_a_base_url_has_a_scheme_and_no_v1() -> None:
    for text in ("127.0.0.1:8101", "http://127.0.0.1:8101/", "http://127.0.0.1:8101/v1"):
        assert base_url(text) == "http://127.0.0.1:8101"
