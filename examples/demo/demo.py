"""A run is killed with SIGKILL, looked at and resumed; a second one is suspended, refused and resumed.

    make demo        or        .venv/bin/python examples/demo/demo.py

It needs no network and no key: the model is a script, while the command line, its processes, the tools, the journal
and the signals are real. What is printed as a fact was checked before; a promise that doesn't hold ends the demo with
exit code 1. Everything it writes is in a temporary directory, which it removes.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FILES = ("agent.yaml", "turns.yaml", "tools.py", "publish.sh")
WIDTH = 80
PATIENCE_S = 30.0
PROMPT = "What is new here?"


class BrokenPromise(Exception):
    """Something that fisk-ai promises didn't hold."""


def narrate(text: str) -> None:
    """Say what comes next."""
    print(f"\n{textwrap.fill(text, WIDTH)}", flush=True)


def show(line: str) -> None:
    """Show a line of a program's output, wrapped so that it stays readable."""
    text = line.lstrip()
    indent = " " * (4 + len(line) - len(text))
    wrapped = textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + "    ")
    print("\n".join(wrapped) if wrapped else "", flush=True)


def promise(holds: bool, text: str) -> None:
    """State a fact, after it was checked."""
    if not holds:
        raise BrokenPromise(text)
    print(textwrap.fill(text, WIDTH, initial_indent="  ok: ", subsequent_indent="      "), flush=True)


def wait_for(happened: Callable[[], bool], what: str, process: Process) -> None:
    """Return when there is evidence that something happened; never after a mere pause."""
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        if process.ended():
            raise BrokenPromise(f"the run ended with exit code {process.ended_with()} before {what}")
        if time.monotonic() > deadline:
            raise BrokenPromise(f"nothing happened for {PATIENCE_S:g} s while waiting: {what}")
        time.sleep(0.01)


class Process:
    """A fisk-ai command as its own process; what it writes to stderr is shown as it comes."""

    def __init__(self, words: tuple[str, ...], directory: Path, environment: Mapping[str, str]) -> None:
        print(f"  $ {shlex.join(['fisk-ai', *words])}", flush=True)
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fisk_ai", *words],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        so_far = 0
        for line in map(str.rstrip, self._process.stderr):
            if line.startswith("---"):
                show(f"  ... {so_far - 1} lines ...")
                so_far = 0
            elif line.endswith(" so far:") or so_far:
                so_far += 1
            if so_far < 2:  # what follows is the conversation that `session show` has shown already
                show(line)
            self.lines.append(line)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def said(self, start: str) -> bool:
        """Tell whether it wrote a line that starts like this."""
        return any(line.startswith(start) for line in self.lines)

    def ended(self) -> bool:
        """Tell whether the process is gone."""
        return self._process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process alone."""
        self._process.send_signal(number)

    def ended_with(self) -> int:
        """Wait for the end and return the exit code."""
        self.output()
        return self._process.returncode

    def output(self) -> str:
        """Wait for the end and return what stdout got."""
        self._reader.join(PATIENCE_S)
        assert self._process.stdout is not None
        text = "" if self._process.stdout.closed else self._process.stdout.read()
        self._process.stdout.close()
        self._process.wait(PATIENCE_S)
        return text

    def kill(self) -> None:
        """Leave no process behind when the demo is cut short."""
        if not self.ended():
            self._process.kill()
            self._process.wait()


class Demo:
    """The working directory, the commands run in it, and what they left."""

    def __init__(self, directory: Path) -> None:
        self.work = directory / "work"
        self.work.mkdir()
        for name in FILES:
            shutil.copy(HERE / name, self.work)
        (self.work / "repository").symlink_to(ROOT, target_is_directory=True)
        self.runs = directory / "state" / "fisk-ai" / "runs"
        self.processes: list[Process] = []
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "FISK_AI_"))}
        self.environment = {**clean, "XDG_STATE_HOME": str(directory / "state"), "PATH": binaries, "PYTHONUTF8": "1"}

    def start(self, *words: str) -> Process:
        """Start a command."""
        process = Process(words, self.work, self.environment)
        self.processes.append(process)
        return process

    def run(self, *words: str, expect: int = 0) -> str:
        """Run a command to its end, show its output and check its exit code."""
        process = self.start(*words)
        output = process.output()
        for line in output.splitlines():
            show(line)
        self.check_exit(process, expect)
        return output

    def check_exit(self, process: Process, expect: int) -> None:
        """Compare an exit code with what the documentation says."""
        if process.ended_with() != expect:
            raise BrokenPromise(f"exit code {process.ended_with()} instead of {expect}")
        print(f"    (exit code {expect})", flush=True)

    def journal(self, run_id: str) -> bytes:
        """Return a run's journal."""
        return (self.runs / f"{run_id}.json").read_bytes()

    def facts(self, run_id: str) -> dict[str, Any]:
        """Return what `session show --json` says of a run."""
        command = [sys.executable, "-m", "fisk_ai", "session", "show", run_id, "--json"]
        done = subprocess.run(command, cwd=self.work, env=self.environment, check=False, capture_output=True)
        if done.returncode != 0:
            raise BrokenPromise(f"session show ended with exit code {done.returncode}: {done.stderr.decode()}")
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts

    def records(self, run_id: str) -> list[dict[str, Any]]:
        """Return the records of a run."""
        return [json.loads(line) for line in self.journal(run_id).splitlines()]

    def effects(self) -> list[str]:
        """Return the idempotency keys of what `publish` did, in order."""
        outbox = self.work / "outbox.txt"
        return [line.split()[0] for line in outbox.read_text().splitlines()] if outbox.exists() else []

    @contextmanager
    def held(self) -> Iterator[Callable[[], None]]:
        """Keep `publish` from ending until the returned function is called."""
        hold = self.work / "hold"
        hold.touch()
        try:
            yield lambda: hold.unlink(missing_ok=True)
        finally:
            hold.unlink(missing_ok=True)


def called(records: list[dict[str, Any]]) -> list[str]:
    """Return the names of the tools that the model called, in order."""
    turns = [record["assistant"]["message"]["content"] for record in records if "assistant" in record]
    return tool_names(block for content in turns for block in content if block["type"] == "tool_use")


def answered(records: list[dict[str, Any]]) -> list[str]:
    """Return the names of the tools whose results are journaled, in order."""
    return tool_names(record["tool_result"] for record in records if "tool_result" in record)


def tool_names(items: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names."""
    return [item["name"] for item in items]


def started(processes: list[Process]) -> Counter[str]:
    """Count how often each tool was started, by what the runs said live."""
    return Counter(line.split()[1] for process in processes for line in process.lines if line.startswith("> "))


def use_what_is_there(demo: Demo) -> None:
    """Use the repository's history, or the list of its files where there is none."""
    if not has_history(demo.environment):
        narrate("There is no git history here, so the agent lists files instead of commits.")
        script = demo.work / "turns.yaml"
        commits, files = "{name: recent_commits, input: {count: 5}}", "{name: list_files, input: {directory: .}}"
        text = script.read_text()
        assert commits in text
        script.write_text(text.replace(commits, files))
    elif git(demo.environment, "rev-parse", "--is-shallow-repository") == "true":
        narrate("This clone has a shallow history: the agent sees only the commits that are there.")


def has_history(environment: Mapping[str, str]) -> bool:
    """Tell whether git knows commits of this very directory, and not of one around it."""
    top = git(environment, "rev-parse", "--show-toplevel")
    return top is not None and Path(top).resolve() == ROOT and git(environment, "log", "-n", "1") is not None


def git(environment: Mapping[str, str], *words: str) -> str | None:
    """Return what git says about the repository; None if it can't say."""
    if shutil.which("git", path=environment["PATH"]) is None:
        return None
    command = ["git", "-C", str(ROOT), *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    return done.stdout.strip() if done.returncode == 0 else None


def killed_and_resumed(demo: Demo) -> list[Process]:
    """Kill a run in the middle of a tool, look at it, and resume it to its answer."""
    with demo.held() as let_go:
        narrate("1. Start a checkpointed run. Its second turn publishes a report, which takes a while.")
        first = demo.start("run", "--checkpoint", "--name", "report", PROMPT)
        wait_for(lambda: len(demo.effects()) == 1 and first.said("> publish"), "publish took effect", first)
        before = demo.journal("report")
        answered_before = answered(demo.records("report"))

        narrate("2. The report is out, but `publish` has not said so yet. Now the process dies.")
        print(f"  $ kill -KILL {first.pid}", flush=True)
        first.send(signal.SIGKILL)
        promise(first.ended_with() == -signal.SIGKILL, "the run died of SIGKILL, without a chance to tidy up")
        last = json.loads(before.splitlines()[-1])
        promise("assistant" in last, "the turn that calls `publish` was in the journal before the tool started")
        promise(demo.journal("report") == before, "that turn is the last record")

        narrate("3. What is known about it? The run has no clean end, and one call may have run.")
        listed = demo.run("session", "ls")
        promise("interrupted" in listed, "the run is listed as interrupted")
        demo.run("session", "show", "report")
        pending = demo.facts("report")["pending"]
        doubtful, open_calls = (tool_names(pending[kind]) for kind in ("ambiguous", "unanswered"))
        promise(doubtful == ["publish"], "one call is in doubt, by name: publish")
        promise(open_calls == ["publish", "count_lines"], "the call after it never started")

        narrate("4. Resume. The tool of the dead process is still alive, so its repeat has to wait for it.")
        second = demo.start("run", "--resume", "report")
        wait_for(lambda: any("process group" in line for line in second.lines), "it waited", second)
        promise(len(demo.effects()) == 1, "`publish` isn't repeated beside itself")
        let_go()
        show(second.output().rstrip())
        demo.check_exit(second, 0)

    new = demo.records("report")[len(before.splitlines()) :]
    keys = demo.effects()
    promise(demo.journal("report").startswith(before), "what was journaled before the kill is there, byte for byte")
    promise(answered(new) == ["publish", "count_lines"], "only the calls without a result were run")
    promise(answered_before == answered(demo.records("report"))[:2], "the results from before were reused")
    promise(sum("assistant" in record for record in new) == 1, "the model was asked for one turn only, the last one")
    promise(len(keys) == 2 and len(set(keys)) == 1, f"`publish` ran twice, both times with the key {keys[0]}")
    return [first, second]


def suspended_and_resumed(demo: Demo) -> list[Process]:
    """Suspend a run, fail to resume it with another tool, and resume it."""
    published = len(demo.effects())
    with demo.held() as let_go:
        narrate("5. Start a second run, and press Ctrl-C while `publish` is at work.")
        first = demo.start("run", "--checkpoint", "--name", "digest", PROMPT)
        wait_for(lambda: len(demo.effects()) == published + 1 and first.said("> publish"), "publish took effect", first)
        print("  ^C", flush=True)
        first.send(signal.SIGINT)
        wait_for(lambda: first.said("SIGINT"), "the signal was heard", first)
        let_go()
        first.output()
        demo.check_exit(first, 3)
    facts = demo.facts("digest")
    in_doubt = facts["pending"]["ambiguous"]
    promise(facts["status"] == "suspended", "the run is suspended: its tool came to its end and its result was kept")
    promise(not in_doubt, "no call is in doubt")

    narrate("6. Somebody changes a tool meanwhile. Going on would mix two agents in one conversation.")
    changed_tool_is_refused(demo)

    narrate("7. With the tool as it was, the run goes on where it stopped.")
    second = demo.start("run", "--resume", "digest")
    show(second.output().rstrip())
    demo.check_exit(second, 0)
    promise(len(demo.effects()) == published + 1, "`publish` took effect once: a clean suspend repeats nothing")
    return [first, second]


def changed_tool_is_refused(demo: Demo) -> None:
    """Change a command, and see that the resume names it and touches nothing."""
    config = demo.work / "agent.yaml"
    original, before = config.read_text(), demo.journal("digest")
    old, new = '[sh, publish.sh, "{title}"]', '[sh, publish.sh, --draft, "{title}"]'
    assert old in original
    config.write_text(original.replace(old, new))
    print(f"  agent.yaml: {old} is now\n              {new}", flush=True)
    refused = demo.start("run", "--resume", "digest")
    refused.output()
    demo.check_exit(refused, 5)
    promise(any("changed: publish (command)" in line for line in refused.lines), "the refusal names what changed")
    promise(demo.journal("digest") == before, "the refusal changed no byte of the journal")
    config.write_text(original)


def table(demo: Demo, runs: Mapping[str, list[Process]]) -> None:
    """Print what happened how often, and what of it was a repeat."""
    narrate("8. The balance.")
    demo.run("session", "verify")
    print(f"\n  {'run':8} {'what':16} {'needed':>6} {'done':>6} {'repeated':>9}")
    repeats: dict[str, int] = {}
    for run_id, processes in runs.items():
        records = demo.records(run_id)
        turns = [record["assistant"]["iteration"] for record in records if "assistant" in record]
        rows = {"model turns": (len(set(turns)), len(turns))}
        needed = Counter(called(records))
        rows |= {name: (count, started(processes)[name]) for name, count in needed.items()}
        for name, (wanted, done) in rows.items():
            print(f"  {run_id:8} {name:16} {wanted:>6} {done:>6} {done - wanted:>9}")
            repeats[f"{run_id} {name}"] = done - wanted
    print()
    repeated = {name: times for name, times in repeats.items() if times}
    only_the_killed_one = repeated == {"report publish": 1}
    promise(only_the_killed_one, "one call was repeated: the one that was running when the process was killed")
    promise(len(set(demo.effects())) == 2, "by their idempotency keys there are two reports, one a run")


def main() -> int:
    """Run the demo; 0 if every promise held."""
    # A shell's background job ignores SIGINT, and so would the runs, which are to be interrupted here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fisk-ai-demo-", ignore_cleanup_errors=True) as directory:
        demo = Demo(Path(directory).resolve())
        try:
            print("fisk-ai: agent runs that outlive their process")
            narrate("Lines that start with $ are commands as you would type them; what they print is indented.")
            use_what_is_there(demo)
            table(demo, {"report": killed_and_resumed(demo), "digest": suspended_and_resumed(demo)})
        except BrokenPromise as problem:
            print(f"\nBROKEN PROMISE: {problem}", file=sys.stderr, flush=True)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            for process in demo.processes:
                process.kill()
    narrate(f"All of it held, in {time.monotonic() - begun:.0f} s. README.md says how to go on.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
