from __future__ import annotations

from pathlib import Path

import pytest

from spanloop.infra.settings import LOCAL, Settings
from spanloop.schemas.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_arguments_come_before_variables_before_the_file_before_defaults(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spanloop.toml").write_text('bootstrap = "file:1"\nprefix = "file"\npartitions = 3\ndlq_limit = 7\n')
    monkeypatch.setenv("SPANLOOP_BOOTSTRAP", "variable:1")
    monkeypatch.setenv("SPANLOOP_PREFIX", "variable")
    settings = Settings(bootstrap="argument:1")
    assert (settings.bootstrap, settings.prefix, settings.partitions) == ("argument:1", "variable", 3)
    assert settings.dlq_limit == 7
    assert settings.replication == 1


def test_librdkafka_settings_are_read_from_a_table_and_from_json(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "spanloop.toml").write_text('[kafka]\n"security.protocol" = "SASL_SSL"\n')
    assert Settings().kafka == {"security.protocol": "SASL_SSL"}
    monkeypatch.setenv("SPANLOOP_KAFKA", '{"sasl.username": "me"}')
    assert Settings().kafka["sasl.username"] == "me"


def test_a_log_level_may_be_written_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANLOOP_LOG_LEVEL", "INFO")
    assert Settings().log_level == "info"


def test_an_unknown_key_of_the_file_is_an_error_naming_it(folder: Path) -> None:
    (folder / "spanloop.toml").write_text('bootstrapp = "broker:9092"\n')
    with pytest.raises(ConfigError, match="bootstrapp: there is no such setting"):
        Settings()


def test_an_unknown_variable_is_an_error_naming_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANLOOP_BOOTSTRP", "broker:9092")
    with pytest.raises(ConfigError, match="no such setting: SPANLOOP_BOOTSTRP"):
        Settings()


def test_an_unknown_argument_is_an_error_naming_it() -> None:
    with pytest.raises(ConfigError, match="brokers: there is no such setting"):
        Settings(brokers="broker:9092")


def test_a_value_out_of_range_is_an_error_naming_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANLOOP_PARTITIONS", "0")
    with pytest.raises(ConfigError, match=r"partitions: .*greater than or equal to 1"):
        Settings()


@pytest.mark.parametrize("text", ["bootstrap = ", "bootstrap"])
def test_a_file_that_is_no_toml_is_an_error_naming_it(folder: Path, text: str) -> None:
    (folder / "spanloop.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"spanloop\.toml"):
        Settings()


def test_a_variable_that_should_hold_json_and_does_not_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANLOOP_KAFKA", "security.protocol=SASL_SSL")
    with pytest.raises(ConfigError, match="kafka"):
        Settings()


def test_settings_travel_to_a_child_process_unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings(**LOCAL, prefix="p", kafka={"security.protocol": "PLAINTEXT"}, home=tmp_path, max_block_s=0.5)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings


def test_settings_of_a_child_process_are_not_mixed_with_a_file_where_it_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "spanloop.toml").write_text('replication = 3\n[kafka]\n"security.protocol" = "SASL_SSL"\n')
    settings = Settings().with_(kafka={}, replication=1)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    assert Settings() == settings


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(ValueError, match="frozen"):
        settings.prefix = "other"
    assert settings.with_(prefix="other").prefix == "other"


@pytest.mark.parametrize("name", ["registry_url", "clickhouse_url", "gateway_url", "otel_endpoint"])
@pytest.mark.parametrize(
    "url", ["host:8081", "ftp://host:1", "http://", "http://host:99999", "http://host:abc", "http://[::1"]
)
def test_what_is_no_url_is_refused_and_not_told_for_its_password(name: str, url: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"setting {name}: expected http://host:port or https://host:port \("
    ) as said:
        Settings(**{name: url.replace("host", "user:secret@host")})
    assert "secret" not in str(said.value)


def test_white_space_around_a_url_is_not_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPANLOOP_REGISTRY_URL", " http://host:1\r\n")
    assert Settings().registry_url == "http://host:1"


def test_a_settings_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "spanloop.toml").symlink_to("/proc/self/mem")  # not even root reads its first bytes
    with pytest.raises(ConfigError, match=r"settings cannot be read from .*spanloop\.toml"):
        Settings()
