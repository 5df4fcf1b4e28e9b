"""What agent.yaml may say, as data: keys, types, defaults and limits.

The docstrings of the fields are the descriptions in the editor's schema (docs/agent.schema.json). Nothing is read,
resolved or opened here: paths, variables and importable names stay as they were written.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from fisk_ai.config import checks, duration
from fisk_ai.config.parameters import check_parameters

Text = Annotated[str, AfterValidator(checks.valid_text)]
OneLine = Annotated[str, Field(pattern=checks.ONE_LINE), checks.expects("a name: text on one line, not blank")]
NotBlank = Annotated[str, Field(pattern=checks.NOT_BLANK), checks.expects("text that isn't blank")]
Variable = Annotated[
    str,
    Field(pattern=checks.VARIABLE),
    checks.expects("the name of an environment variable (letters, digits and _), never its value"),
]
Count = Annotated[int, Field(gt=0), checks.expects("an integer greater than 0")]
Limit = Annotated[Annotated[int, Field(gt=0)] | None, checks.expects("an integer greater than 0, or null for no limit")]
Seconds = Annotated[
    float,
    BeforeValidator(duration.parse_duration),
    checks.expects(duration.ACCEPTED),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": duration.PATTERN},
                {"type": "number", "exclusiveMinimum": 0, "maximum": duration.LONGEST_S},
            ]
        }
    ),
]
BaseUrl = Annotated[
    str,
    AfterValidator(checks.usable_base_url),
    checks.expects("an https URL without user and query (plain http only to localhost, 127.0.0.1 or [::1])"),
]
Argv = Annotated[list[Text], Field(min_length=1)]
Parameters = Annotated[
    dict[str, Any],
    AfterValidator(check_parameters),
    Field(json_schema_extra={"additionalProperties": {"type": "object"}}),
]
PythonTool = Annotated[
    str, Field(pattern=checks.IMPORTABLE), checks.expects("module:name of a function that can be imported")
]


class _Section(BaseModel):
    """A mapping of agent.yaml: no unknown keys, no conversions (`"5"` is no integer), never changed."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )


class ThinkingConfig(_Section):
    """How the model thinks before it answers."""

    enabled: bool = False
    """Whether the model may think."""
    budget_tokens: Annotated[
        Annotated[int, Field(ge=1024)] | None, checks.expects("an integer of at least 1024, or null")
    ] = None
    """Tokens of thinking per call, at least 1024 and fewer than `max_output_tokens`; null lets the model choose."""

    @property
    def mode(self) -> str:
        """`off`, `adaptive` or `budget:<n>`, as in the fingerprint."""
        if not self.enabled:
            return "off"
        return "adaptive" if self.budget_tokens is None else f"budget:{self.budget_tokens}"


class BudgetConfig(_Section):
    """Limits of a run; they count over all of its resumes."""

    max_tokens: Limit = 200_000
    """Tokens of all kinds over all model calls; null for no limit."""
    max_iterations: Limit = 50
    """Model calls; null for no limit."""
    call_timeout: Seconds = 120.0
    """Time limit of one model call, in seconds."""


class ServerTool(BaseModel):
    """A tool that runs on the provider's side; handed on as it stands, for what exists there changes often."""

    model_config = ConfigDict(
        extra="allow", strict=True, frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True
    )

    type: NotBlank
    """What it is, as the provider calls it, such as `web_search_20260209`."""


class LlmConfig(_Section):
    """The model and how it is reached."""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"provider": {"const": "scripted"}}, "required": ["provider"]},
            "then": {"required": ["provider", "script"]},
            "else": {"required": ["provider", "model"], "properties": {"script": {"type": "null"}}},
        }
    )

    provider: Annotated[
        Literal["anthropic", "openai", "pydantic-ai", "scripted"],
        checks.expects("one of anthropic, openai, pydantic-ai, scripted"),
    ]
    """`anthropic`, `openai` (any compatible server, by `base_url`), `pydantic-ai` (all that it knows; an extra) or
    `scripted` (plays `script`, no network)."""
    model: OneLine
    """The model's name as the provider spells it, for pydantic-ai as `google:...`; not needed for `scripted`."""
    api: Annotated[Literal["chat", "responses"], checks.expects("one of chat, responses")] = "chat"
    """For `openai`: Chat Completions, which every compatible server speaks, or the Responses API."""
    base_url: BaseUrl | None = None
    """The server, as the official SDK takes it: without /v1 for anthropic, with it for openai."""
    max_output_tokens: Count = 8192
    """Tokens that one model call may produce."""
    thinking: ThinkingConfig = ThinkingConfig()
    """How the model thinks before it answers."""
    budget: BudgetConfig = BudgetConfig()
    """Limits of a run."""
    api_key_env: Variable | None = None
    """The environment variable that holds the key, instead of the provider's usual one."""
    stream: bool = True
    """Whether the answer is shown while it is made."""
    cache: bool = True
    """Whether the provider is asked to keep the conversation so far, so that the next turn or a resume is cheaper."""
    service_tier: OneLine | None = None
    """The provider's service tier, handed on as it stands; null for its default."""
    betas: list[OneLine] = Field(default_factory=list)
    """For `anthropic`: beta features to ask for, by the names of their header."""
    server_tools: list[ServerTool] = Field(default_factory=list)
    """Tools that run on the provider's side, such as its web search; for `anthropic`, and `openai` with responses."""
    script: NotBlank | None = None
    """For `scripted` only: the YAML list of turns to play, relative to agent.yaml."""

    @model_validator(mode="before")
    @classmethod
    def _scripted_needs_no_model(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("provider") == "scripted":
            return {"model": "scripted", **data}
        return data

    @field_validator("thinking")
    @classmethod
    def _thinking_leaves_room_to_answer(cls, thinking: ThinkingConfig, info: ValidationInfo) -> ThinkingConfig:
        limit, budget = info.data.get("max_output_tokens"), thinking.budget_tokens
        if thinking.enabled and budget is not None and limit is not None and budget >= limit:
            text = f"has to be less than llm.max_output_tokens ({limit}), which includes it"
            checks.raise_all([checks.problem(checks.refused(text), ("budget_tokens",), budget)])
        return thinking

    @field_validator("script")
    @classmethod
    def _script_goes_with_scripted(cls, script: str | None, info: ValidationInfo) -> str | None:
        provider = info.data.get("provider")
        if provider == "scripted" and script is None:
            raise checks.refused("is missing: provider scripted needs the path of its YAML list of turns")
        if provider not in (None, "scripted") and script is not None:
            raise checks.refused(f"goes with provider scripted only, not with {provider}")
        return script

    @model_validator(mode="after")
    def _options_go_with_the_provider(self) -> Self:
        speaks_responses = self.provider == "openai" and self.api == "responses"
        problems = [
            checks.problem(checks.refused(text), (key,), found)
            for key, found, fits, text in (
                ("api", self.api, self.api == "chat" or self.provider == "openai", "goes with provider openai only"),
                (
                    "betas",
                    self.betas,
                    not self.betas or self.provider == "anthropic",
                    "go with provider anthropic only",
                ),
                (
                    "server_tools",
                    self.server_tools,
                    not self.server_tools or self.provider == "anthropic" or speaks_responses,
                    "go with provider anthropic, or openai with api responses",
                ),
                (
                    "model",
                    self.model,
                    self.provider != "pydantic-ai" or ":" in self.model,
                    "has to name the provider for pydantic-ai, such as google:gemini-3-pro",
                ),
            )
            if not fits
        ]
        if problems:
            checks.raise_all(problems)
        return self


class CommandConfig(_Section):
    """A program that the model may run."""

    name: Annotated[str, Field(pattern=checks.TOOL_NAME), checks.expects("1-64 of a-z A-Z 0-9 _ -")]
    """The tool's name, unique among all tools."""
    description: NotBlank
    """What the tool does, for the model."""
    argv: Argv
    """The program and its arguments; `{name}` is a parameter, `{{` a brace. No shell: one argument stays one."""
    parameters: Parameters = Field(default_factory=dict)
    """A JSON schema for each parameter, with `type` or `enum`; `required` is true unless it has a `default`."""
    on_crash: Annotated[Literal["rerun", "ask", "skip"], checks.expects("one of rerun, ask, skip")] = "rerun"
    """What a resume does with a call that may have run: repeat it, ask an operator, or tell the model so."""
    confirm: bool = False
    """Whether an operator approves each call; only false is possible in this version."""
    parallel: bool = False
    """Whether calls of one turn may run side by side; only for tools that are harmless to repeat."""
    timeout: Seconds = 60.0
    """Time limit of one call, in seconds."""
    pass_env: list[Variable] = Field(default_factory=list)
    """Names of environment variables that are passed on to the program."""

    @field_validator("argv")
    @classmethod
    def _argv_starts_with_a_program(cls, argv: list[str]) -> list[str]:
        if not argv[0].strip():
            checks.raise_all([checks.problem(checks.expected("the name of a program"), (0,), argv[0])])
        return argv

    @field_validator("confirm")
    @classmethod
    def _nobody_can_be_asked(cls, confirm: bool) -> bool:
        if confirm:
            raise checks.refused("this version can't ask for approvals: only false is possible")
        return confirm

    @field_validator("parallel")
    @classmethod
    def _parallel_is_harmless_to_repeat(cls, parallel: bool, info: ValidationInfo) -> bool:
        on_crash = info.data.get("on_crash", "rerun")
        if parallel and on_crash != "rerun":
            text = f"parallel tools must be harmless to repeat: use on_crash rerun, not {on_crash}, or leave it out"
            raise checks.refused(text)
        return parallel


class ToolsConfig(_Section):
    """What the model may call."""

    commands: list[CommandConfig] = Field(default_factory=list)
    """Programs."""
    python: list[PythonTool] = Field(default_factory=list)
    """Functions, each as `module:name`."""


class SessionsConfig(_Section):
    """Where runs are kept."""

    store: NotBlank = "file"
    """`file`: one file for each run in the state directory."""


class AgentConfig(_Section):
    """All of agent.yaml."""

    identity: OneLine = "agent"
    """The agent's name."""
    system_prompt: Text = ""
    """What the model is told before the conversation."""
    llm: LlmConfig
    """The model and how it is reached."""
    tools: ToolsConfig = ToolsConfig()
    """What the model may call."""
    sessions: SessionsConfig = SessionsConfig()
    """Where runs are kept."""
