"""Where a provider is reached, with which key, and which variables hold keys at all.

Keys are read from the environment when a provider is opened, are never shown, and go nowhere but into its requests.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from fisk_ai.errors import ConfigError

CREDENTIAL_NAMES = frozenset(
    {
        "ALIBABA_API_KEY",
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "ANTHROPIC_AWS_API_KEY",
        "ANTHROPIC_CUSTOM_HEADERS",
        "ANTHROPIC_ENVIRONMENT_KEY",
        "ANTHROPIC_FOUNDRY_API_KEY",
        "ANTHROPIC_IDENTITY_TOKEN",
        "ANTHROPIC_IDENTITY_TOKEN_FILE",
        "ANTHROPIC_WEBHOOK_SIGNING_KEY",
        "ANTHROPIC_WORK_SECRET",
        "AWS_BEARER_TOKEN_BEDROCK",
        "AZURE_OPENAI_AD_TOKEN",
        "AZURE_OPENAI_API_KEY",
        "AZURE_VOICELIVE_API_KEY",
        "CEREBRAS_API_KEY",
        "COPILOT_GITHUB_TOKEN",
        "CO_API_KEY",
        "CRUSOE_API_KEY",
        "DASHSCOPE_API_KEY",
        "DEEPSEEK_API_KEY",
        "FIREWORKS_API_KEY",
        "GEMINI_API_KEY",
        "GITHUB_API_KEY",
        "GITHUB_COPILOT_API_KEY",
        "GITHUB_COPILOT_API_TOKEN",
        "GOOGLE_API_KEY",
        "GROQ_API_KEY",
        "HEROKU_INFERENCE_KEY",
        "HF_TOKEN",
        "META_API_KEY",
        "MISTRAL_API_KEY",
        "MOONSHOTAI_API_KEY",
        "NEBIUS_API_KEY",
        "OLLAMA_API_KEY",
        "OPENAI_ADMIN_KEY",
        "OPENAI_API_KEY",
        "OPENAI_CUSTOM_HEADERS",
        "OPENAI_WEBHOOK_SECRET",
        "OPENROUTER_API_KEY",
        "OVHCLOUD_API_KEY",
        "PAIG_API_KEY",
        "PYDANTIC_AI_GATEWAY_API_KEY",
        "SAMBANOVA_API_KEY",
        "SNOWFLAKE_TOKEN",
        "SYSTEM_ONE_API_KEY",
        "TOGETHER_API_KEY",
        "TYPESAFE_API_KEY",
        "VERCEL_AI_GATEWAY_API_KEY",
        "VERCEL_OIDC_TOKEN",
        "VLLM_API_KEY",
        "XAI_API_KEY",
        "ZAI_API_KEY",
    }
)
"""Variables of models' SDKs that hold a secret or lead to one; tools never inherit them unasked."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A key and how it is sent."""

    secret: str = field(repr=False)
    variable: str
    """The environment variable that it came from."""
    bearer: bool
    """True: as `authorization: Bearer`; False: as `x-api-key`."""

    @property
    def headers(self) -> dict[str, str]:
        """The header that carries it."""
        return {"authorization": f"Bearer {self.secret}"} if self.bearer else {"x-api-key": self.secret}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go."""

    base_url: str
    """Without a slash at its end."""
    credential: Credential | None = None
    """None for local servers that want no key."""

    @property
    def is_loopback(self) -> bool:
        """True if requests don't leave this machine."""
        return is_loopback(self.base_url)


def is_loopback(url: str) -> bool:
    """Tell whether a URL's host is this machine: `localhost`, 127.0.0.0/8 or ::1."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_base_url(url: str, source: str) -> str:
    """Return a base URL without trailing slashes, or raise `ConfigError` naming `source`.

    A key must not travel in the clear, so plain http is for loopback only; a URL with a password in it would end
    up in messages.
    """
    try:
        parts = urlsplit(url.strip())
        usable = bool(parts.hostname) and parts.port != 0 and url.strip().isprintable()
    except ValueError:
        usable = False
        parts = urlsplit("")
    if not usable or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise ConfigError(f"{source}: expected an address such as https://host/path, without query or fragment")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"{source}: a user name or password doesn't belong into the URL: use the key's variable")
    if parts.scheme == "http" and not is_loopback(url.strip()):
        raise ConfigError(f"{source}: plain http is only for this machine (localhost); use https for {parts.hostname}")
    return url.strip().rstrip("/")


def find_credential(environ: Mapping[str, str], variables: Mapping[str, bool], *, required: bool) -> Credential | None:
    """Return the first key that is set; `variables` maps names to whether they are bearer tokens.

    Raises:
        ConfigError: if none is set and one is required, or if one can't be sent as a header.
    """
    for variable, bearer in variables.items():
        secret = environ.get(variable, "").strip()
        if not secret:
            continue
        if not secret.isascii() or not secret.isprintable() or " " in secret:
            raise ConfigError(f"{variable} holds characters that no key has (its value is not shown): set it anew")
        return Credential(secret, variable, bearer)
    if required:
        raise ConfigError(
            f"no key for the model: set {' or '.join(variables)}, or name another variable with llm.api_key_env"
        )
    return None
