"""What happens to a run, told for any server and any of the APIs."""

from __future__ import annotations

import subprocess
import time

import msgspec

from .bench import GO, PIECES, Bench

_NOTE = 'echo "$FISK_AI_IDEMPOTENCY_KEY" >> effects'
_TELL = f'echo "$1: {PIECES} pieces"'
LOOK_UP = f"{_NOTE}; {_TELL}"
LOOK_UP_SLOWLY = f"{_NOTE}; until [ -e {GO} ]; do sleep 0.05; done; {_TELL}"

_EVENTS_OF_A_CALL = 4
_EVENTS_OF_AN_ANSWER = 6
_BUDGET = 4
_HARMLESS = (0, _BUDGET)
"""Exit codes of runs that went as they should, whatever the model did."""


class Dithered(Exception):
    """The model did something else than the story needs; that is no fault of the program."""


def killed_while_the_model_speaks(bench: Bench) -> None:
    """Kill the run in the middle of its call, and its next life in the middle of the answer, and let it end."""
    bench.relay.hold(_EVENTS_OF_A_CALL)
    _kill_when_held(bench, bench.begin(), showing=b"model_called")
    assert (bench.turns, bench.effects) == ([], []), "half a turn was taken for one"
    bench.relay.hold(_EVENTS_OF_AN_ANSWER, skip=1)
    _kill_when_held(bench, bench.resume(), showing=b"text_streamed")
    assert len(bench.turns) == len(bench.results) == len(bench.effects) == 1
    _ends_well(bench)
    first, again, second, again_too, *_ = [exchange.body for exchange in bench.relay.exchanges]
    assert (again, again_too) == (first, second), "the model was asked something else after a kill"
    assert len(bench.effects) == len(set(bench.effects)) == len(bench.results)


def killed_while_the_tool_works(bench: Bench) -> None:
    """Kill the run in the middle of its tool, and let it end."""
    process = bench.begin()
    _await_effect(bench, process)
    bench.kill(process)
    bench.let_go()
    assert bench.results == []
    _ends_well(bench)
    assert bench.effects[0] == bench.effects[1], "the call was repeated under another key"
    assert len(set(bench.effects)) == len(bench.results) == len(bench.effects) - 1


def _kill_when_held(bench: Bench, process: subprocess.Popen[bytes], *, showing: bytes) -> None:
    if not bench.relay.is_held(process):
        assert bench.finish(process) in _HARMLESS, bench.said
        raise Dithered("it said too little to be killed meanwhile, or called nothing")
    assert bench.speech.last not in bench.relay.exchanges[-1].passed
    bench.wait_for("out", showing)
    bench.kill(process)
    bench.relay.let_go()


def _await_effect(bench: Bench, process: subprocess.Popen[bytes]) -> None:
    """Wait until the tool has begun."""
    while not bench.effects:
        if process.poll() is not None:
            assert bench.finish(process) in _HARMLESS, bench.said
            raise Dithered("it ended without a call")
        time.sleep(0.05)


def _ends_well(bench: Bench) -> None:
    """Resume the run, which has to end with what the tool said."""
    code = bench.finish(bench.resume())
    end = bench.events[-1]
    if code == _BUDGET:
        raise Dithered("it called until the budget was used up")
    assert (code, end["event"], end["reason"]) == (0, "run_ended", "completed"), bench.said
    _is_verbatim(bench)
    if PIECES not in end["answer"]:
        raise Dithered(f"it answered: {end['answer']}")


def _is_verbatim(bench: Bench) -> None:
    """Check that the last request holds all earlier turns byte for byte."""
    last = bench.relay.exchanges[-1].body
    for turn in bench.turns[:-1]:
        assert _as_sent(turn) in last, (turn, last)


def _as_sent(turn: bytes) -> bytes:
    """Return the bytes of a turn that are sent back: all of it, or of a response its items."""
    output = bytes(msgspec.json.decode(turn, type=_Turn).output)
    return output.strip()[1:-1].strip() or turn


class _Turn(msgspec.Struct):
    output: msgspec.Raw = msgspec.Raw(b"")
