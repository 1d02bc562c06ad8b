"""See infra/taking.py."""

from ..infra.taking import Taking

__all__ = ["Taking"]
