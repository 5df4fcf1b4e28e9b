"""What each API wants of a request, as pure checks that name the place, the rule, and what of the run stands there.

They never stand in the way of a request: `fisk_ai.providers.diagnosis` asks them what is wrong with one that was
refused, and the tests hold every request to them.
"""

from __future__ import annotations

from fisk_ai.providers.rules.chat import check_chat_request
from fisk_ai.providers.rules.messages import check_messages_request
from fisk_ai.providers.rules.problem import Body, Problem
from fisk_ai.providers.rules.responses import check_responses_request

__all__ = ["Body", "Problem", "check_chat_request", "check_messages_request", "check_responses_request"]
