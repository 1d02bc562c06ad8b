"""What a worker and the process of one of its slots say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from .agent import Job


@dataclass(frozen=True, slots=True)
class Start:
    """What the process must know first."""

    spec: str  # names the agent, as `agent.resolve` takes it
    path: list[str]  # the worker's sys.path
    trace: bool  # take in the process's OpenTelemetry spans


@dataclass(frozen=True, slots=True)
class Order:
    """One attempt."""

    job: Job
    root_id: str
    producer_id: str
    gateway_url: str


@dataclass(frozen=True, slots=True)
class Hello:
    """The agent is loaded."""

    name: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """The agent cannot be loaded, and trying again would not help."""

    message: str


@dataclass(frozen=True, slots=True)
class Begun:
    """The agent is about to be called."""
