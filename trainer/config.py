"""What a trainer is told once, at its start."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from ..schemas.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Weighting = Literal["rollout", "token"]
# How a loss answers for tokens that an older policy drew. There is no default: it changes what is learned.
Correction = Literal["mu", "none"]
CORRECTIONS: tuple[Correction, ...] = get_args(Correction)
Dtype = Literal["fp32", "bf16"]

# Where files go and how patiently a trainer waits change nothing in the weights, so they stay out of the digest.
NOT_IN_DIGEST = frozenset(
    {"folder", "model_dir", "trainer_id", "total_steps", "group_deadline_s", "credit", "follow", "keep_checkpoints",
     "keep_weights", "no_engine_s", "checkpoint_every", "beat_s"}
)  # fmt: skip
# As good as no bound, and a product of two still fits a long; so many seconds are thirty years.
MOST = 10**9
# Whole numbers, each from its lowest value to MOST.
COUNTS = {
    "total_steps": 0, "groups_per_batch": 1, "max_staleness": 0, "mini_batches": 1, "max_row_tokens": 1,
    "micro_batch_tokens": 1, "publish_every": 0, "checkpoint_every": 1, "keep_checkpoints": 1, "cpu_threads": 1,
    "keep_weights": 2,  # an engine may still be loading the one before
    "credit": 1,
}  # fmt: skip
POSITIVE = ("lr", "max_grad_norm", "beat_s")
NOT_NEGATIVE = ("group_deadline_s", "no_engine_s")
SECONDS = ("beat_s", "group_deadline_s", "no_engine_s")
NONE_ALLOWED = ("credit", "no_engine_s")
# The number of a step is added to it.
SEED_MAX = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """Settings of one trainer. Raises ConfigError where they contradict each other."""

    run_id: str
    """Only trajectories of this run are read."""
    trainer_id: str
    """Key of its batches and decisions; keep it over restarts, change it for another experiment."""
    policy: str
    """Resource name of the policy it trains."""
    model_dir: Path
    """Hugging Face folder with the first weights, their configuration and the tokenizer."""
    folder: Path
    """Its own folder: `checkpoints/`, `weights/` and `metrics.jsonl` go there."""
    correction: Correction | None
    """Off-policy correction: mu lets the loss weigh each token by π/μ; none trusts that all is on-policy."""
    total_steps: int
    """It stops after this many."""
    groups_per_batch: int = 8
    """Closed groups in one step, zero-spread ones included."""
    max_staleness: int = 4
    """Publishes between a token's version and the step's weights; older tokens are masked."""
    lr: float = 1e-3
    """Learning rate, constant."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    loss: str = "cispo"
    """Name in `loss.LOSSES`."""
    advantage: str = "group_mean"
    """Name in `advantage.ADVANTAGES`."""
    clip: tuple[float, float] = (0.0, 5.0)
    """Lowest and highest weight π/μ of a token. For ppo the trust region, such as (0.8, 1.28)."""
    weighting: Weighting = "rollout"
    """rollout: each rollout weighs the same; token: each token does."""
    std: bool = False
    """Divides advantages by the group's standard deviation."""
    mini_batches: int = 1
    """Optimiser steps per batch, cut at rollout borders."""
    agents: str = ""
    """Regular expression: only agents are trained whose path (as in `writer/checker`) it finds; empty = all."""
    max_row_tokens: int = 4096
    """Longer rows are left out, with a count."""
    micro_batch_tokens: int = 16384
    """Tokens that go through the model at once."""
    publish_every: int = 1
    """Steps between weights given out; 0 = never (replays)."""
    checkpoint_every: int = 1
    """Steps between checkpoints."""
    group_deadline_s: float = 600.0
    """A group that is not complete so long after its first trajectory closes with who is there."""
    credit: int | None = None
    """Rollouts that may be outstanding, told to the controller; None = (max_staleness + 1) batches of 8 a group."""
    no_engine_s: float | None = 120.0
    """It stops when no engine fresh enough was seen for so long while it waits; None = it waits for ever."""
    seed: int = 0
    """Seeds every step, together with the step's number."""
    dtype: Dtype = "fp32"
    """Type of the published weights, and of the forward pass on a GPU."""
    follow: str | None = None
    """Trainer whose recorded batches are trained on instead of new ones: a replay of the log."""
    keep_checkpoints: int = 2
    """Newest ones that are kept."""
    keep_weights: int = 8
    """Newest published folders that are kept."""
    beat_s: float = 1.0
    """Seconds between heartbeats."""
    cpu_threads: int = 1
    """Threads of a step on the CPU; sums in another order are other weights, so a restart must keep it."""

    def __post_init__(self) -> None:
        if self.correction not in CORRECTIONS:
            raise ConfigError(
                "an asynchronous trainer needs an explicit `correction`: 'mu' (weigh each token by π/μ) or 'none' "
                f"(trust that all data is on-policy); got {self.correction!r}"
            )
        if self.loss == "reinforce" and self.correction != "none":
            raise ConfigError("loss 'reinforce' weighs no token by π/μ: take cispo or ppo, or set correction to 'none'")
        _check_numbers(self)
        if self.follow is not None and self.publish_every:
            raise ConfigError("a trainer that follows recorded batches must not publish: set publish_every to 0")
        try:
            re.compile(self.agents)
        except re.error as error:
            raise ConfigError(f"agents is no regular expression: {error}; got {self.agents!r}") from error

    @property
    def checkpoint_dir(self) -> Path:
        """Where checkpoints lie."""
        return self.folder / "checkpoints"

    @property
    def weights_dir(self) -> Path:
        """Where published weights lie."""
        return self.folder / "weights"

    @property
    def credit_rollouts(self) -> int:
        """Rollouts that may be outstanding."""
        return self.credit if self.credit is not None else (self.max_staleness + 1) * self.groups_per_batch * 8

    def digest(self) -> str:
        """sha256 over what the weights depend on; recorded with every batch."""
        values = {k: v for k, v in asdict(self).items() if k not in NOT_IN_DIGEST}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _check_numbers(config: TrainerConfig) -> None:
    given: dict[str, Any] = {name: getattr(config, name) for name in (*COUNTS, *POSITIVE, *NOT_NEGATIVE)}
    given = {name: x for name, x in given.items() if x is not None or name not in NONE_ALLOWED}
    for name, value in given.items():
        if name in COUNTS:
            low = COUNTS[name]
            if not isinstance(value, int) or not low <= value <= MOST:
                raise ConfigError(f"{name} must be a whole number of at least {low}, at most {MOST}; got {value!r}")
            continue
        enough = _is_number(value) and (value > 0 if name in POSITIVE else value >= 0)
        if not enough or (name in SECONDS and value > MOST):
            least = "more than 0" if name in POSITIVE else "0 or more"
            most = f", at most {MOST:g}" if name in SECONDS else ""
            raise ConfigError(f"{name} must be a finite number, {least}{most}; got {value!r}")
    if not isinstance(config.seed, int) or abs(config.seed) > SEED_MAX:  # pyright: ignore[reportUnnecessaryIsInstance] TOML
        raise ConfigError(f"seed must be a whole number of at most 62 bits, got {config.seed!r}")
    clip = config.clip
    if len(clip) != 2 or not all(map(_is_number, clip)) or not 0 <= clip[0] < clip[1]:
        raise ConfigError(f"clip must be two finite numbers, 0 <= low < high; got {clip}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and -math.inf < value < math.inf


def named(kind: str, table: dict[str, Callable[..., Any]], name: str) -> Callable[..., Any]:
    """A registered algorithm by name. Raises ConfigError listing the names there are."""
    if name not in table:
        raise ConfigError(f"no {kind} is called {name!r}; there are: {', '.join(sorted(table))}")
    return table[name]


def load_config(path: Path) -> TrainerConfig:
    """A TrainerConfig from a TOML file with its fields' names. Raises ConfigError naming what is wrong."""
    known = {f.name: f for f in fields(TrainerConfig)}
    try:
        given: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if unknown := sorted(given.keys() - known.keys()):
        raise ConfigError(f"{path}: no setting is called {', '.join(unknown)}; there are: {', '.join(known)}")
    required = {name for name, f in known.items() if f.default is MISSING}
    if missing := sorted(required - given.keys()):
        raise ConfigError(f"{path}: {', '.join(missing)} must be set")
    given |= {name: Path(given[name]) for name in ("model_dir", "folder")}
    if "clip" in given:
        clip: Any = given["clip"]
        given["clip"] = tuple(clip) if isinstance(clip, list) else (clip,)  # pyright: ignore[reportUnknownArgumentType] TOML
    return TrainerConfig(**given)
