"""What somebody runs into who uses the command line for the first time."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fisk_ai.agent.events import ModelRetried, OrphanFound
from fisk_ai.cli.live import Live
from fisk_ai.cli.places import Place
from fisk_ai.fingerprint import tool_hashes
from fisk_ai.folding import Counters
from fisk_ai.reports.summary import _used

from .bench import NOTE_TOOL, Bench, end, result, turn
from .conftest import Inline

LOUD = """
import os, subprocess
print("imported")
def shout(what: str) -> str:
    "Writes to stdout."
    print("printed", what)
    os.write(1, b"written\\n")
    subprocess.run(["echo", "by a child"], check=True)
    return "done"
"""


def _loud(bench: Bench) -> None:
    bench.agent([{"text": "Go.", "calls": [{"name": "shout", "input": {"what": "it"}}]}, {"text": "Fine."}], [])
    (bench.directory / "loud.py").write_text(LOUD)
    config = json.loads((bench.directory / "agent.yaml").read_text())
    config["tools"] = {"python": ["loud:shout"]}
    (bench.directory / "agent.yaml").write_text(json.dumps(config))


def test_removal_takes_whole_ids_and_names_those_that_may_be_meant(bench: Bench, inline: Inline) -> None:
    bench.stored("nightly-important", end("suspended"))
    before = bench.snapshot()
    refused = inline("session", "rm", "nightly")
    assert refused.code == 1
    assert "did you mean nightly-important? rm takes whole ids" in refused.err
    assert bench.snapshot() == before
    assert inline("session", "rm", "nightly-important").code == 0


@pytest.mark.parametrize("output", ["text", "json", "stream-json"])
def test_what_a_python_tool_writes_to_stdout_goes_to_stderr(bench: Bench, output: str) -> None:
    _loud(bench)
    done = bench.cli("run", "--output", output, "hello")
    assert done.code == 0
    if output == "text":
        assert done.out == b"Fine.\n"
    else:
        documents = [json.loads(line) for line in done.out.splitlines()]
        assert documents[-1]["answer"] == "Fine."
    for said in ("imported\n", "printed it\n", "written\n", "by a child\n"):
        assert done.err.count(said) == 1


def test_what_a_module_prints_does_not_break_the_json_of_info(bench: Bench) -> None:
    _loud(bench)
    done = bench.cli("info", "--json")
    assert done.data["tools"][0]["name"] == "shout"
    assert done.err == "imported\n"


@pytest.mark.parametrize(("redirection", "code"), [(">/dev/full", 1), (">&-", 1), ("| true", 0)])
def test_stdout_that_cannot_take_the_answer_is_handled_also_where_tools_print(
    bench: Bench, redirection: str, code: int
) -> None:
    _loud(bench)
    done = bench.paste(f"set -o pipefail; fisk-ai run --checkpoint --name r hello {redirection}")
    assert done.code == code
    assert "Exception ignored" not in done.err
    assert done.err.count("could not be written") == code
    assert bench.store.info("r").status == "completed"


def test_unknown_command_names_the_one_that_is_meant(inline: Inline) -> None:
    for typed, meant in (("resume", "run --resume"), ("ls", "session ls"), ("rm", "session rm")):
        refused = inline(typed, "x")
        assert refused.code == 2
        assert f"No such command '{typed}': did you mean `fisk-ai {meant}`?" in refused.err
    assert "did you mean" not in inline("frobnicate").err


def test_help_promises_what_is_true_and_cuts_nothing_off(inline: Inline) -> None:
    assert "so that nothing that was recorded is paid for or done again" in " ".join(inline("--help").text.split())
    assert "..." not in inline("session", "--help").text.partition("Commands:")[2]


def test_show_as_json_has_the_conversation_with_the_numbers_that_fork_takes(bench: Bench, inline: Inline) -> None:
    bench.stored("r", turn("Noting.", "a"), result("a"), turn("Done."), end("completed"))
    data = inline("session", "show", "r", "--json").data
    assert data["answer"] == "Done."
    assert [(each["seq"], each["role"], each["text"]) for each in data["messages"]] == [
        (1, "user", "hello"),
        (2, "assistant", "Noting."),
        (3, "tool", "noted"),
        (4, "assistant", "Done."),
    ]
    assert data["messages"][1]["calls"] == [{"id": "a", "name": "note", "arguments": '{"what":"a"}'}]
    assert data["messages"][2]["tool_use_id"] == "a"
    bench.stored("refused", turn("No.", stop="refusal"), end("error"))
    assert inline("session", "show", "refused", "--json").data["answer"] is None


def test_show_numbers_every_record_ends_and_resumes_included(bench: Bench, inline: Inline) -> None:
    bench.agent([{"text": "Noting.", "calls": [{"name": "note", "input": {"what": "a"}}]}, {"text": "Fine."}])
    bench.stored("r", turn("Noting.", "call_0_0"), end("suspended"))
    assert inline("run", "--resume", "r").code == 0
    conversation = inline("session", "show", "r").text.partition("\n\n")[2].splitlines()
    assert [line for line in conversation if not line.startswith("   5   ok ")] == [
        "   1 you: hello",
        "   2 model: Noting.",
        '     > note {"what":"a"}',
        "   3 --- suspended ---",
        "   4 --- resumed ---",
        "   6 model: Fine.",
        "   7 --- completed ---",
    ]


def test_advice_about_a_damaged_run_names_it(bench: Bench, inline: Inline) -> None:
    path = bench.stored("r", turn("Noting.", "a"), result("a"), end("suspended"))
    path.write_bytes(path.read_bytes().replace(b"noted", b"NOTED"))
    for args in (("session", "show", "r"), ("run", "--resume", "r")):
        refused = inline(*args)
        assert refused.code == 7
        assert "`fisk-ai session fork r --at SEQ`" in refused.err
        assert "`fisk-ai session verify r`" in refused.err
    assert inline("session", "show", "r", "--json").data["error"]["run_id"] == "r"


def test_journal_under_another_name_is_told_to_be_renamed(bench: Bench, inline: Inline) -> None:
    path = bench.stored("r", turn("Done."), end("completed"))
    (bench.state / "copy.json").write_bytes(path.read_bytes())
    checked = inline("session", "verify", "copy")
    assert checked.code == 7
    assert checked.text == "copy: DAMAGED: the file is named copy but holds run r: rename it\n"
    for args in (("session", "show", "copy"), ("run", "--resume", "copy")):
        refused = inline(*args)
        assert (refused.code, refused.out) == (7, b"")
        assert "meta names the run 'r' but the file is named for 'copy': rename it" in refused.err


def test_continue_takes_only_runs_of_the_configured_model_and_says_which(bench: Bench, inline: Inline) -> None:
    bench.agent([{"text": "Fine."}])
    bench.stored("mine", end("suspended"))
    bench.agent([{"text": "Fine."}], model="another")
    bench.stored("others", end("suspended"))
    bench.agent([{"text": "Fine."}])
    done = inline("run", "--continue")
    assert (done.code, done.out) == (0, b"Fine.\n")
    assert done.err.startswith("--continue takes run mine\n")
    none = inline("run", "--continue")
    assert none.code == 1
    assert "has the model of the configuration, scripted (scripted)" in none.err
    assert "The newest one of another is others, of another (scripted)" in none.err
    assert bench.store.info("others").status == "suspended"


def test_refusal_names_the_configuration_that_was_used(bench: Bench, inline: Inline) -> None:
    bench.stored("r", end("suspended"))
    bench.agent([], [{**NOTE_TOOL, "description": "Changed."}])
    refused = inline("run", "--resume", "r")
    assert refused.code == 5
    assert refused.err.endswith("(configuration: agent.yaml)\n")


def test_use_is_told_without_zeros_and_in_the_right_number() -> None:
    one = Counters(1, 1, 1, 0)
    assert _used(one) == "1 model call, 1 tool call, 1 token (input 1, output 0)"
    assert _used(Counters(2, 0, 3, 4, 5, 6)) == (
        "2 model calls, 0 tool calls, 18 tokens (input 3, output 4, cache read 5, cache created 6)"
    )


def test_skipped_call_is_called_not_repeated_here_and_in_show(bench: Bench, inline: Inline) -> None:
    bench.agent([{"text": "Go.", "calls": [{"name": "note", "input": {"what": "a"}}]}, {"text": "Fine."}])
    bench.stored("r", turn("Go.", "a"))
    done = inline("run", "--resume", "r", "--on-crash", "skip")
    assert "> note (not repeated): The outcome of this call is unknown" in done.err
    assert "  not repeated: The outcome of this call is unknown" in inline("session", "show", "r").text


def test_waiting_for_a_tool_does_not_say_that_its_call_is_repeated(capfd: pytest.CaptureFixture[str]) -> None:
    Live(Place(), chat=False)(OrphanFound("note", 7, "wait", 60.0))
    said = "note (process group 7) still runs from before; waiting for it, at most 60 s, before the run goes on\n"
    assert capfd.readouterr().err == said


@pytest.mark.parametrize("sent", [True, False])
def test_attempt_that_reached_nobody_is_not_said_to_cost(capfd: pytest.CaptureFixture[str], sent: bool) -> None:
    Live(Place(), chat=False)(ModelRetried(1, "no route", 0.5, sent))
    assert ("paid for twice" in capfd.readouterr().err) == sent


def test_server_that_is_not_there_costs_nothing(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    bench.agent([], provider="openai", model="m", script=None, base_url=f"http://127.0.0.1:{port}/v1")
    failed = bench.cli("run", "hello")
    assert "attempt 2 follows" in failed.err
    assert "paid for" not in failed.err


def test_lone_slash_word_is_not_sent_and_two_slashes_send_one(bench: Bench) -> None:
    bench.agent([{"text": f"Answer {number}."} for number in range(1, 5)])
    lines = b"/help\nhello\n /quit \n//end\n/etc/hosts\n"
    done = bench.cli("run", "--chat", "--checkpoint", "--name", "r", stdin=lines)
    assert (done.code, done.out) == (0, b"Answer 1.\nAnswer 2.\nAnswer 3.\n")
    assert "not sent: /help is no command here, /end is the only one; //help sends /help" in done.err
    assert "not sent: /quit" in done.err
    messages = bench.cli("session", "show", "r", "--json").data["messages"]
    assert [each["text"] for each in messages if each["role"] == "user"] == ["hello", "/end", "/etc/hosts"]


def test_info_says_where_the_model_is_and_what_is_missing(bench: Bench, inline: Inline, tmp_path: Path) -> None:
    absent = {**NOTE_TOOL, "name": "absent", "argv": ["no-such-program", "{what}"]}
    bench.agent([], [NOTE_TOOL, absent], provider="anthropic", model="m", script=None, base_url="http://127.0.0.1:9")
    shown = inline("info").text
    assert "server:    http://127.0.0.1:9\n" in shown
    assert "key:       not set (ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN)\n" in shown
    assert shown.count("its program is not found: ") == 1
    data = inline("info", "--json").data
    assert data["key_variables"] == {"ANTHROPIC_API_KEY": False, "ANTHROPIC_AUTH_TOKEN": False}
    assert {tool["name"]: tool["found"] for tool in data["tools"]} == {"absent": False, "note": True}


def test_info_of_an_agent_with_nothing_says_none_and_never_shows_a_key(
    bench: Bench, inline: Inline, monkeypatch: pytest.MonkeyPatch
) -> None:
    config: dict[str, Any] = {"identity": "bare", "llm": {"provider": "openai", "model": "m", "api_key_env": "MY_KEY"}}
    (bench.directory / "agent.yaml").write_text(json.dumps(config))
    refused = inline("run", "hello")
    assert "set MY_KEY, or name another variable with llm.api_key_env" in refused.err
    monkeypatch.setenv("MY_KEY", "canary")
    shown = inline("info").text
    assert "prompt:    none\n" in shown
    assert "tools:     none\n" in shown
    assert "key:       MY_KEY is set\n" in shown
    assert "canary" not in shown + inline("info", "--json").text


def test_info_shows_what_the_model_is_asked_for_and_hashes_of_tools_on_its_side(bench: Bench, inline: Inline) -> None:
    search = {"type": "web_search_20260209", "name": "web_search", "token": "canary", "max_uses": 3}
    bench.agent(
        [],
        provider="anthropic",
        model="m",
        script=None,
        cache=False,
        service_tier="standard_only",
        betas=["one", "two"],
        server_tools=[search, {"type": "mcp_toolset"}],
    )
    shown = inline("info").text
    data = inline("info", "--json").data
    assert "options:   cache off, service tier standard_only, beta one, beta two\n" in shown
    assert "tools:     1 and 2 on the provider's side with hash " in shown
    assert "  web_search: web_search_20260209\n" in shown
    hashes = {tool["name"]: tool["hashes"] for tool in data["server_tools"]}
    assert list(hashes) == ["web_search", "mcp_toolset"]
    assert f"on the provider's side; definition {hashes['web_search']['command'][:8]}\n" in shown
    assert hashes["web_search"] == msgspec.to_builtins(tool_hashes("", {}, search))
    assert (data["api"], data["cache"], data["service_tier"]) == (None, False, "standard_only")
    assert data["betas"] == ["one", "two"]
    assert "canary" not in shown + json.dumps(data)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_info_shows_which_of_openais_apis_is_spoken(bench: Bench, inline: Inline, api: str) -> None:
    bench.agent([], provider="openai", model="m", script=None, api=api)
    assert f"options:   api {api}, cache on\n" in inline("info").text
    assert inline("info", "--json").data["api"] == api


def test_documents_are_on_one_line_where_no_person_reads_them(bench: Bench, inline: Inline) -> None:
    bench.stored("r", turn("Done."), end("completed"))
    for args in (
        ("session", "ls", "--json"),
        ("session", "show", "r", "--json"),
        ("session", "show", "absent", "--json"),
        ("session", "verify", "--json"),
        ("session", "fork", "r", "--at", "1", "--json"),
        ("info", "--json"),
        ("run", "--output", "json", "hello"),
        ("run", "--output", "json", "--resume", "absent"),
    ):
        assert inline(*args).out.count(b"\n") == 1, args
