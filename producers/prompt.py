"""Prompt templates: `{name}` is filled in, every other brace stays as it is."""

from __future__ import annotations

import re
from dataclasses import dataclass

# {{name}} is a literal {name}; {name} a variable; {"score": 0.5} neither
_VARIABLE = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A prompt with variables. JSON in it needs no escaping, and what is filled in is not looked at again."""

    template: str
    version: int | None = None  # of the resource it came from

    def variables(self) -> list[str]:
        """The names it needs, in order, each once."""
        return list(dict.fromkeys(m[2] for m in _VARIABLE.finditer(self.template) if m[2]))

    def format(self, **values: object) -> str:
        """The prompt with its variables filled in. Raises KeyError naming what is missing."""
        if missing := [name for name in self.variables() if name not in values]:
            raise KeyError(f"the prompt needs {', '.join(missing)}; got {', '.join(values) or 'nothing'}")
        return _VARIABLE.sub(lambda m: f"{{{m[1]}}}" if m[1] else str(values[m[2]]), self.template)
