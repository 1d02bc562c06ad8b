"""A loader on a thread, versions to publish, and what the loader told."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import torch

from spanloop.infra.kafka import Reader
from spanloop.infra.registry import Registry
from spanloop.infra.settings import Settings
from spanloop.schemas import topics
from spanloop.schemas.records import Resource, Worker
from spanloop.schemas.serde import Decoder
from spanloop.trainer.loader import LoaderService
from spanloop.trainer.tiny import make_policy

POLICY = "policy"
DEADLINE_S = 60.0
PROBE_IDS = [3, 10, 17, 24, 31, 38, 45, 52, 59]  # the last two are known to the network only


def version(http: httpx.Client) -> str:
    return str(http.get("/weight_info").json()["weight_version"])


def answer(http: httpx.Client) -> tuple[list[int], list[dict[str, object]]]:
    body = {"messages": [{"role": "user", "content": "get 7?"}], "return_token_ids": True, "max_tokens": 20, "seed": 1}
    choice = http.post("/v1/chat/completions", json={**body, "ignore_eos": True}).json()["choices"][0]
    return choice["token_ids"], choice["weight_versions"]


def weights(folder: Path, seed: int) -> Path:
    """A folder with a policy's weights."""
    make_policy(folder, seed)
    return folder


def probe_of(folder: Path) -> str:
    """What the trainer writes: logprobs[i] of ids[i] given ids[:i], the first null."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] transformers' stubs
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=torch.tensor([PROBE_IDS])).logits[0, :-1]  # pyright: ignore[reportUnknownVariableType]
    logps = torch.log_softmax(logits, -1).gather(1, torch.tensor(PROBE_IDS[1:])[:, None])[:, 0]
    return json.dumps({"ids": PROBE_IDS, "logprobs": [None, *(float(x) for x in logps)]})


def resource(number: int, folder: Path, *, probe: str | None = None, sha256: str | None = None) -> Resource:
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    return Resource(
        name=POLICY,
        version=number,
        kind="policy",
        uri=str(folder),
        sha256=sha256 or found,
        parent_version=number - 1 or None,
        probe=probe or probe_of(folder),
    )


@contextmanager
def running(loader: LoaderService) -> Generator[Future[None]]:
    """A loader on a thread; its error, if it had one, is the future's."""
    stop, done = threading.Event(), Future[None]()

    def run() -> None:
        try:
            loader.run(stop)
        except Exception as error:  # noqa: BLE001 - the test asks the future for it
            done.set_exception(error)
        else:
            done.set_result(None)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def beats(settings: Settings) -> list[Worker]:
    """All heartbeats so far."""
    with closing(Reader(settings, "beats")) as reader, closing(Registry(settings.registry_url)) as registry:
        decoder = Decoder(registry)
        reader.assign_topics([topics.WORKERS])
        ends, out = reader.ends(), list[Worker]()
        while not reader.reached(ends):
            out += [decoder.decode(Worker, m.value, m.headers) for m in reader.poll() if m.value is not None]
    return out
