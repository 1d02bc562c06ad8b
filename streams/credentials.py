"""What librdkafka calls security.*, sasl.* and ssl.*, as Faust's credentials.

    security.protocol         SSL, SASL_SSL, SASL_PLAINTEXT; PLAINTEXT or nothing = none of this
    sasl.mechanism(s)         PLAIN, SCRAM-SHA-256, SCRAM-SHA-512
    sasl.username, sasl.password
    ssl.ca.location           file or folder; without it the system's
    ssl.ca.pem                the certificates themselves
    ssl.certificate.location  the client's own certificate, with …
    ssl.key.location          … its key (which may be in the same file), and ssl.key.password
    ssl.endpoint.identification.algorithm, enable.ssl.certificate.verification

Another setting of these families is an error: librdkafka's clients would keep to it and the assembler would not.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from faust.auth import Credentials, SASLCredentials, SSLCredentials

from ..schemas.errors import ConfigError

FAMILIES = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.")
UNDERSTOOD = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def credentials(kafka: Mapping[str, str]) -> Credentials | None:
    """Faust's credentials for the setting `kafka`; None = plaintext. Raises ConfigError naming what is wrong."""
    for name in kafka:
        if name.startswith(FAMILIES) and name not in UNDERSTOOD:
            raise ConfigError(
                f"setting kafka: {name!r} has no equivalent in aiokafka, with which the assembler reads; there are "
                f"{', '.join(sorted(UNDERSTOOD))}"
            )
    protocol = _one_of("security.protocol", kafka.get("security.protocol", "PLAINTEXT").upper(), PROTOCOLS)
    context = _context(kafka) if protocol.endswith("SSL") else None
    if protocol.startswith("SASL"):
        return SASLCredentials(
            username=_needed(kafka, "sasl.username"),
            password=_needed(kafka, "sasl.password"),
            ssl_context=context,
            mechanism=_mechanism(kafka),
        )
    return None if context is None else SSLCredentials(context)


def _mechanism(kafka: Mapping[str, str]) -> str:
    name = "sasl.mechanisms" if "sasl.mechanisms" in kafka else "sasl.mechanism"
    return _one_of(name, _needed(kafka, name), MECHANISMS)


def _context(kafka: Mapping[str, str]) -> ssl.SSLContext:
    ca = kafka.get("ssl.ca.location")
    folder = ca is not None and Path(ca).is_dir()
    certificate, key = kafka.get("ssl.certificate.location"), kafka.get("ssl.key.location")
    try:
        context = ssl.create_default_context(
            cafile=None if folder or ca == "probe" else ca,
            capath=ca if folder else None,
            cadata=kafka.get("ssl.ca.pem"),
        )
        if certificate is not None:
            context.load_cert_chain(certificate, key, kafka.get("ssl.key.password"))
    except (OSError, ssl.SSLError) as error:
        used = {n: kafka[n] for n in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location") if n in kafka}
        raise ConfigError(f"setting kafka: certificates cannot be loaded: {error}; from {used}") from error
    if key is not None and certificate is None:
        raise ConfigError("setting kafka: 'ssl.key.location' needs 'ssl.certificate.location' beside it")
    if kafka.get("ssl.endpoint.identification.algorithm", "https") == "none":
        context.check_hostname = False
    if kafka.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _needed(kafka: Mapping[str, str], name: str) -> str:
    if name not in kafka:
        raise ConfigError(
            f"setting kafka: {name!r} is missing, which security.protocol {kafka['security.protocol']} needs"
        )
    return kafka[name]


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ConfigError(f"setting kafka: {name} is {value!r}; the assembler's client takes {', '.join(known)}")
    return value
