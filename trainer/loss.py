"""Token losses by name. Each maps log-probs under the weights of now and under the behaviour policy to (N,) losses.

The sum over tokens is the batch's loss: normalisation is in the weights (see `batch`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

# e^20 is beyond any clip; more would overflow float32 and make 0 · inf of a masked token.
MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """Trained tokens of a micro-batch. All (N,), one device."""

    logprobs: torch.Tensor  # under the weights of now; carries the gradient
    behaviour: torch.Tensor  # under the policy that drew them
    advantages: torch.Tensor
    weights: torch.Tensor
    staleness: torch.Tensor

    @property
    def ratio(self) -> torch.Tensor:
        """(N,) π/μ, without gradient."""
        return torch.exp((self.logprobs.detach() - self.behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))

    def as_onpolicy(self) -> Tokens:
        """The same tokens as if the weights of now had drawn them."""
        return replace(self, behaviour=self.logprobs.detach())


TokenLoss = Callable[[Tokens, tuple[float, float]], torch.Tensor]
LOSSES: dict[str, TokenLoss] = {}


def register(name: str) -> Callable[[TokenLoss], TokenLoss]:
    """Puts a loss under a name that TrainerConfig.loss can choose."""

    def add(loss: TokenLoss) -> TokenLoss:
        LOSSES[name] = loss
        return loss

    return add


@register("cispo")
def cispo(tokens: Tokens, clip: tuple[float, float]) -> torch.Tensor:
    """−sg(clip(π/μ)) · A · log π (MiniMax-M1, arXiv 2506.13585): clips the weight, never the token's gradient."""
    return -tokens.ratio.clamp(*clip) * tokens.advantages * tokens.logprobs


@register("reinforce")
def reinforce(tokens: Tokens, clip: tuple[float, float]) -> torch.Tensor:
    """−A · log π: no correction; only right for data drawn by the weights of now."""
    del clip
    return -tokens.advantages * tokens.logprobs


@register("ppo")
def ppo(tokens: Tokens, clip: tuple[float, float]) -> torch.Tensor:
    """max(−r·A, −clip(r)·A) with r = π/μ: what moved beyond the clip in its advantage's direction is left alone.

    Decoupled clip as in DAPO (arXiv 2503.14476), on the behaviour policy. It bounds how far stale data pushes, which
    cispo does not.
    """
    ratio = torch.exp((tokens.logprobs - tokens.behaviour).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    return torch.maximum(-ratio * tokens.advantages, -ratio.clamp(*clip) * tokens.advantages)


@dataclass(slots=True)
class StepStats:
    """What a step's forward passes saw, summed over its micro-batches."""

    tokens: int = 0
    clipped: int = 0
    ratio_sum: float = 0.0
    onpolicy_tokens: int = 0
    onpolicy_max: float = 0.0  # max |log π − log μ| over tokens of staleness 0
    onpolicy_sum: float = 0.0
    losses: list[float] = field(default_factory=list[float])

    def add(self, tokens: Tokens, clip: tuple[float, float], loss: torch.Tensor) -> None:
        """Takes in one micro-batch."""
        ratio = tokens.ratio
        fresh = tokens.staleness == 0
        gap = (tokens.logprobs.detach() - tokens.behaviour)[fresh].abs()
        self.tokens += ratio.numel()
        self.clipped += int((ratio > clip[1]).sum() + (ratio < clip[0]).sum())
        self.ratio_sum += float(ratio.sum())
        self.onpolicy_tokens += gap.numel()
        self.onpolicy_sum += float(gap.sum())
        self.onpolicy_max = max(self.onpolicy_max, float(gap.max()) if gap.numel() else 0.0)
        self.losses.append(float(loss.detach()))
