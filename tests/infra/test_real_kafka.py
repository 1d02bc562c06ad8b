from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from importlib.resources import files
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin._config import ConfigEntry, ConfigResource
from waiting import gone, until

from spanloop.infra import admin, real_kafka
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.kafka import METADATA_TIMEOUT_S, Reader
from spanloop.infra.kafka import admin as kafka_admin
from spanloop.infra.kafka_node import finish, stop_all
from spanloop.infra.owner import owned
from spanloop.infra.producer import Producer
from spanloop.infra.real_kafka import LOCK, RealCluster, RealKafka, free_port, missing
from spanloop.infra.settings import Settings
from spanloop.schemas.errors import ConfigError
from spanloop.schemas.records import Task
from spanloop.schemas.topics import TASKS

SCRIPTS = Path(str(files("spanloop.infra"))) / "kafka"


TIMEOUT_S = 60.0


def fake_java(folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        assert "no java on the path" in (missing(tmp_path) or "")
    fake_java(tmp_path, monkeypatch, "11.0.2")
    assert "11.0.2" in (missing(tmp_path) or "")
    fake_java(tmp_path, monkeypatch, "17.0.15")
    assert f"fetch.sh {tmp_path}" in (missing(tmp_path) or "")
    (tmp_path / "complete").touch()
    assert missing(tmp_path) is None


def test_a_java_that_does_not_answer_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "java").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "java").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(real_kafka, "JAVA_TIMEOUT_S", 0.1)
    assert f"{tmp_path / 'java'} did not tell its version within 0.1 s" in (missing(tmp_path) or "")


def test_without_jars_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, monkeypatch, "17.0.15")
    with pytest.raises(ConfigError, match=r"no Kafka jars in .*fetch\.sh"):
        RealKafka(tmp_path / "home", dist=tmp_path)


def test_a_folder_in_use_by_a_live_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, monkeypatch, "17.0.15")
    (tmp_path / "complete").touch()
    held = "from pathlib import Path; from spanloop.infra.owner import owned\nwith owned(Path('.'), 'kafka.lock'): "
    command = [sys.executable, "-c", held + "print(flush=True); input()"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(ConfigError, match=f"in use by process {other.pid}"):
            RealKafka(tmp_path, dist=tmp_path)
        other.kill()


def test_a_folder_whose_owner_died_is_free_whoever_has_its_process_id_now(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text(str(os.getppid()))
    with owned(tmp_path, LOCK):
        assert (tmp_path / LOCK).read_text() == str(os.getpid())


def test_a_free_port_has_free_neighbours_where_asked() -> None:
    port = free_port(together=2)
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", port))
        second.bind(("127.0.0.1", port + 1))


@pytest.mark.parametrize("script", sorted(p.name for p in SCRIPTS.glob("*.sh")))
def test_scripts_are_sound_bash_and_name_no_host(script: str) -> None:
    subprocess.run(["bash", "-n", str(SCRIPTS / script)], check=True)
    text = (SCRIPTS / script).read_text()
    assert "https://" not in text
    assert "http://" not in text.replace("http://127.0.0.1", "")


def test_stopping_ends_no_process_that_was_not_started_here(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (tmp_path / "pid").write_text(str(other.pid))
        subprocess.run(["bash", str(SCRIPTS / "stop_kafka.sh"), str(tmp_path)], check=True)
        assert other.poll() is None
        assert not (tmp_path / "pid").exists()
        other.kill()


def test_what_had_to_be_killed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sleep").write_text("#!/bin/sh\n")  # the ten seconds until then
    (tmp_path / "sleep").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for number, told in ((signal.SIG_IGN, "was killed"), (signal.SIG_DFL, "")):
        code = f"import signal; signal.signal(signal.SIGTERM, signal.{number.name}); print(flush=True); input()"
        command = [sys.executable, "-c", code, "kafka.Kafka "]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
            assert node.stdout is not None
            node.stdout.readline()
            (tmp_path / "pid").write_text(str(node.pid))
            caplog.clear()
            stop_all([tmp_path])
            assert node.wait() == (-signal.SIGKILL if told else -signal.SIGTERM)
        assert told in caplog.text
        assert bool(caplog.text) is bool(told)


def test_a_process_that_is_held_ends_in_order_too(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print(flush=True); input()", "apicurio-registry"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as held:
        assert held.stdout is not None
        held.stdout.readline()
        (tmp_path / "pid").write_text(str(held.pid))
        held.send_signal(signal.SIGSTOP)
        stop_all([tmp_path])
        assert held.wait() == -signal.SIGTERM


def test_a_start_that_is_interrupted_leaves_no_script_that_goes_on() -> None:
    class Interrupted(subprocess.Popen[str]):
        def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
            del input, timeout
            raise KeyboardInterrupt

    line = "sleep 600 & echo $!; wait"
    with Interrupted(["bash", "-c", line], stdout=subprocess.PIPE, text=True, start_new_session=True) as starting:
        assert starting.stdout is not None
        below = int(starting.stdout.readline())
        with pytest.raises(KeyboardInterrupt):
            finish([starting])
        assert starting.returncode == -signal.SIGKILL
    until(lambda: gone(below), "what the script ran")


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for script in ("start_kafka.sh", "start_registry.sh"):
            done = subprocess.run(
                ["bash", str(SCRIPTS / script), str(port), str(tmp_path)], capture_output=True, text=True, check=False
            )
            assert done.returncode == 1
            assert f"port {port} is taken" in done.stderr


@pytest.mark.kafka
def test_starting_again_what_runs_changes_nothing(real_kafka: RealKafka) -> None:
    port = real_kafka.bootstrap.rpartition(":")[2]
    home = real_kafka.home / "kafka"
    before = (home / "pid").read_text()
    subprocess.run(["bash", str(SCRIPTS / "start_kafka.sh"), port, str(home)], check=True)
    assert (home / "pid").read_text() == before


@pytest.mark.kafka
@pytest.mark.slow
def test_a_broker_does_not_outlive_an_owner_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from spanloop.infra.real_kafka import RealKafka
with RealKafka(Path({str(tmp_path)!r}), registry=False):
    print("serves", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "serves\n"
            broker = int((tmp_path / "kafka" / "pid").read_text())
            os.kill(broker, 0)
        finally:
            owner.kill()
    until(lambda: gone(broker), "the broker to end")


@pytest.mark.kafka
@pytest.mark.slow
def test_a_cluster_of_three_serves_while_one_of_it_is_killed(
    real_cluster: RealCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    settings = Settings(
        bootstrap=real_cluster.bootstrap, registry_url=registry.url, prefix="three", replication=3, home=tmp_path
    )
    admin.init(settings)
    client = kafka_admin(settings)
    topic = TASKS.full(settings.prefix)

    def in_sync() -> int:
        try:
            return len(client.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic].partitions[0].isrs)
        except KafkaException:  # the node that was asked is the one just lost
            return 0

    asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
    ask = cast("Callable[..., dict[ConfigResource, Future[dict[str, ConfigEntry]]]]", client.describe_configs)  # pyright: ignore[reportUnknownMemberType]  # its stub leaves the future's type open
    assert ask([asked])[asked].result()["min.insync.replicas"].value == "2"
    with closing(Producer(settings, "cluster")) as producer:
        producer.send_wait(Task("ro-1", "run-1"), TIMEOUT_S)
        real_cluster.kill(2)
        until(lambda: in_sync() == 2, "the dead replica to be left out")
        producer.send_wait(Task("ro-2", "run-1"), TIMEOUT_S)
        real_cluster.start(2)
        until(lambda: in_sync() == 3, "the third replica to catch up")
    read: list[bytes | None] = []
    with closing(Reader(settings, "cluster")) as reader:
        reader.assign_topics([TASKS])
        until(lambda: read.extend(m.key for m in reader.poll()) or len(read) >= 2, "both records")
    assert read == [b"ro-1", b"ro-2"]


def test_the_jars_are_kept_in_the_checkout_or_in_a_cache() -> None:
    assert real_kafka.default_dist().name in (".kafka", "kafka")
