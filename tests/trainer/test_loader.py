"""The loader against a real engine process and the embedded broker."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch
from loader_rig import DEADLINE_S, POLICY, PROBE_IDS, answer, beats, probe_of, resource, running, version, weights
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType] its stubs are loose
from waiting import until

from spanloop.infra.engine_process import EngineProcess
from spanloop.infra.kafka import Reader
from spanloop.infra.producer import Producer
from spanloop.infra.settings import Settings
from spanloop.schemas import topics
from spanloop.schemas.errors import Fenced, Unavailable
from spanloop.schemas.records import Resource
from spanloop.trainer.loader import LoaderService
from spanloop.trainer.loader_engine import EngineClient, WeightsRefused
from spanloop.trainer.tiny import make_policy


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    make_policy(folder, 0)
    return folder


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[EngineProcess]:
    with EngineProcess(model, served_model_name=POLICY) as running:
        yield running


@pytest.fixture
def http(engine: EngineProcess) -> Iterator[httpx.Client]:
    """A client of an engine that nothing is loaded into yet."""
    with httpx.Client(base_url=engine.url, timeout=60) as client:
        client.post("/update_weight_version", json={"new_version": "default"})
        client.post("/resume")
        yield client


@pytest.fixture
def producer(embedded_settings: Settings) -> Iterator[Producer]:
    with closing(Producer(embedded_settings, "test")) as made:
        yield made


def test_a_published_version_is_served_stamped_and_told(
    embedded_settings: Settings, engine: EngineProcess, http: httpx.Client, producer: Producer, tmp_path: Path
) -> None:
    loader = LoaderService(embedded_settings, engine.url, POLICY)
    before = answer(http)[0]
    with running(loader):
        until(lambda: any(b.host == engine.url for b in beats(embedded_settings)), "a first heartbeat")
        assert not any(b.alive for b in beats(embedded_settings))  # there is no version yet
        producer.send_wait(resource(1, weights(tmp_path / "v1", 1)))
        until(lambda: loader.served == 1, "version 1 served")
        tokens, runs = answer(http)
        assert tokens != before
        assert runs == [{"version": "1", "start": 0, "end": 20}]
        producer.send_wait(resource(2, weights(tmp_path / "v2", 2)))
        until(lambda: version(http) == "2", "version 2 stamped")
        until(lambda: any(b.policy_version == 2 for b in beats(embedded_settings)), "a heartbeat of version 2")
    told = beats(embedded_settings)
    serving = next(b for b in told if b.policy_version == 2)
    assert (serving.role, serving.host, serving.policy, serving.alive) == ("engine", engine.url, POLICY, True)
    assert serving.versions == {"logprobs_mode": "processed_logprobs"}
    assert (told[-1].alive, told[-1].labels) == (False, [])
    assert [b.policy_version for b in told] == sorted((b.policy_version for b in told), key=lambda v: v or 0)


def test_of_several_waiting_versions_only_the_newest_is_loaded(
    embedded_settings: Settings, engine: EngineProcess, http: httpx.Client, producer: Producer, tmp_path: Path
) -> None:
    folder = weights(tmp_path / "v", 1)
    probe = probe_of(folder)
    for number in (1, 2, 3):
        producer.send_wait(resource(number, folder, probe=probe))
    producer.send_wait(replace(resource(9, folder, probe=probe), name="another"))
    loader = LoaderService(embedded_settings, engine.url, POLICY)
    with running(loader):
        until(lambda: loader.served == 3, "version 3 served")
    assert loader.loads == 1
    assert version(http) == "3"


def _bad(kind: str, good: Path, folder: Path) -> Resource:
    make_policy(folder, 5)
    if kind == "shape":
        tensors = load_file(folder / "model.safetensors")
        tensors["lm_head.weight"] = torch.zeros(3, 3)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return resource(2, folder, probe=probe_of(good))
    if kind == "probe":  # whole weights, but not those that were published
        return resource(2, folder, probe=probe_of(good))
    if kind == "nan":
        tensors = {name: tensor * float("nan") for name, tensor in load_file(folder / "model.safetensors").items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return resource(2, folder, probe=probe_of(good))
    if kind == "sha256":
        return resource(2, folder, sha256="0" * 64)
    return replace(resource(2, folder), uri=str(folder / "gone"))


@pytest.mark.parametrize("kind", ["shape", "probe", "nan", "sha256", "folder"])
def test_a_bad_version_is_counted_and_the_last_good_one_kept(
    embedded_settings: Settings,
    engine: EngineProcess,
    http: httpx.Client,
    producer: Producer,
    tmp_path: Path,
    kind: str,
) -> None:
    good = weights(tmp_path / "good", 1)
    producer.send_wait(resource(1, good))
    loader = LoaderService(embedded_settings, engine.url, POLICY)
    with running(loader):
        until(lambda: loader.served == 1, "version 1 served")
        before = answer(http)
        producer.send_wait(_bad(kind, good, tmp_path / "bad"))
        until(lambda: loader.refused == 1, "version 2 refused")
        assert answer(http) == before  # queued while the engine is paused, answered with version 1 again
        assert loader.served == 1
        producer.send_wait(resource(3, weights(tmp_path / "next", 3)))
        until(lambda: loader.served == 3, "version 3 served")
        assert loader.refused == 1
    assert all(b.policy_version != 2 for b in beats(embedded_settings))


def test_an_engine_that_lost_its_weights_gets_them_again(
    embedded_settings: Settings, engine: EngineProcess, http: httpx.Client, producer: Producer, tmp_path: Path
) -> None:
    producer.send_wait(resource(1, weights(tmp_path / "v1", 1)))
    loader = LoaderService(embedded_settings, engine.url, POLICY)
    with running(loader):
        until(lambda: loader.served == 1, "version 1 served")
        http.post("/update_weight_version", json={"new_version": "default"})  # as after a restart
        until(lambda: loader.loads == 2, "loaded again")
        assert version(http) == "1"


def test_an_engine_that_comes_later_is_waited_for(
    embedded_settings: Settings, producer: Producer, model: Path, tmp_path: Path
) -> None:
    with EngineProcess(model, served_model_name=POLICY) as first:
        url, port = first.url, int(first.url.rsplit(":", 1)[1])
        producer.send_wait(resource(1, weights(tmp_path / "v1", 1)))
        loader = LoaderService(embedded_settings, url, POLICY)
        with running(loader):
            until(lambda: loader.served == 1, "version 1 served")
            first.close()
            until(lambda: not beats(embedded_settings)[-1].alive, "a heartbeat that says it is down")
            with EngineProcess(model, served_model_name=POLICY, port=port) as second:
                until(lambda: loader.loads == 2, "version 1 loaded into the new engine")
                with httpx.Client(base_url=second.url) as client:
                    assert version(client) == "1"


def test_a_frozen_engine_is_stamped_without_a_probe(
    embedded_settings: Settings, producer: Producer, model: Path, tmp_path: Path
) -> None:
    producer.send_wait(resource(1, weights(tmp_path / "v1", 1)))
    with (
        EngineProcess(model, served_model_name=POLICY, frozen=True) as frozen,
        httpx.Client(base_url=frozen.url, timeout=60) as client,
    ):
        before = answer(client)[0]
        loader = LoaderService(embedded_settings, frozen.url, POLICY, verify=False)
        with running(loader):
            until(lambda: loader.served == 1, "version 1 said to be served")
            assert answer(client) == (before, [{"version": "1", "start": 0, "end": 20}])


def test_weights_probed_after_the_resume_are_stamped_only_when_they_passed(
    embedded_settings: Settings, engine: EngineProcess, http: httpx.Client, producer: Producer, tmp_path: Path
) -> None:
    good = weights(tmp_path / "v1", 1)
    producer.send_wait(resource(1, good))
    loader = LoaderService(embedded_settings, engine.url, POLICY, paused_probe=False)
    with running(loader):
        until(lambda: loader.served == 1, "version 1 served")
        before = answer(http)
        producer.send_wait(_bad("probe", good, tmp_path / "bad"))
        until(lambda: loader.refused == 1 and version(http) == "1", "version 1 again")
        until(lambda: loader.loads == 2, "version 1 loaded again")
        assert answer(http) == before


def test_an_engine_paused_by_a_call_without_an_answer_goes_on_where_the_version_is_then_refused(
    embedded_settings: Settings,
    engine: EngineProcess,
    http: httpx.Client,
    producer: Producer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause, gone = EngineClient.pause, weights(tmp_path / "v2", 2)

    def unanswered(client: EngineClient) -> None:
        pause(client)
        if gone.exists():
            shutil.rmtree(gone)  # as a trainer prunes it
            raise Unavailable("the connection was reset")

    producer.send_wait(resource(1, weights(tmp_path / "v1", 1)))
    loader = LoaderService(embedded_settings, engine.url, POLICY)
    with running(loader):
        until(lambda: loader.served == 1, "version 1 served")
        monkeypatch.setattr(EngineClient, "pause", unanswered)
        producer.send_wait(resource(2, gone))
        until(lambda: loader.refused == 1, "version 2 refused")
        until(lambda: loader.loads == 2, "version 1 loaded again")
        assert http.get("/is_paused").json() == {"is_paused": False}
    assert version(http) == "1"


def test_an_engine_that_refuses_to_pause_goes_on_serving_what_it_has(
    embedded_settings: Settings,
    engine: EngineProcess,
    producer: Producer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(_: EngineClient) -> None:
        raise WeightsRefused("POST /pause: status 500")

    producer.send_wait(resource(1, weights(tmp_path / "v1", 1)))
    loader = LoaderService(embedded_settings, engine.url, POLICY)
    with running(loader):
        until(lambda: loader.served == 1, "version 1 served")
        monkeypatch.setattr(EngineClient, "pause", refused)
        producer.send_wait(resource(2, weights(tmp_path / "v2", 2)))
        until(lambda: loader.refused == 1, "version 2 refused")
        time.sleep(0.5)
        assert (loader.refused, loader.served) == (1, 1)


def test_a_second_loader_of_an_engine_is_refused(
    embedded_settings: Settings, engine: EngineProcess, http: httpx.Client, producer: Producer, tmp_path: Path
) -> None:
    producer.send_wait(resource(1, weights(tmp_path / "v1", 1)))
    first = LoaderService(embedded_settings, engine.url, POLICY, name="first")
    with running(first) as still:
        until(lambda: first.served == 1, "version 1 served")
        second = LoaderService(embedded_settings, engine.url + "/", POLICY, name="second")
        with running(second) as refused, pytest.raises(Fenced, match="another live loader, 'first'"):
            refused.result(DEADLINE_S)
        assert second.loads == 0
        assert not still.done()
        assert version(http) == "1"


def test_a_loader_takes_over_from_one_that_said_goodbye(
    embedded_settings: Settings, engine: EngineProcess, http: httpx.Client, producer: Producer, tmp_path: Path
) -> None:
    producer.send_wait(resource(1, weights(tmp_path / "v1", 1)))
    for _ in range(2):
        loader = LoaderService(embedded_settings, engine.url, POLICY)
        with running(loader):
            until(lambda: loader.served == 1, "version 1 served")  # noqa: B023 - called before the next turn
    assert version(http) == "1"


def test_a_conflicting_version_is_quarantined_and_not_loaded(
    embedded_settings: Settings, engine: EngineProcess, http: httpx.Client, producer: Producer, tmp_path: Path
) -> None:
    first = weights(tmp_path / "v1", 1)
    producer.send_wait(resource(1, first))
    loader = LoaderService(embedded_settings, engine.url, POLICY)
    with running(loader), closing(Reader(embedded_settings, "letters")) as reader:
        until(lambda: loader.served == 1, "version 1 served")
        producer.send_wait(resource(1, weights(tmp_path / "other", 2)))
        reader.assign_topics([topics.DEAD_LETTERS])
        until(lambda: bool(reader.poll()), "a dead letter")
        assert loader.loads == 1
    assert version(http) == "1"


def test_the_probe_of_an_engine_is_scored_at_temperature_one(
    engine: EngineProcess, http: httpx.Client, model: Path
) -> None:
    http.post(
        "/collective_rpc", json={"method": "reload_weights", "kwargs": {"weights_path": str(model)}}
    ).raise_for_status()
    with closing(EngineClient(engine.url, POLICY)) as client:
        expected = json.loads(probe_of(model))["logprobs"][1:]
        assert client.score(PROBE_IDS) == pytest.approx(expected, abs=1e-4)
