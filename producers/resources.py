"""The resources that agents use, as read from their topic: prompts, values and models by name and version."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import cast

from ..schemas.records import Assignment, Resource
from .llm import LLM, attempt_url
from .prompt import PromptTemplate

DEFAULT_MODEL = "policy"
MODELS = frozenset({"policy", "model"})


class Resources:
    """Every resource record seen; the first of a (name, version) wins. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: dict[tuple[str, int], Resource] = {}
        self._newest: dict[str, Resource] = {}
        self._prompts: dict[tuple[str, int], PromptTemplate] = {}

    def put(self, resource: Resource) -> None:
        """Takes a record."""
        with self._lock:
            kept = self._found.setdefault((resource.name, resource.version), resource)
            newest = self._newest.get(resource.name)
            if newest is None or kept.version > newest.version:
                self._newest[resource.name] = kept

    def get(self, name: str, version: int | None) -> Resource | None:
        """One version, null = the newest; null if it was not seen."""
        with self._lock:
            return self._newest.get(name) if version is None else self._found.get((name, version))

    def missing(self, pins: Mapping[str, int | None]) -> list[str]:
        """Pins that an agent cannot be started without and that were not seen yet, as name@version.

        A policy's pin is a minimum that the gateway sees to; a pin without a version has nothing to wait for.
        """
        out: list[str] = []
        for name, version in pins.items():
            newest = self.get(name, None)
            if version is not None and self.get(name, version) is None and (newest is None or newest.kind != "policy"):
                out.append(f"{name}@{version}")
        return out

    def for_agent(self, assignment: Assignment, llm: LLM) -> dict[str, object]:
        """Name -> prompt, decoded JSON value, or `llm` for models; pins that do not exist are left out."""
        out: dict[str, object] = {}
        for name, version in assignment.pins.items():
            found, newest = self.get(name, version), self.get(name, None)
            if newest is not None and newest.kind in MODELS:
                out[name] = llm
            elif found is not None:
                out[name] = self._value(found)
        return out

    def _value(self, resource: Resource) -> object:
        """Prompts are made once per version; JSON is decoded for each attempt, for an agent may change it."""
        if resource.kind != "prompt":
            return value_of(resource)
        key = (resource.name, resource.version)
        with self._lock:
            if key not in self._prompts:
                self._prompts[key] = cast("PromptTemplate", value_of(resource))
            return self._prompts[key]

    def llm(self, assignment: Assignment, gateway_url: str, key: str) -> LLM:
        """The model that an attempt calls: its first pinned policy or model, else the one called "policy".

        A model whose body names an endpoint of its own is called there, past the gateway.
        """
        name, found = self._model(assignment.pins)
        body = _object(found.body) if found is not None else {}
        task = assignment.task
        endpoint = body.get("endpoint") or attempt_url(
            gateway_url, task.rollout_id if task else "", assignment.attempt_id
        )
        return LLM(
            endpoint=str(endpoint),
            model=str(body.get("model") or name),
            api_key=str(body.get("api_key") or key),
            sampling_parameters=cast("dict[str, object]", body.get("sampling_parameters") or {}),
        )

    def _model(self, pins: Mapping[str, int | None]) -> tuple[str, Resource | None]:
        found = [(name, self.get(name, version) or self.get(name, None)) for name, version in pins.items()]
        for name, resource in found:
            if resource is not None and resource.kind in MODELS:
                return name, resource
        # A policy that was never published yet has no record: a pin without one is taken for it.
        return next(((n, r) for n, r in found if r is None), (DEFAULT_MODEL, None))


def value_of(resource: Resource) -> object:
    """A prompt as a template, anything else as its decoded JSON."""
    body = json.loads(resource.body) if resource.body is not None else None
    if resource.kind != "prompt":
        return body
    text = cast("dict[str, object]", body).get("template") if isinstance(body, dict) else body
    return PromptTemplate(str(text), resource.version)


def _object(body: str | None) -> dict[str, object]:
    found = json.loads(body) if body else None
    return cast("dict[str, object]", found) if isinstance(found, dict) else {}
