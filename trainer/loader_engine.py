"""The loader's view of an engine: vLLM's admin routes, and the checks that weights must pass."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import httpx

from ..schemas.errors import SpanloopError, Unavailable
from ..schemas.records import Resource

# pause?mode=wait answers when the longest running request has ended.
DRAIN_TIMEOUT_S = 600.0
RELOAD_TIMEOUT_S = 600.0
TIMEOUT_S = 10.0
# Engine and trainer sum in other orders: fp32 differs by 1e-5, other weights by far more than this.
PROBE_TOLERANCE = 1e-3
CHUNK_BYTES = 1 << 20
# What stands in front of an engine says so while it is away; about the weights that says nothing.
AWAY = frozenset({502, 503, 504})


class WeightsRefused(SpanloopError, ValueError):
    """A version cannot be served: its file, its shapes or its probe is wrong."""


class EngineClient:
    """Drives one engine. Raises Unavailable while it is away, WeightsRefused where it says no."""

    def __init__(self, url: str, policy: str) -> None:
        self._policy = policy
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)

    def pause(self) -> None:
        """Returns once nothing is being generated; requests that come now are queued."""
        self._post("/pause?mode=wait", timeout=DRAIN_TIMEOUT_S)

    def resume(self) -> None:
        """Lets it generate."""
        self._post("/resume")

    def reload(self, folder: Path) -> None:
        """Loads a folder's weights and forgets what was cached under the old ones."""
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        self._post("/collective_rpc", body, timeout=RELOAD_TIMEOUT_S)
        self._post("/reset_prefix_cache")

    def stamp(self, version: str) -> None:
        """Sets the version that answers carry from now on."""
        self._post("/update_weight_version", {"new_version": version})

    def version(self) -> str:
        """The version that answers carry now."""
        return str(self._ask("GET", "/weight_info").get("weight_version"))

    def logprobs_mode(self) -> str | None:
        """Which distribution its log-probs are of; None where it does not say (vLLM)."""
        cards = cast("list[dict[str, Any]]", self._ask("GET", "/v1/models").get("data") or [{}])
        return cast("str | None", cards[0].get("logprobs_mode"))

    def score(self, ids: list[int]) -> list[float]:
        """Log-probabilities of ids[1:] at temperature 1."""
        body = {"model": self._policy, "prompt": ids, "max_tokens": 0, "echo": True, "prompt_logprobs": 0}
        answer = self._post("/v1/completions", body, timeout=RELOAD_TIMEOUT_S)
        try:
            scored = cast("list[dict[str, dict[str, float]] | None]", answer["choices"][0]["prompt_logprobs"])
            found = [(entry or {})[str(token)]["logprob"] for token, entry in zip(ids[1:], scored[1:], strict=True)]
            return [float(x) for x in found]
        except (ValueError, TypeError, LookupError) as error:
            raise WeightsRefused(f"engine {self._http.base_url} does not score a prompt: {error!r}") from error

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()

    def _post(self, path: str, body: dict[str, Any] | None = None, *, timeout: float = TIMEOUT_S) -> dict[str, Any]:
        return self._ask("POST", path, body or {}, timeout)

    def _ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float = TIMEOUT_S
    ) -> dict[str, Any]:
        try:
            answer = self._http.request(method, path, json=body, timeout=timeout)
        except httpx.TransportError as error:
            raise Unavailable(f"engine {self._http.base_url} cannot be reached: {error!r}; is it running?") from error
        if answer.is_error:
            kind = Unavailable if answer.status_code in AWAY else WeightsRefused
            raise kind(f"engine {self._http.base_url}: {method} {path}: {answer.status_code} {answer.text[:500]}")
        try:
            value: Any = answer.json() if answer.content else {}
        except ValueError:  # vLLM answers some admin calls with plain text
            value = {}
        return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def checked_folder(resource: Resource) -> Path:
    """The folder of a version whose files have the digest the record says. Raises WeightsRefused."""
    if not resource.uri:
        raise WeightsRefused(f"version {resource.version} has no uri; expected the absolute folder of its weights")
    folder = Path(resource.uri)
    files = sorted(folder.glob("*.safetensors"))
    if not folder.is_absolute() or not files:
        raise WeightsRefused(f"{resource.uri} is no absolute folder with *.safetensors; is it on a shared disk?")
    if resource.sha256 is not None and (found := digest(files)) != resource.sha256:
        raise WeightsRefused(f"{folder} has sha256 {found}, its record says {resource.sha256}; it was changed since")
    return folder


def digest(files: list[Path]) -> str:
    """sha256 of files in order, as of one file. Raises WeightsRefused where they cannot be read."""
    sha = hashlib.sha256()
    try:
        for file in files:
            with file.open("rb") as opened:
                while chunk := opened.read(CHUNK_BYTES):
                    sha.update(chunk)
    except OSError as error:
        raise WeightsRefused(f"{error}; weights must stay readable until a newer version is served") from error
    return sha.hexdigest()


def check_probe(engine: EngineClient, probe: str) -> None:
    """Compares what the engine answers with JSON {ids, logprobs}: logprobs[i] is of ids[i] given ids[:i].

    The first log-prob is not compared (there may also be none for it). Raises WeightsRefused, Unavailable.
    """
    try:
        expected: dict[str, Any] = json.loads(probe)
        ids = [int(i) for i in expected["ids"]]
        told: list[Any] = expected["logprobs"]
        if len(ids) < 2 or len(told) not in (len(ids) - 1, len(ids)):
            raise ValueError(
                f"{len(ids)} ids and {len(told)} log-probs; expected as many, or one fewer, of two or more"
            )
        logprobs = [float(x) for x in told[1 - len(ids) :]]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise WeightsRefused(f"the probe {probe[:200]!r} is no JSON {{ids, logprobs}}: {error!r}") from error
    found = engine.score(ids)
    apart = [abs(a - b) for a, b in zip(found, logprobs, strict=True)]
    if not all(x <= PROBE_TOLERANCE for x in apart):  # a NaN is no better than a wrong number
        raise WeightsRefused(
            f"the probe's log-probs are up to {max(apart):.3g} off, expected at most {PROBE_TOLERANCE:g}; "
            "the engine does not serve the weights that were published"
        )
