"""What the assembler's Faust app is configured with."""

from __future__ import annotations

from ..infra.settings import Settings
from ..schemas.topics import BIG_MAX_BYTES
from .credentials import credentials

BATCH = 500
# Faust warns of partitions without commits; ours are held back for as long as an attempt is open. And a member that
# fetches nothing for long would leave its group for ever: a spare one without partitions, one that catches up.
NEVER_S = 1e9


def faust_settings(settings: Settings) -> dict[str, object]:
    """Faust's settings; the traps they avoid are in its documentation and in docs/design.md.

    Of settings.kafka, which is librdkafka's, what is about security counts here too. Raises ConfigError.
    """
    return {
        "broker": [f"kafka://{host}" for host in settings.bootstrap.split(",")],
        "broker_credentials": credentials(settings.kafka),
        "store": "memory://",
        "value_serializer": "raw",
        "processing_guarantee": "at_least_once",
        "consumer_auto_offset_reset": "none",
        "consumer_max_fetch_size": BIG_MAX_BYTES,
        "broker_session_timeout": settings.session_timeout_s,
        "broker_heartbeat_interval": settings.session_timeout_s / 3,
        "broker_request_timeout": max(10.0, settings.session_timeout_s + 1),
        "broker_commit_livelock_soft_timeout": NEVER_S,
        "broker_max_poll_interval": NEVER_S,
        "broker_max_poll_records": BATCH,
        "stream_wait_empty": False,
        "stream_processing_timeout": NEVER_S,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "topic_partitions": settings.partitions,
        "web_enabled": False,
    }
