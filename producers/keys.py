"""Per-attempt gateway keys: a bearer token that names its attempt and that only the holder of the secret can make.

    sk-spanloop-<base64url(rollout_id NUL attempt_id)>.<base64url(HMAC-SHA256)>

A harness that takes only a base URL and a key is bound to its attempt by this key alone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from ..schemas.errors import InvalidKey

PREFIX = "sk-spanloop-"
SEPARATOR = b"\0"


def mint(secret: str, rollout_id: str, attempt_id: str) -> str:
    """The key of an attempt; the same arguments give the same key. Raises InvalidKey where the secret is empty."""
    if not secret:
        raise InvalidKey("gateway keys need settings.secret (SPANLOOP_SECRET): the same for workers and gateways")
    payload = rollout_id.encode() + SEPARATOR + attempt_id.encode()
    return f"{PREFIX}{_text(payload)}.{_text(_sign(secret, payload))}"


def verify(secret: str, key: str) -> tuple[str, str]:
    """(rollout_id, attempt_id) of a key. Raises InvalidKey."""
    payload_text, dot, signature_text = key.removeprefix(PREFIX).partition(".")
    if not key.startswith(PREFIX) or not dot:
        raise InvalidKey(
            f"expected a key {PREFIX}<attempt>.<signature>, as spanloop gives it to the agent where the setting "
            "`secret` (SPANLOOP_SECRET) is set for workers and gateways alike"
        )
    payload, signature = _bytes(payload_text), _bytes(signature_text)
    if not secret or not hmac.compare_digest(signature, _sign(secret, payload)):
        raise InvalidKey("the key was signed with another secret; SPANLOOP_SECRET must be equal everywhere")
    rollout, _, attempt = payload.partition(SEPARATOR)
    return rollout.decode(), attempt.decode()


def is_key(text: str) -> bool:
    """True where a bearer token claims to be one of ours rather than a provider's key or a placeholder."""
    return text.startswith(PREFIX)


def _sign(secret: str, payload: bytes) -> bytes:
    return hmac.new(secret.encode(), payload, hashlib.sha256).digest()


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidKey(f"the key is no base64url: {error}") from error
