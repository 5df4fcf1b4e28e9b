"""The model as a JSON schema for editors.

`python -m fisk_ai.config.schema > docs/agent.schema.json` renews the file.
"""

from __future__ import annotations

import json
import sys

from fisk_ai.config.model import AgentConfig


def render_schema() -> str:
    """Return the text of docs/agent.schema.json."""
    schema = AgentConfig.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "agent.yaml"}
    llm = schema["$defs"]["LlmConfig"]
    del llm["required"]  # its conditions say it more exactly
    return json.dumps(schema, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render_schema())
