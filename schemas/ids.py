"""Identifiers: a two-letter prefix and 32 hex digits."""

from __future__ import annotations

from uuid import uuid4


def rollout_id() -> str:
    """A new rollout id, ro-…"""
    return f"ro-{uuid4().hex}"


def attempt_id() -> str:
    """A new attempt id, at-…"""
    return f"at-{uuid4().hex}"


def reward_id() -> str:
    """A new reward id, rw-…"""
    return f"rw-{uuid4().hex}"


def worker_id() -> str:
    """A new worker id, wo-…; minted per process start."""
    return f"wo-{uuid4().hex}"


def group_id() -> str:
    """A new group id, gr-…; minted per enqueue."""
    return f"gr-{uuid4().hex}"


def trace_id() -> str:
    """A new OpenTelemetry trace id, 32 hex digits."""
    return uuid4().hex


def span_id() -> str:
    """A new OpenTelemetry span id, 16 hex digits, not all zero."""
    return uuid4().hex[:16]
