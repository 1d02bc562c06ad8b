import json
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spanloop.producers import FunctionAgent
from spanloop.producers.agent import resolve

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "lookup_agent.py"
Serve = Callable[[list[str]], tuple[Any, list[Any]]]


@pytest.fixture
def serve() -> Generator[Serve]:
    """Starts a model that gives the answers it is told; returns its `llm` and the requests it gets."""
    servers: list[ThreadingHTTPServer] = []

    def start(answers: list[str]) -> tuple[Any, list[Any]]:
        seen: list[Any] = []

        class Model(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                message = {"role": "assistant", "content": answers[len(seen) - 1]}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                answer = {"id": "c", "object": "chat.completion", "created": 1, "model": "policy", "choices": [choice]}
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        return SimpleNamespace(base_url=url, api_key="k", model="policy"), seen

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("answers", "told", "reward"),
    [
        (["7", "2"], " 2!", 1.2),
        (["7", "3"], " 2!", 0.2),
        (["8", "5"], " ?!", 0.0),
        (["", "2"], " ?!", 0.0),
        (["77", "2"], " ?!", 0.0),
    ],
)
def test_the_answer_counts_only_behind_the_right_look_up(
    serve: Serve, answers: list[str], told: str, reward: float
) -> None:
    agent = cast("FunctionAgent", resolve(f"{EXAMPLE}:lookup"))
    llm, seen = serve(answers)
    assert agent({"key": "7"}, llm) == reward
    first, second = seen
    assert first["messages"] == [{"role": "user", "content": "get 7?"}]
    assert second["messages"] == [
        *first["messages"],
        {"role": "assistant", "content": answers[0]},
        {"role": "user", "content": told},
    ]
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("policy", 3, 1.0)


def test_it_imports_nothing_of_spanloop_but_rollout() -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if "import" in line and "spanloop" in line]
    assert lines == ["from spanloop import rollout"]
