"""Log lines: who they are about, for people and for machines, and no secret in any of them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator

import pytest

from spanloop.infra import logs
from spanloop.infra.logs import Seldom, bound
from spanloop.infra.masking import Masker, secrets_of
from spanloop.infra.settings import Settings

SECRETS = Settings(
    secret="hush-hush",
    clickhouse_url="http://me:p%40ssw0rd@ch:8123",
    kafka={"sasl.password": "k4fka-pw", "ssl.key.password": "key-pw", "security.protocol": "SASL_SSL"},
)


@pytest.fixture(autouse=True)
def _root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    quiet = {name: logging.getLogger(name).level for name in logs.QUIET}
    yield
    logs.configure()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name, before in quiet.items():
        logging.getLogger(name).setLevel(before)


def said(capsys: pytest.CaptureFixture[str], *names: str) -> list[str]:
    """Lines of the loggers named, else all: services that other tests share may have something to tell meanwhile."""
    lines = capsys.readouterr().err.splitlines()
    return [line for line in lines if not names or any(name in line for name in names)]


def test_a_line_tells_whom_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings(log_format="json"))
    log = logging.getLogger("spanloop.test")
    with bound(rollout_id="ro-1", run_id=None), bound(attempt_id="at-1"):
        log.warning("took %d", 3)
    log.error("alone", extra={"topic": "spans"})
    first, second = map(json.loads, said(capsys, "spanloop.test"))
    assert first.pop("at").endswith("Z")
    assert first == {
        "level": "warning",
        "logger": "spanloop.test",
        "message": "took 3",
        "rollout_id": "ro-1",
        "attempt_id": "at-1",
    }
    assert (second["message"], second["topic"], "rollout_id" in second) == ("alone", "spans", False)


def test_people_read_one_line_with_the_ids_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    with bound(rollout_id="ro-1"):
        logging.getLogger("spanloop.test").warning("took it")
    (line,) = said(capsys, "spanloop.test")
    assert line.endswith(" spanloop.test WARNING took it rollout_id=ro-1")


def test_what_a_library_keeps_for_itself_in_every_record_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings(log_format="json"))
    logging.getLogger("spanloop.test").warning("said", extra={"_library_ns": 1, "topic": "spans"})
    (line,) = map(json.loads, said(capsys, "spanloop.test"))
    assert (line["topic"], sorted(line)) == ("spans", ["at", "level", "logger", "message", "topic"])


def test_a_library_that_says_the_same_every_few_milliseconds_is_heard_now_and_then() -> None:
    now_s = 1000.0
    seldom = Seldom(lambda: now_s)

    def heard(text: str, *args: object, name: str = "aiokafka.client", level: int = logging.ERROR) -> str | None:
        record = logging.LogRecord(name, level, "", 0, text, args, None)
        told = seldom.heard(record)
        return None if told is None else told.getMessage()

    assert heard("no connection to node %s: %s", 1, "refused") == "no connection to node 1: refused"
    assert [heard("no connection to node %s: %s", 1, n) for n in range(100)] == [None] * 100
    assert heard("no connection to node %s: %s", 2, "a certificate") is not None
    assert heard("no connection to node %s: %s", 1, "a warning", level=logging.WARNING) is not None
    assert heard("no connection to node %s: %s", 1, "ours", name="spanloop.test") is not None
    now_s += logs.AGAIN_S
    again = heard("no connection to node %s: %s", 1, "reset")
    assert again == "no connection to node 1: reset (and 100 times like it before)"


def test_our_own_lines_are_all_written(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    for number in range(3):
        logging.getLogger("spanloop.test").error("told %d", number)
    assert len(said(capsys, "spanloop.test")) == 3


def test_ids_are_those_of_the_context_and_not_of_another_thread() -> None:
    seen: list[dict[str, str]] = []
    with bound(rollout_id="ro-1"):
        thread = threading.Thread(target=lambda: seen.append(logs.ids()))
        thread.start()
        thread.join(60)
        assert logs.ids() == {"rollout_id": "ro-1"}
    assert seen == [{}]
    assert logs.ids() == {}


def test_levels_come_from_the_settings_else_from_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("spanloop.test")
    logs.configure(Settings(), level="INFO")
    log.info("told")
    logging.getLogger("httpx").info("every request")
    logs.configure(Settings(log_level="error"), level="INFO")
    log.warning("not told")
    assert [line.split()[-1] for line in said(capsys, "spanloop.test", "httpx")] == ["told"]


def test_configuring_again_does_not_say_everything_twice(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logs.configure(Settings())
    logging.getLogger("spanloop.test").warning("once")
    assert len(said(capsys, "spanloop.test")) == 1


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_secret_of_the_settings_is_ever_written(capsys: pytest.CaptureFixture[str], log_format: str) -> None:
    logs.configure(SECRETS.with_(log_format=log_format))
    log = logging.getLogger("a.library")
    log.warning("%s", SECRETS)
    log.warning("signed with hush-hush at %s", SECRETS.clickhouse_url, extra={"config": SECRETS.kafka})
    try:
        raise ValueError("refused: k4fka-pw, decoded p@ssw0rd")
    except ValueError:
        log.exception("failed")
    text = "\n".join(said(capsys))
    for secret in ("hush-hush", "p%40ssw0rd", "p@ssw0rd", "k4fka-pw", "key-pw"):
        assert secret not in text
    assert "SASL_SSL" in text
    assert "ValueError: refused: ***" in text.replace("\\n", "\n")
    assert "hush-hush" not in logs.masked("hush-hush")


def test_a_password_that_is_its_users_name_is_a_word_like_any_other() -> None:
    settings = Settings(clickhouse_url="http://spanloop:spanloop@ch:8123")
    assert "run `spanloop init`" in Masker(secrets_of(settings))("run `spanloop init`")
    assert "spanloop:***@ch" in repr(settings)


def test_settings_do_not_show_their_secrets() -> None:
    shown = repr(SECRETS) + str(SECRETS)
    for secret in ("hush-hush", "p%40ssw0rd", "k4fka-pw", "key-pw"):
        assert secret not in shown
    assert "http://me:***@ch:8123" in shown
    assert SECRETS.environment()["SPANLOOP_SECRET"] == "hush-hush"  # a child process needs it


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("GET http://user:pw1234@host:1/x failed", "GET http://user:***@host:1/x failed"),
        ("Authorization: Bearer abcdef.ghi", "Authorization: Bearer ***"),
        ("key sk-abcdefgh123 refused", "key sk-*** refused"),
        ("{'sasl.password': 'x y', 'a': 1}", "{'sasl.password': ***, 'a': 1}"),
        ("api_key=abc, next", "api_key=***, next"),
        ("expected http://user:password@host:port", "expected http://user:password@host:port"),
        ("another secret; SPANLOOP_SECRET must be equal", "another secret; SPANLOOP_SECRET must be equal"),
        ("3 tokens, ro-1", "3 tokens, ro-1"),
    ],
)
def test_what_looks_like_a_secret_is_masked_and_nothing_else(text: str, masked: str) -> None:
    assert Masker()(text) == masked
