"""A client of any schema registry with Confluent's routes: Redpanda, Confluent, Apicurio, the embedded twin."""

from __future__ import annotations

import json
import logging
import ssl
import threading
import time
from contextlib import closing
from typing import Any, cast

import httpx

from ..schemas.errors import ConfigError, InvalidRecord, SchemaMismatch, Unavailable, UnknownSchemaId
from ..schemas.serde import Encoder, schema_json
from ..schemas.topics import TOPICS
from .compatibility import complaints
from .masking import without_password
from .settings import Settings

log = logging.getLogger(__name__)

COMPATIBILITY = "FULL_TRANSITIVE"
CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
# Apicurio 3.0 takes a schema with the default "{}" for no schema at all; escaped, the same JSON passes.
EMPTY_OBJECT = r'"\u007b\u007d"'
NOT_FOUND, CONFLICT, SERVER_ERROR = 404, 409, 500
REFUSED = (401, 403)
# Garbage read as an id may be above what a registry takes for one: Redpanda says 400 to that, others 422.
NO_ID = (400, 422)
NOT_NOW = (408, 429)
# A registry fed from a log may answer 404 for an id it is about to learn: ask again before believing it.
NOT_FOUND_TRIES = 3
NOT_FOUND_PAUSE_S = 0.2
START_RETRY_S = 0.5


class Registry:
    """Registers and looks up schemas. Raises Unavailable while the registry cannot be reached."""

    def __init__(self, url: str, *, user: str = "", password: str = "", ca: str = "", timeout_s: float = 5.0) -> None:
        """user, password: for basic authentication (or in the URL); ca: file of certificates to trust.

        Raises ConfigError where that file cannot be read.
        """
        self.url = without_password(url.rstrip("/"))
        self._http = httpx.Client(
            base_url=url.rstrip("/"),
            auth=(user, password) if user else None,
            verify=_trusting(ca) if ca else True,
            timeout=timeout_s,
            headers={"Content-Type": CONTENT_TYPE},
        )

    def schema(self, schema_id: int | str) -> str:
        """A schema's JSON by id or GUID. Raises UnknownSchemaId, after several 404s, and InvalidRecord for no Avro."""
        path = f"/schemas/ids/{schema_id}" if isinstance(schema_id, int) else f"/schemas/guids/{schema_id}"
        for last in (False,) * (NOT_FOUND_TRIES - 1) + (True,):
            answer = self._ask("GET", path)
            if answer.status_code in NO_ID:
                break
            if answer.status_code != NOT_FOUND:
                return self._avro(schema_id, answer)
            if not last:
                time.sleep(NOT_FOUND_PAUSE_S)
        raise UnknownSchemaId(schema_id)

    def _avro(self, schema_id: int | str, answer: httpx.Response) -> str:
        schema = str(self._member(answer, "schema"))
        kind = self._json(answer).get("schemaType") or "AVRO"
        if kind != "AVRO":
            raise InvalidRecord("undecodable", f"schema id {schema_id} is of type {kind}, expected AVRO")
        return schema

    def register(self, subject: str, schema: str) -> int:
        """The id of a schema under a subject; the same schema gets the same id. Raises SchemaMismatch on 409."""
        answer = self._ask("POST", f"/subjects/{subject}/versions", _registration(schema))
        if answer.status_code == CONFLICT:
            why = self._complaints(subject, schema) or answer.text[:500]
            raise SchemaMismatch(f"subject {subject!r}: {why}; fields may only be added, with defaults")
        return int(self._member(answer, "id"))

    def _complaints(self, subject: str, schema: str) -> str:
        """Which fields a refused schema breaks; registries tell it each in their own way, or not at all."""
        path = f"/subjects/{subject}/versions"
        earlier = [str(self._member(self._ask("GET", f"{path}/{n}"), "schema")) for n in self.versions(subject)]
        return "; ".join(complaints(COMPATIBILITY, schema, earlier))

    def set_compatibility(self, subject: str, level: str = COMPATIBILITY) -> None:
        """Sets what later schemas of a subject must keep to."""
        self._json(self._ask("PUT", f"/config/{subject}", {"compatibility": level}))

    def subjects(self) -> list[str]:
        """All subjects."""
        return cast("list[str]", self._json(self._ask("GET", "/subjects")))

    def check(self) -> None:
        """Returns if the registry answers. Raises Unavailable, and ConfigError where what answers is none."""
        self._json(self._ask("GET", "/config"))

    def date(self) -> str | None:
        """What time it says it is, as HTTP has it; None where it does not tell."""
        return self._ask("GET", "/subjects").headers.get("date")

    def versions(self, subject: str) -> list[int]:
        """The numbers of a subject's schemas, oldest first."""
        return cast("list[int]", self._json(self._ask("GET", f"/subjects/{subject}/versions")))

    def compatibility(self, subject: str) -> str | None:
        """A subject's own compatibility level; None where it has none."""
        answer = self._ask("GET", f"/config/{subject}")
        return None if answer.status_code == NOT_FOUND else str(self._member(answer, "compatibilityLevel"))

    def version_of(self, subject: str, schema: str) -> int:
        """The number of a schema under a subject; 0 where it is not registered."""
        answer = self._ask("POST", f"/subjects/{subject}", _registration(schema))
        return 0 if answer.status_code == NOT_FOUND else int(self._member(answer, "version"))

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            answer = self._http.request(method, path, content=None if body is None else json.dumps(body))
        except httpx.TransportError as error:
            raise Unavailable(f"schema registry {self.url} cannot be reached: {error!r}; is it running?") from error
        if answer.status_code >= SERVER_ERROR or answer.status_code in NOT_NOW:
            raise Unavailable(f"schema registry {self.url} answered {answer.status_code}: {answer.text[:200]}")
        return answer

    def _json(self, answer: httpx.Response) -> Any:
        if answer.is_error:
            asked = _asked(answer)
            if answer.status_code in REFUSED:
                raise ConfigError(
                    f"{asked}: {answer.status_code}, the registry refuses this user; see the settings registry_user "
                    "and registry_password"
                )
            raise SchemaMismatch(f"{asked}: {answer.status_code} {answer.text[:500]}")
        if not answer.is_success:  # to httpx a redirect is no error
            raise _no_registry(answer)
        try:
            return answer.json()
        except ValueError as error:
            raise _no_registry(answer) from error

    def _member(self, answer: httpx.Response, name: str) -> Any:
        """A member of the object that it answered."""
        found = self._json(answer)
        if not isinstance(found, dict) or name not in found:
            raise _no_registry(answer)
        return cast("dict[str, Any]", found)[name]


def _asked(answer: httpx.Response) -> str:
    return f"{answer.request.method} {without_password(str(answer.request.url))}"


def _no_registry(answer: httpx.Response) -> ConfigError:
    """Something else answered: a proxy, a login page, or the registry tells to ask by another address."""
    came = f"{answer.headers.get('content-type', 'no content type')}: {answer.text[:100]!r}"
    if "location" in answer.headers:
        came = f"to {without_password(answer.headers['location'])}"
    return ConfigError(
        f"{_asked(answer)}: {answer.status_code} {came}; expected a registry's JSON; see the setting registry_url"
    )


def _trusting(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"setting registry_ca: {ca} cannot be loaded: {error}") from error


def connect(settings: Settings) -> Registry:
    """A client of the settings' registry. Close it."""
    return Registry(
        settings.registry_url,
        user=settings.registry_user,
        password=settings.registry_password,
        ca=settings.registry_ca,
    )


def wait_for_registry(settings: Settings, stop: threading.Event) -> bool:
    """Waits at a part's start until the registry answers; False where told to stop before.

    Raises Unavailable naming it after `registry_wait_s`, and what is wrong with what it answers.
    """
    deadline = time.monotonic() + settings.registry_wait_s
    told = False
    with closing(connect(settings)) as registry:
        while True:
            try:
                registry.check()
            except Unavailable as error:
                if time.monotonic() >= deadline:
                    raise
                if not told:
                    log.warning("waiting, %g s at most: %s", settings.registry_wait_s, error)
                told = True
            else:
                return True
            if stop.wait(START_RETRY_S):
                return False


def _registration(schema: str) -> dict[str, Any]:
    return {"schema": schema.replace('"{}"', EMPTY_OBJECT), "schemaType": "AVRO"}


def register_all(registry: Registry, settings: Settings) -> dict[str, int]:
    """Registers every topic's schema of this version; returns topic name -> id. Fails at start, never per record."""
    return {t.name: registry.register(t.subject(settings.prefix), schema_json(t.record)) for t in TOPICS.values()}


def encoder(settings: Settings) -> Encoder:
    """An Encoder with ids from the settings' registry."""
    with closing(connect(settings)) as registry:
        return Encoder(register_all(registry, settings))
