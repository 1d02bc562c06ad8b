"""An agent that looks things up: it must ask its table for the right key, then answer with what it was told.

    user:  get 7?        model: 7        (the key to look up)
    table:  2!           model: 2        (the answer; " ?!" = no such key, or not the one asked for)

An ordinary program around OpenAI's client and SQLite; `@rollout` lets a spanloop worker run it, and nothing else is
spanloop's. By hand, against any OpenAI-compatible endpoint:
    OPENAI_BASE_URL=http://127.0.0.1:8101/v1 OPENAI_API_KEY=none python examples/lookup_agent.py 7
"""

import os
import sqlite3
import sys
from types import SimpleNamespace
from typing import Any

from openai import OpenAI

from spanloop import rollout

# One client for all attempts: making one takes longer than a whole rollout, a copy for another address is free.
client = OpenAI(base_url="http://unset/v1", api_key="unset")

# check_same_thread: a worker runs several attempts at once, each in a thread.
table = sqlite3.connect(":memory:", check_same_thread=False)
table.execute("CREATE TABLE items (key TEXT PRIMARY KEY, value TEXT)")
table.executemany("INSERT INTO items VALUES (?, ?)", [(str(i), str((i * 3 + 1) % 10)) for i in range(10)])


def find(key: str) -> str | None:
    """The value of a key; None if there is no such key."""
    row = table.execute("SELECT value FROM items WHERE key = ?", (key,)).fetchone()
    return row[0] if row else None


@rollout
def lookup(task: dict[str, str], llm: Any) -> float:
    """Reward: 0.2 for the right look-up and 1.0 more for the right answer behind it."""
    chat = client.with_options(base_url=llm.base_url, api_key=llm.api_key).chat.completions

    def ask(messages: list[Any]) -> str:
        answer = chat.create(model=llm.model, messages=messages, max_tokens=3, temperature=1.0)
        return answer.choices[0].message.content or ""

    messages: list[Any] = [{"role": "user", "content": f"get {task['key']}?"}]
    key = ask(messages)
    value = find(key) if key == task["key"] else None
    told = f" {value}!" if value else " ?!"
    messages += [{"role": "assistant", "content": key}, {"role": "user", "content": told}]
    answer = ask(messages)
    return 0.0 if value is None else 1.2 if answer == value else 0.2


if __name__ == "__main__":
    here = SimpleNamespace(
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
        model=os.environ.get("OPENAI_MODEL", "policy"),
    )
    sys.stdout.write(f"reward {lookup({'key': sys.argv[1]}, here)}\n")
