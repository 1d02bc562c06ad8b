import pytest

from spanloop.producers import PromptTemplate


def test_variables_are_filled_and_json_braces_kept_and_nothing_is_expanded_twice() -> None:  # AP-1
    prompt = PromptTemplate('Answer as {"score": 0.5}. Task: {task}')
    assert prompt.format(task="{x}") == 'Answer as {"score": 0.5}. Task: {x}'


def test_nested_json_is_kept() -> None:
    assert PromptTemplate('{"a": {"b": 1}} {n}').format(n=2) == '{"a": {"b": 1}} 2'


def test_doubled_braces_around_a_name_are_literal() -> None:
    assert PromptTemplate("{{task}} {task}").format(task=1) == "{task} 1"


def test_a_missing_variable_is_named() -> None:  # AP-2
    prompt = PromptTemplate("{question} {task} {question}")
    assert prompt.variables() == ["question", "task"]
    with pytest.raises(KeyError, match="the prompt needs question; got task"):
        prompt.format(task=1)
