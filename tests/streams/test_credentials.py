from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from faust.auth import SASLCredentials, SSLCredentials

from spanloop.infra.kafka_node import finish, script
from spanloop.schemas.errors import ConfigError
from spanloop.streams.credentials import credentials

SASL = {
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "me",
    "sasl.password": "k4fka-pw",
}


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA and a client's certificate."""
    folder = tmp_path_factory.mktemp("tls")
    finish([script("make_tls.sh", folder)])
    return folder


def test_without_security_there_are_no_credentials() -> None:
    assert credentials({}) is None
    assert credentials({"security.protocol": "PLAINTEXT", "socket.timeout.ms": "1000"}) is None


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
def test_sasl_without_tls(name: str) -> None:
    kafka = {k: v for k, v in SASL.items() if k != "sasl.mechanism"} | {name: "PLAIN"}
    found = credentials(kafka)
    assert isinstance(found, SASLCredentials)
    assert (found.protocol.value, found.mechanism.value) == ("SASL_PLAINTEXT", "PLAIN")
    assert (found.username, found.password, found.ssl_context) == ("me", "k4fka-pw", None)
    assert "k4fka-pw" not in repr(found)


def test_sasl_in_tls_checks_the_host_by_the_ca(tls: Path) -> None:
    found = credentials(SASL | {"security.protocol": "SASL_SSL", "ssl.ca.location": str(tls / "ca.crt")})
    assert isinstance(found, SASLCredentials)
    assert found.protocol.value == "SASL_SSL"
    assert found.ssl_context is not None
    assert found.ssl_context.check_hostname
    assert [dict(x[0] for x in c["subject"])["commonName"] for c in found.ssl_context.get_ca_certs()] == [  # pyright: ignore
        "spanloop local CA"
    ]


def test_a_clients_certificate_alone(tls: Path) -> None:
    found = credentials(
        {
            "security.protocol": "ssl",
            "ssl.ca.pem": (tls / "ca.crt").read_text(),
            "ssl.certificate.location": str(tls / "client.crt"),
            "ssl.key.location": str(tls / "client.key"),
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert isinstance(found, SSLCredentials)
    assert not found.context.check_hostname
    assert found.context.verify_mode == ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("kafka", "told"),
    [
        (SASL | {"sasl.kerberos.principal": "x"}, "'sasl.kerberos.principal' has no equivalent in aiokafka"),
        (SASL | {"ssl.keystore.location": "x"}, "'ssl.keystore.location' has no equivalent"),
        (SASL | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism is 'GSSAPI'"),
        (SASL | {"security.protocol": "TLS"}, "security.protocol is 'TLS'"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "'sasl.username' is missing"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/no/such.crt"}, "cannot be loaded.*/no/such.crt"),
        ({"security.protocol": "SSL", "ssl.key.location": "/x"}, "needs 'ssl.certificate.location'"),
    ],
)
def test_what_cannot_be_carried_over_is_an_error_that_names_it_and_no_secret(kafka: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        credentials(kafka)
    assert "k4fka-pw" not in str(caught.value)
