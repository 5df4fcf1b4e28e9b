"""Commands as tools: no shell, checked arguments, an environment without the model's keys, bounded output."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fisk_ai.jsontext import canonical
from fisk_ai.text import one_line
from fisk_ai.tools.base import OnCrash, ToolContext, ToolOutput
from fisk_ai.tools.declaration import declaration_problems, refuse
from fisk_ai.tools.leftovers import find_leftovers
from fisk_ai.tools.output import SPARE_BYTES, decode_output, error_output, text_output
from fisk_ai.tools.process import Ended, NotStarted, run_process
from fisk_ai.tools.schema import ArgumentSchema, BadSchema
from fisk_ai.tools.template import ArgumentTemplate, BadTemplate, parse_argument

MAX_OUTPUT_BYTES = 64 * 1024
"""UTF-8 bytes of a command's output that the model sees."""

_KEY = "FISK_AI_IDEMPOTENCY_KEY"
_NAMED = 5
"""Processes that a result names."""

_PARAMETER = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)


class CommandTool:
    """A command that the model can run.

    `argv` holds `{name}` placeholders for `parameters`, which maps each name to its JSON schema and optionally
    `required` (true unless there is a `default`). Text is put in as it is, other values as JSON. Where an optional
    parameter without default is missing, the arguments that use it are dropped; write `--depth={depth}` as one.
    `hidden_env` are names of credentials: these variables, and others with the same value, reach the process only
    if `pass_env` names them. `environ` (the runner's environment where None) is read at each call.

    Raises:
        ToolSetupError: naming all mistakes.
    """

    starts_processes = True

    def __init__(
        self,
        name: str,
        description: str,
        argv: Sequence[str],
        parameters: Mapping[str, Mapping[str, Any]],
        *,
        on_crash: OnCrash = "rerun",
        parallel: bool = False,
        timeout_s: float | None = 60.0,
        pass_env: Collection[str] = (),
        environ: Mapping[str, str] | None = None,
        hidden_env: Collection[str] = frozenset(),
        cwd: str | None = None,
    ) -> None:
        problems = declaration_problems(name, description, on_crash=on_crash, parallel=parallel, timeout_s=timeout_s)
        self._argv = _parse_argv(argv, problems)
        self._defaults = {key: spec["default"] for key, spec in parameters.items() if "default" in spec}
        self.parameters: Mapping[str, Any] = _object_schema(parameters)
        schema = _compiled(self.parameters, self._defaults, problems)
        problems += _names_problems(self._argv, parameters)
        refuse(name, problems)
        assert schema is not None
        self._schema = schema
        self.name = name
        self.description = description
        self.identity: Mapping[str, Any] = {"argv": list(argv), "parallel": parallel}
        self.on_crash = on_crash
        self.parallel = parallel
        self.timeout_s = timeout_s
        self._pass_env = frozenset(pass_env)
        self._hidden_env = frozenset(hidden_env) - self._pass_env
        self._environ = environ
        self._cwd = cwd

    def problem_with(self, arguments: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the arguments, a line for each of the first mistakes, or None."""
        return self._schema.problem_with(arguments) or _unwritable(arguments)

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run the command once; see `Tool.call`."""
        if (problem := self.problem_with(arguments)) is not None:
            return error_output(problem)
        try:
            ended = await run_process(
                self._rendered(arguments),
                environment=self._environment(context),
                capture_bytes=MAX_OUTPUT_BYTES + SPARE_BYTES,
                cwd=self._cwd,
                guard=context.guard,
                timeout_s=self.timeout_s,
            )
        except NotStarted as problem:
            return error_output(str(problem))
        left = find_leftovers(_KEY, context.idempotency_key) if ended.timed_out else []
        return _described(ended, self.timeout_s, left)

    def _rendered(self, arguments: Mapping[str, Any]) -> list[str]:
        values = {key: _argument_text(value) for key, value in {**self._defaults, **arguments}.items()}
        rendered = (template.render(values) for template in self._argv)
        return [argument for argument in rendered if argument is not None]

    def _environment(self, context: ToolContext) -> dict[str, str]:
        environ = os.environ if self._environ is None else self._environ
        secrets = {environ[name] for name in self._hidden_env if environ.get(name)}
        environment = {
            name: value
            for name, value in environ.items()
            if name in self._pass_env or not (name in self._hidden_env or value in secrets)
        }
        environment["FISK_AI_RUN_ID"] = context.run_id
        environment["FISK_AI_TOOL_USE_ID"] = context.call_id
        environment[_KEY] = context.idempotency_key
        return environment


def _parse_argv(argv: Sequence[str], problems: list[str]) -> list[ArgumentTemplate]:
    if isinstance(argv, str):
        problems.append("argv is a list of arguments, not one text: no shell splits it")
        return []
    templates = []
    if not argv or not argv[0]:
        problems.append("argv is empty")
    for place, text in enumerate(argv):
        try:
            template = parse_argument(text)
        except BadTemplate as problem:
            problems.append(f"argv[{place}] has {problem}")
            continue
        if "\0" in text:
            problems.append(f"argv[{place}] holds a NUL")
        if place == 0 and template.names:
            problems.append("argv[0], the program, can't be chosen by a parameter")
        templates.append(template)
    return templates


def _names_problems(argv: Sequence[ArgumentTemplate], parameters: Mapping[str, Mapping[str, Any]]) -> list[str]:
    used = frozenset[str]().union(*(template.names for template in argv))
    problems = [
        f"argv uses {{{name}}}, which is no parameter (braces are written {{{{ and }}}})"
        for name in sorted(used - parameters.keys())
    ]
    problems += [f"parameter {name!r} is used nowhere in argv" for name in sorted(parameters.keys() - used)]
    problems += [
        f"a parameter's name is 1-64 of a-z A-Z 0-9 _ . -, not {name!r}"
        for name in sorted(parameters)
        if not _PARAMETER.fullmatch(name)
    ]
    return problems


def _object_schema(parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the schema of all arguments; `required: true|false` in a property is ours, a list is JSON schema's."""
    properties = {
        name: {key: value for key, value in spec.items() if key != "required" or not isinstance(value, bool)}
        for name, spec in parameters.items()
    }
    required = [name for name, spec in parameters.items() if _is_required(spec)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _is_required(spec: Mapping[str, Any]) -> bool:
    stated = spec.get("required")
    return stated if isinstance(stated, bool) else "default" not in spec


def _compiled(schema: Mapping[str, Any], defaults: Mapping[str, Any], problems: list[str]) -> ArgumentSchema | None:
    try:
        canonical(schema)
        compiled = ArgumentSchema(schema)
    except (BadSchema, TypeError, ValueError) as problem:
        problems.append(f"its parameters are not a JSON schema: {problem}")
        return None
    for name, value in defaults.items():
        single = ArgumentSchema({"properties": {name: schema["properties"][name]}})
        if (wrong := single.problem_with({name: value})) is not None:
            problems.append(f"a default doesn't fit: {wrong}")
    return compiled


def _argument_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _unwritable(arguments: Mapping[str, Any]) -> str | None:
    lines = []
    for name, value in arguments.items():
        try:
            if "\0" in _argument_text(value):
                lines.append(f"{name}: a NUL character can't be passed to a command")
        except (ValueError, RecursionError) as problem:  # thousands of digits, or of levels
            lines.append(f"{name}: can't be passed to a command ({one_line(str(problem), 100)})")
    return "\n".join(lines) or None


def _described(ended: Ended, timeout_s: float | None, left: Sequence[int]) -> ToolOutput:
    text = decode_output(ended.output, ended.size_bytes, MAX_OUTPUT_BYTES)
    if ended.timed_out:
        note = f"timed out after {timeout_s:g} s; it may have taken effect"
        if left:  # in a session of its own, where the group's end doesn't reach it
            note += f", and goes on as process {', '.join(map(str, left[:_NAMED]))}"
    elif ended.status > 0:
        note = f"exit status {ended.status}"
    elif ended.status < 0:
        note = f"ended by {_signal_name(-ended.status)}"
    else:
        return text_output(text)
    line_break = "\n" if text and not text.endswith("\n") else ""
    return error_output(f"{text}{line_break}[{note}]")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have numbers only
        return f"signal {number}"
