"""Checks that the model's fields share, and the one way in which they report what was expected.

Errors raised here have one of the types `expected` (the reader's message adds what was found), `refused` (the text
is whole) and `unknown_key`; pydantic's own types are put into words by `load`.
"""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import InitErrorDetails, PydanticCustomError

IMPORTABLE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
"""`package.module:name`."""

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
"""The name of an environment variable."""

TOOL_NAME = r"^[a-zA-Z0-9_-]{1,64}$"
"""What every provider takes as the name of a tool."""

ONE_LINE = r"^\S(.*\S)?$"
"""Text on one line, not blank, without white space around it."""

NOT_BLANK = r"\S"


def expected(what: str) -> PydanticCustomError:
    """Return the error for a value that isn't `what`."""
    return PydanticCustomError("expected", "expected {what}", {"what": what})


def refused(text: str) -> PydanticCustomError:
    """Return the error for a value that is well formed and still not possible here."""
    return PydanticCustomError("refused", "{text}", {"text": text})


def unknown_key(known: frozenset[str]) -> PydanticCustomError:
    """Return the error for a key that isn't one of `known`."""
    return PydanticCustomError("unknown_key", "unknown key", {"known": known})


def problem(error: PydanticCustomError, loc: tuple[int | str, ...], found: Any) -> InitErrorDetails:
    """Place an error below the value that is being checked."""
    return InitErrorDetails(type=error, loc=loc, input=found)


def raise_all(problems: list[InitErrorDetails]) -> None:
    """Raise all problems as one error that pydantic merges into its own; nothing if there are none."""
    if problems:
        raise ValidationError.from_exception_data("agent.yaml", problems, hide_input=True)


def expects(what: str) -> WrapValidator:
    """Make every failure of a field say that `what` was expected, whichever rule failed."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise expected(what) from None

    return WrapValidator(check)


def valid_text(text: str) -> str:
    """Pass text that UTF-8 can carry; pydantic looks at this only where a pattern makes it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise expected("valid text") from None
    return text


def usable_base_url(url: str) -> str:
    """Pass an https URL, or an http one whose host is this machine.

    Raises:
        ValueError: without the URL in its text, which may hold a password.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("the URL is malformed") from None
    if not host or port == 0 or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise ValueError("the URL is malformed")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL holds a user's name or password")
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(host)):
        raise ValueError("the URL is neither https nor on this machine")
    return url


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name; what it resolves to may change
        return False
