"""Whether a stored run may go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from fisk_ai.agent.agent import Agent
from fisk_ai.agent.guard import OUTCOME_UNKNOWN, check_resume
from fisk_ai.errors import AlreadyCompleted, ConfigurationChanged, DeadEnd, DecisionNeeded, UnsupportedFormat
from fisk_ai.fingerprint import make_fingerprint, tool_hashes
from fisk_ai.folding import RunState, fold
from fisk_ai.messages import tool_result
from fisk_ai.providers.base import ModelOptions
from fisk_ai.providers.scripted import ScriptedProvider
from fisk_ai.records import (
    AssistantRecord,
    Fingerprint,
    MetaRecord,
    Record,
    SequencedRecord,
    TerminalRecord,
    ToolResultRecord,
    resume_mark,
)
from fisk_ai.tools.base import OnCrash, ToolContext, ToolOutput


@dataclass(frozen=True)
class Stub:
    """A tool that is only looked at."""

    name: str
    on_crash: OnCrash = "rerun"
    description: str = "Does it"
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    identity: Mapping[str, Any] = field(default_factory=lambda: {"argv": ["true"], "parallel": False})
    parallel: bool = False
    timeout_s: float | None = None
    starts_processes: bool = False
    problem: str | None = None

    def problem_with(self, arguments: Mapping[str, Any]) -> str | None:
        return self.problem

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        raise AssertionError


A, B = Stub("a"), Stub("b")
SEARCH: Mapping[str, Any] = {"type": "web_search", "name": "search", "max_uses": 3}


def look() -> str:
    """Look."""
    return "all quiet"


def served(tools: Mapping[str, Stub], *definitions: Mapping[str, Any]) -> Fingerprint:
    """The fingerprint of an agent with tools on the provider's side, too."""
    options = ModelOptions(server_tools=tuple(definitions))
    agent = Agent("claude-sonnet-5", provider=ScriptedProvider([]), tools=tools.values(), model_options=options)
    return prints(*tools.values(), tools=agent.fingerprint.tools)


def prints(*tools: Stub, **changed: Any) -> Fingerprint:
    values: dict[str, Any] = {
        "provider": "anthropic",
        "model": "claude-sonnet-5",
        "system_prompt": "Be brief.",
        "thinking_mode": "off",
        "max_tokens": 1000,
        "max_iterations": 10,
    }
    hashes = {tool.name: tool_hashes(tool.description, tool.parameters, tool.identity) for tool in tools or (A, B)}
    return make_fingerprint(**({"tools": hashes} | values | changed))


def turn(*names: str, stop_reason: str = "tool_use", **more: Any) -> AssistantRecord:
    blocks = [{"type": "tool_use", "id": f"call_{at}", "name": name, "input": {}} for at, name in enumerate(names)]
    content = blocks or [{"type": "text", "text": "Hello"}]
    message = msgspec.Raw(msgspec.json.encode({"role": "assistant", "content": content}))
    return AssistantRecord(iteration=0, message=message, stop_reason=stop_reason, **more)


def result(call_id: str) -> ToolResultRecord:
    return ToolResultRecord(tool_use_id=call_id, result=msgspec.Raw(tool_result(call_id, "done")))


def state_of(*records: Record, stored: Fingerprint | None = None, version: int = 2) -> RunState:
    meta = MetaRecord(
        version=version, run_id="r7", created="2026-12-01T00:00:00.000Z", fingerprint=stored or prints(), prompt="go"
    )
    return fold(SequencedRecord(seq, record) for seq, record in enumerate((meta, *records), 1))


TOOLS = {"a": A, "b": B}


def refusal(state: RunState, current: Fingerprint, **options: Any) -> ConfigurationChanged:
    with pytest.raises(ConfigurationChanged) as caught:
        check_resume(state, current, TOOLS, **options)
    assert caught.value.exit_code == 5
    return caught.value


def test_the_same_configuration_passes() -> None:
    passage = check_resume(state_of(), prints(), TOOLS)
    assert (passage.mark, passage.forced, dict(passage.doubt)) == (None, (), {})


@pytest.mark.parametrize(
    ("changed", "fields", "words"),
    [
        ({"model": "claude-opus-5"}, "model", ["claude-sonnet-5", "claude-opus-5"]),
        ({"system_prompt": "Be long."}, "system_prompt", ["system prompt"]),
        ({"thinking_mode": "budget:2048"}, "thinking_mode", ["off", "budget:2048"]),
        ({"max_tokens": 2000}, "max_tokens", ["1000", "2000"]),
        ({"max_tokens": None}, "max_tokens", ["1000", "unlimited"]),
        ({"max_iterations": 11}, "max_iterations", ["10", "11"]),
    ],
)
def test_each_changed_field_is_refused_and_named_alone(changed: dict[str, Any], fields: str, words: list[str]) -> None:
    problem = refusal(state_of(), prints(**changed))
    assert problem.fields == (fields,)
    assert problem.forcible
    assert len(problem.changes) == 1
    assert all(word in str(problem) for word in words)
    assert "Be brief" not in str(problem)
    assert "Be long" not in str(problem)


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ((A, B, Stub("c")), "tools added: c"),
        ((A,), "tools removed: b"),
        ((A, replace(B, description="Other")), "tools changed: b (description)"),
        ((A, replace(B, parameters={"type": "object", "required": []})), "tools changed: b (parameters)"),
        ((A, replace(B, identity={"argv": ["false"], "parallel": False})), "tools changed: b (command)"),
        ((A, replace(B, identity={"argv": ["true"], "parallel": True})), "tools changed: b (command)"),
        ((replace(A, description="Other"), Stub("c")), "tools added: c; removed: b; changed: a (description)"),
    ],
)
def test_changed_tools_are_named_with_what_changed(tools: tuple[Stub, ...], words: str) -> None:
    problem = refusal(state_of(), prints(*tools))
    assert problem.fields == ("tools",)
    assert problem.changes == (words,)


@pytest.mark.parametrize(
    ("definitions", "words"),
    [
        ([], "tools removed: search"),
        ([{"type": "web_search", "name": "search", "max_uses": 4}], "tools changed: search (command)"),
        ([SEARCH, {"type": "mcp_toolset"}, {"type": "mcp_toolset"}], "tools added: mcp_toolset, mcp_toolset 2"),
    ],
)
def test_tools_of_the_providers_side_are_named_as_the_others_are(
    definitions: Sequence[Mapping[str, Any]], words: str
) -> None:
    problem = refusal(state_of(stored=served(TOOLS, SEARCH)), served(TOOLS, *definitions))
    assert (problem.fields, problem.changes) == (("tools",), (words,))


def test_no_tools_of_the_providers_side_leave_the_fingerprint_as_it_was_before_there_were_any() -> None:
    agent = Agent("m", provider=ScriptedProvider([]), tools=[look], model_options=ModelOptions(cache=False))
    tool = agent.tools["look"]
    hashes = {"look": tool_hashes(tool.description, tool.parameters, tool.identity)}
    assert agent.fingerprint == make_fingerprint(
        provider="scripted", model="m", system_prompt="", tools=hashes, max_tokens=200_000, max_iterations=50
    )


@pytest.mark.parametrize("tools", [(B, A), (replace(A, on_crash="ask"), replace(B, timeout_s=1.0))])
def test_the_order_of_tools_and_how_a_crash_is_treated_change_nothing(tools: tuple[Stub, ...]) -> None:
    check_resume(state_of(), prints(*tools), TOOLS)


def test_several_changes_are_all_named() -> None:
    problem = refusal(state_of(), prints(A, model="m", system_prompt="s", thinking_mode="adaptive", max_tokens=1))
    assert set(problem.fields) == {"model", "system_prompt", "thinking_mode", "max_tokens", "tools"}


def test_force_goes_on_and_leaves_the_new_fingerprint_on_a_mark() -> None:
    new = prints(model="claude-opus-5")
    passage = check_resume(state_of(), new, TOOLS, force=True)
    assert passage.forced == ("model claude-sonnet-5 is now claude-opus-5",)
    assert passage.mark == resume_mark(new)


def test_force_without_a_change_leaves_no_trace() -> None:
    assert check_resume(state_of(), prints(), TOOLS, force=True).mark is None


def test_force_never_moves_a_run_to_another_provider() -> None:
    problem = refusal(state_of(), prints(provider="openai", model="m"), force=True)
    assert not problem.forcible
    assert "not even with --force" in str(problem)
    assert set(problem.fields) == {"provider", "model"}


def test_a_journal_that_does_not_name_its_tools_needs_force() -> None:
    stored = msgspec.structs.replace(prints(), tools=None)
    problem = refusal(state_of(stored=stored), prints())
    assert problem.fields == ("tools",)
    assert "can't be compared" in str(problem)
    assert check_resume(state_of(stored=stored), prints(), TOOLS, force=True).mark == resume_mark(prints())


def test_a_forced_fingerprint_is_the_one_that_is_compared_from_then_on() -> None:
    new = prints(model="m")
    state = state_of(resume_mark(new))
    check_resume(state, new, TOOLS)
    assert refusal(state, prints()).fields == ("model",)


@pytest.mark.parametrize("force", [False, True])
def test_a_completed_run_is_refused_whatever_else_changed(force: bool) -> None:
    state = state_of(turn(stop_reason="end_turn"), TerminalRecord(reason="completed"))
    with pytest.raises(AlreadyCompleted) as caught:
        check_resume(state, prints(model="m"), TOOLS, force=force)
    assert caught.value.exit_code == 5


def test_a_clean_end_is_taken_back_by_a_mark_and_a_mark_is_not_repeated() -> None:
    for reason in ("suspended", "error", "budget", "max_iterations"):
        state = state_of(TerminalRecord(reason=reason))
        assert check_resume(state, prints(), TOOLS).mark == resume_mark()
    assert check_resume(state_of(resume_mark()), prints(), TOOLS).mark is None


@pytest.mark.parametrize("reason", ["refusal", "max_tokens", "content_filter", "model_context_window_exceeded"])
def test_a_dead_end_is_refused_and_names_the_way_out(reason: str) -> None:
    state = state_of(turn(stop_reason=reason), TerminalRecord(reason="error"))
    with pytest.raises(DeadEnd, match="fork") as caught:
        check_resume(state, prints(), TOOLS, force=True)
    assert caught.value.exit_code == 5


def test_a_journal_of_version_1_can_not_go_on_with_another_format() -> None:
    stored = prints(provider="openai")
    with pytest.raises(UnsupportedFormat, match="session fork r7"):
        check_resume(state_of(stored=stored, version=1), stored, TOOLS)
    check_resume(state_of(version=1), prints(), TOOLS)


def doubt(state: RunState, *tools: Stub, **options: Any) -> dict[str, str | None]:
    current = prints(*tools)
    return dict(check_resume(state, current, {tool.name: tool for tool in tools}, force=True, **options).doubt)


def test_the_call_in_flight_is_in_doubt_and_no_other() -> None:
    assert doubt(state_of(turn("a", "b")), A, B) == {"call_0": None}
    assert doubt(state_of(turn("a", "b"), result("call_0")), A, B) == {"call_1": None}
    assert doubt(state_of(turn("a", "b"), result("call_0"), result("call_1")), A, B) == {}


def test_nothing_is_in_doubt_after_a_clean_suspend_and_all_is_again_after_the_mark() -> None:
    suspended = (turn("a", "b"), TerminalRecord(reason="suspended"))
    assert doubt(state_of(*suspended), A, B) == {}
    assert doubt(state_of(*suspended, resume_mark()), A, B) == {"call_0": None}


def test_all_of_a_parallel_group_are_in_doubt() -> None:
    state = state_of(turn("a", "b", "a", parallel=(0, 2)))
    assert doubt(state, A, B) == {"call_0": None, "call_2": None}


def test_a_tool_that_skips_has_its_call_answered_with_an_outcome_that_is_unknown() -> None:
    text = doubt(state_of(turn("a")), Stub("a", "skip"))["call_0"]
    assert text == OUTCOME_UNKNOWN
    assert "unknown" in text
    assert "failed" not in text
    assert "not executed" not in text


def test_a_tool_that_asks_stops_the_resume_with_the_commands_that_decide() -> None:
    with pytest.raises(DecisionNeeded) as caught:
        doubt(state_of(turn("a")), Stub("a", "ask"))
    assert caught.value.exit_code == 5
    assert caught.value.calls == ("a (call call_0)",)
    assert "--on-crash rerun" in str(caught.value)
    assert "--on-crash skip" in str(caught.value)


@pytest.mark.parametrize("own", ["rerun", "skip", "ask"])
def test_the_operator_overrides_what_the_tool_says(own: OnCrash) -> None:
    state, tool = state_of(turn("a")), Stub("a", own)
    assert doubt(state, tool, on_crash="rerun") == {"call_0": None}
    assert doubt(state, tool, on_crash="skip") == {"call_0": OUTCOME_UNKNOWN}
    with pytest.raises(DecisionNeeded):
        doubt(state, tool, on_crash="ask")


@pytest.mark.parametrize("override", [None, "rerun", "skip"])
def test_a_call_whose_tool_is_gone_is_not_said_to_have_never_run(override: OnCrash | None) -> None:
    assert doubt(state_of(turn("a")), B, on_crash=override) == {"call_0": OUTCOME_UNKNOWN}


@pytest.mark.parametrize("more", [{"stop_reason": "max_tokens"}, {"unusable": (0,)}])
def test_a_call_that_can_never_have_run_is_not_in_doubt(more: dict[str, Any]) -> None:
    assert doubt(state_of(turn("a", **more)), Stub("a", "ask")) == {}


@pytest.mark.parametrize("tools", [(A, B), (A, B, Stub("gone", "ask"))])
def test_a_call_of_a_tool_that_never_was_is_not_in_doubt(tools: tuple[Stub, ...]) -> None:
    assert doubt(state_of(turn("gone")), *tools) == {}


def test_a_call_that_names_a_tool_of_the_providers_side_never_ran_here() -> None:
    both = served({"a": A}, {"type": "web_search", "name": "search"})
    state = state_of(turn("search"), stored=both)
    assert dict(check_resume(state, both, {"a": A}, on_crash="ask").doubt) == {}
    # Unless it was one of ours when the call was made.
    ours = prints(A, Stub("search"))
    passage = check_resume(state_of(turn("search"), stored=ours), both, {"a": A}, force=True)
    assert dict(passage.doubt) == {"call_0": OUTCOME_UNKNOWN}


def test_a_call_with_arguments_that_its_tool_refuses_is_not_in_doubt() -> None:
    picky = Stub("a", "ask", problem="what: missing")
    assert doubt(state_of(turn("a"), stored=prints(picky)), picky) == {}


def test_a_call_that_only_the_changed_tool_refuses_is_in_doubt() -> None:
    picky = Stub("a", "skip", parameters={"type": "object", "required": ["what"]}, problem="what: missing")
    assert doubt(state_of(turn("a")), picky) == {"call_0": OUTCOME_UNKNOWN}


def test_a_journal_that_does_not_name_its_tools_leaves_every_call_in_doubt() -> None:
    stored = msgspec.structs.replace(prints(), tools=None)
    assert doubt(state_of(turn("gone"), stored=stored), A, B) == {"call_0": OUTCOME_UNKNOWN}


def test_a_forced_mark_says_nothing_about_the_tools_before_it() -> None:
    without_a = resume_mark(prints(B))
    assert doubt(state_of(turn("a"), without_a), B) == {"call_0": OUTCOME_UNKNOWN}


def test_a_call_that_may_have_run_under_other_tools_stays_in_doubt_after_a_forced_resume() -> None:
    opened = turn("b", "a", parallel=(0, 1))
    without = prints(A)
    state = state_of(opened, resume_mark(without), result("call_1"))
    passage = check_resume(state, without, {"a": A})
    assert dict(passage.doubt) == {"call_0": OUTCOME_UNKNOWN}


def test_a_chat_of_version_one_is_refused_before_anything_is_written() -> None:
    state = state_of(turn(stop_reason="end_turn"), TerminalRecord(reason="suspended"), version=1)
    with pytest.raises(UnsupportedFormat, match=r"a chat.*fork"):
        check_resume(replace(state, interactive=True), prints(), TOOLS)
