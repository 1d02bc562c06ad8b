"""Each part starts before its registry does: it waits with a message, then works (BR-6)."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from in_thread import in_thread
from waiting import until

from spanloop.consumers.export import ExportService
from spanloop.infra import admin
from spanloop.infra.embedded_registry import EmbeddedRegistry
from spanloop.infra.kafka import Reader
from spanloop.infra.process import Part
from spanloop.infra.real_kafka import free_port
from spanloop.infra.settings import Settings
from spanloop.producers.agent import rollout
from spanloop.producers.gateway import GatewayService
from spanloop.producers.worker import WorkerPolicy, WorkerService
from spanloop.schemas.topics import WORKERS
from spanloop.streams.assembler_service import AssemblerService
from spanloop.streams.controller_shell import ControllerService

TIMEOUT_S = 60.0
Works = Callable[[], bool]


@rollout
def idle(task: dict[str, object]) -> None:
    del task


def worker(settings: Settings) -> tuple[Part, Works]:
    def beats() -> bool:
        reader = Reader(settings, "beats")
        try:
            return reader.watermarks((WORKERS.name, 0))[1] > 0
        finally:
            reader.close()

    return WorkerService(settings, idle, WorkerPolicy(trace=False)), beats


def gateway(settings: Settings) -> tuple[Part, Works]:
    service = GatewayService(settings, port=0)
    return service, service.ready.is_set


def assembler(settings: Settings) -> tuple[Part, Works]:
    service = AssemblerService(settings)
    return service, lambda: service.app is not None and service.app.is_ready


def export(settings: Settings) -> tuple[Part, Works]:
    folder = settings.home / "topics"
    return ExportService(settings, folder), folder.is_dir


def controller(settings: Settings) -> tuple[Part, Works]:
    service = ControllerService(settings)
    return service, lambda: service.state is not None


def starts_before_its_registry(
    make: Callable[[Settings], tuple[Part, Works]], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    settings = settings.with_(registry_url=f"http://127.0.0.1:{port}")
    part, works = make(settings)
    with caplog.at_level(logging.WARNING, "spanloop.infra.registry"), in_thread(part, TIMEOUT_S) as run:
        until(lambda: bool(run.raised) or f"127.0.0.1:{port} cannot be reached" in caplog.text, "its message")
        assert not run.raised
        assert not works()
        with EmbeddedRegistry(port):
            admin.register(settings)
            until(lambda: bool(run.raised) or works(), "it to work")


@pytest.mark.parametrize("make", [worker, gateway, assembler, export])
def test_a_part_waits_for_its_registry_with_a_message_and_goes_on(
    make: Callable[[Settings], tuple[Part, Works]], embedded_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    starts_before_its_registry(make, embedded_settings, caplog)


@pytest.mark.kafka
def test_the_controller_waits_for_its_registry_with_a_message_and_goes_on(
    kafka_settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    starts_before_its_registry(controller, kafka_settings, caplog)
