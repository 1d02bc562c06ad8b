import json

from spanloop.producers import PromptTemplate
from spanloop.producers.resources import Resources
from spanloop.schemas.records import Assignment, Resource, Task

TASK = Task("ro-1", "run-1")


def assignment(**pins: int | None) -> Assignment:
    return Assignment("wo-1", "at-1", task=TASK, pins=pins)


def resources(*records: Resource) -> Resources:
    out = Resources()
    for each in records:
        out.put(each)
    return out


def test_the_first_record_of_a_version_wins() -> None:
    found = resources(Resource("a", 1, body="1"), Resource("a", 1, body="2")).get("a", 1)
    assert found is not None
    assert found.body == "1"


def test_no_version_means_the_newest() -> None:
    found = resources(Resource("a", 2, body="2"), Resource("a", 1, body="1"))
    assert (found.get("a", None), found.get("b", None)) == (Resource("a", 2, body="2"), None)


def test_an_agent_gets_what_its_task_pins() -> None:
    found = resources(
        Resource("ask", 1, "prompt", json.dumps("Q {q}")),
        Resource("ask", 2, "prompt", json.dumps({"template": "Q: {q}"})),
        Resource("limit", 1, "json", "[3]"),
        Resource("policy", 5, "policy", uri="/w"),
    )
    given = assignment(ask=2, limit=None, policy=4, gone=None)
    llm = found.llm(given, "http://g/", "key")
    assert found.for_agent(given, llm) == {"ask": PromptTemplate("Q: {q}", 2), "limit": [3], "policy": llm}
    assert found.for_agent(assignment(ask=1), llm) == {"ask": PromptTemplate("Q {q}", 1)}


def test_calls_go_to_the_gateway_under_the_attempts_url_and_key() -> None:
    llm = resources(Resource("student", 1, "policy")).llm(assignment(student=None), "http://g/", "key")
    assert llm.base_url == llm.endpoint == llm.get_base_url("x", "y") == "http://g/rollout/ro-1/attempt/at-1/v1"
    assert (llm.model, llm.api_key, llm.sampling_parameters) == ("student", "key", {})


def test_a_policy_that_was_never_published_is_named_by_its_pin_else_policy() -> None:
    found = resources(Resource("ask", 1, "prompt", '"Q"'))
    assert found.llm(assignment(ask=1, student=None), "http://g", "k").model == "student"
    assert found.llm(assignment(ask=1), "http://g", "k").model == "policy"


def test_a_model_may_have_an_endpoint_of_its_own() -> None:
    body = {"endpoint": "http://x/v1", "model": "m", "api_key": "z", "sampling_parameters": {"temperature": 0.2}}
    llm = resources(Resource("judge", 1, "model", json.dumps(body))).llm(assignment(judge=1), "http://g", "k")
    assert (llm.endpoint, llm.model, llm.api_key) == ("http://x/v1", "m", "z")
    assert llm.sampling_parameters == {"temperature": 0.2}


def test_missing_is_what_was_pinned_to_a_version_and_not_seen() -> None:
    found = resources(Resource("ask", 1, "prompt", '"Q"'), Resource("policy", 5, "policy"))
    assert found.missing({"ask": 1, "policy": 9, "other": None}) == []
    assert found.missing({"ask": 2, "limit": 1}) == ["ask@2", "limit@1"]


def test_a_prompt_is_made_once_per_version_and_a_value_anew_for_each_attempt() -> None:
    found = resources(
        Resource("ask", 1, "prompt", '"a"'), Resource("ask", 2, "prompt", '"b"'), Resource("limit", 1, "json", "[3]")
    )
    llm = found.llm(assignment(), "http://g", "k")
    first, again, other = (found.for_agent(assignment(ask=v, limit=1), llm) for v in (1, 1, 2))
    assert first["ask"] is again["ask"]
    assert other["ask"] == PromptTemplate("b", 2)
    assert first["limit"] == again["limit"]
    assert first["limit"] is not again["limit"]
