"""Where a process's log lines go and how they look: for people, or one JSON object a line for machines.

configure(settings)                        once, at a process's entry
with bound(rollout_id=…, attempt_id=…):    lines written inside tell whom they are about
    log.warning("…")

Everything goes through the standard library's loggers, those of libraries too. Secrets are masked in all of it.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar, Token
from copy import copy
from typing import TYPE_CHECKING, Any, TextIO

from .masking import Masker, secrets_of

if TYPE_CHECKING:
    from .settings import Settings

    TextHandler = logging.StreamHandler[TextIO]
else:
    TextHandler = logging.StreamHandler  # takes a parameter since Python 3.11

Event = MutableMapping[str, Any]
PLAIN = (int, float, type(None))
# Libraries that tell of every request, or repeat what they raise.
QUIET = ("httpx", "httpcore", "urllib3", "aiokafka", "faust", "mode", "asyncio", "clickhouse_connect", "uvicorn")
# What one of those says again within so many seconds is left out: some say every few milliseconds that a broker is
# away.
AGAIN_S = 5.0
REMEMBERED = 1000
# What another handler's formatter may have left in the record.
FORMATTED = frozenset({"message", "asctime"})
_masker = Masker()
_ids: ContextVar[dict[str, str] | None] = ContextVar("spanloop_log_ids", default=None)


class bound:  # in small letters it reads as a statement: with bound(rollout_id=...)
    """Binds ids to every line that this context writes inside; nested ones add up, an id that is None is left out.

    Costs well under a microsecond, so it may stand around each record.
    """

    __slots__ = ("_given", "_token")

    def __init__(self, *, rollout_id: str | None = None, attempt_id: str | None = None, run_id: str | None = None):
        self._given = {"rollout_id": rollout_id, "attempt_id": attempt_id, "run_id": run_id}

    def __enter__(self) -> None:
        given = {name: value for name, value in self._given.items() if value}
        self._token: Token[dict[str, str] | None] = _ids.set({**(_ids.get() or {}), **given})

    def __exit__(self, *raised: object) -> None:
        _ids.reset(self._token)


def ids() -> dict[str, str]:
    """The ids that are bound here."""
    return dict(_ids.get() or {})


def masked(text: str) -> str:
    """A text for people without the secrets of the settings that logs were configured with."""
    return _masker(text)


class Seldom:
    """Lets a library say a thing once in `AGAIN_S`, and then how often it was said in between; tracebacks always."""

    def __init__(self, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._steady_s = steady_s
        self._said: dict[tuple[str, int, str, str], tuple[float, int]] = {}

    def heard(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """What is to be written of it; None = nothing."""
        if record.name.partition(".")[0] not in QUIET or record.exc_info:
            return record
        first = str(record.args[0]) if isinstance(record.args, tuple) and record.args else ""
        what, now_s = (record.name, record.levelno, str(record.msg), first), self._steady_s()
        said_s, left_out = self._said.get(what, (now_s - AGAIN_S, 0))
        if now_s - said_s < AGAIN_S:
            self._said[what] = said_s, left_out + 1
            return None
        if len(self._said) >= REMEMBERED:  # some put values into what they say
            self._said.clear()
        self._said[what] = now_s, 0
        if left_out:
            record = copy(record)
            record.msg = f"{record.msg} (and {left_out} times like it before)"
        return record


class _Handler(TextHandler):
    """Writes to what is standard error at the time, which tests and daemons replace.

    Its formatter is made for the first line: structlog takes tens of milliseconds to import, which a process that has
    nothing to tell, such as an agent's, need not pay.
    """

    def __init__(self, masker: Masker, *, as_json: bool) -> None:
        super().__init__(sys.stderr)
        self._seldom = Seldom()
        self._make = lambda: formatter(masker, as_json=as_json)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            heard = self._seldom.heard(record)
        except Exception:  # noqa: BLE001  what is logged may refuse to be a text
            self.handleError(record)
            return
        if heard is None:
            return
        if self.formatter is None:
            self.setFormatter(self._make())
        self.stream = sys.stderr
        super().emit(heard)


def configure(settings: Settings | None = None, *, level: str = "WARNING") -> None:
    """Sends the process's log lines to standard error as `log_format` says; `level` where `log_level` is empty.

    May be called again, as when settings become known later; handlers of others are left alone.
    """
    global _masker
    _masker = Masker() if settings is None else Masker(secrets_of(settings))
    as_json = settings is not None and settings.log_format == "json"
    wanted = settings.log_level.upper() if settings is not None and settings.log_level else level
    handler = _Handler(_masker, as_json=as_json)
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(wanted)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def formatter(masker: Masker, *, as_json: bool) -> logging.Formatter:
    """A formatter of structlog's for lines of any logger."""
    import structlog

    chain: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.ExtraAdder(),
        _add_ids,
        structlog.processors.format_exc_info,
    ]

    def mask(logger: object, method: str, event: Event) -> Event:
        del logger, method
        return {name: _masked(value, masker) for name, value in event.items() if _is_told(name)}

    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=chain,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, mask, _json if as_json else _line],
    )


def _is_told(name: str) -> bool:
    """False for what stands in a record for a library's own use, such as Ray's `_ray_timestamp_ns` in every one."""
    return name not in FORMATTED and not name.startswith("_")


def _add_ids(logger: object, method: str, event: Event) -> Event:
    del logger, method
    event.update(_ids.get() or {})
    return event


def _masked(value: object, masker: Masker) -> object:
    if isinstance(value, PLAIN):
        return value
    return masker(value if isinstance(value, str) else repr(value))


def _json(logger: object, method: str, event: Event) -> str:
    del logger, method
    first = {"at": event.pop("timestamp"), "level": event.pop("level"), "logger": event.pop("logger")}
    return json.dumps({**first, "message": event.pop("event"), **event}, ensure_ascii=False)


def _line(logger: object, method: str, event: Event) -> str:
    del logger, method
    at, level, name = event.pop("timestamp"), event.pop("level").upper(), event.pop("logger")
    said, trace = event.pop("event"), event.pop("exception", None)
    rest = "".join(f" {key}={value}" for key, value in event.items())
    return f"{at} {name} {level} {said}{rest}" + (f"\n{trace}" if trace else "")
