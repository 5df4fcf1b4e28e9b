"""DBOS: an agent loop of one's own in a workflow, where each model call and each tool is a step.

Recovery is what `DBOS.launch()` does in the next process with all workflows that didn't end. SQLite, the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from dbos import DBOS, SetWorkflowID

from benchmarks.scene import PROMPT, TOOLS, Scene, play

VARIANTS = ("steps",)
WORKFLOW = "order"


def launch(scene: Scene) -> None:
    """Configure DBOS; workflows and steps may be declared after that, before `DBOS.launch()`."""
    database = os.path.join(os.path.abspath(scene.store), "dbos.sqlite")
    DBOS(
        config={
            "name": "kill-test",
            "system_database_url": f"sqlite:///{database}",
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )


def run(scene: Scene, _variant: str, resume: bool) -> str:
    """Start or resume, and return the answer."""
    launch(scene)
    work = _declare(scene)
    DBOS.launch()  # recovers what a dead process has left
    if resume:
        return str(DBOS.retrieve_workflow(WORKFLOW).get_result())
    with SetWorkflowID(WORKFLOW):
        return work(PROMPT)


def _declare(scene: Scene) -> Callable[[str], str]:
    @DBOS.step()
    def ask(results: dict[str, str]) -> tuple[dict[str, str], str]:
        reply = scene.ask(results)
        return reply.calls, reply.text

    @DBOS.step()
    def use(tool: str, call_id: str) -> str:
        return scene.use(tool, call_id)

    @DBOS.workflow()
    def work(_prompt: str) -> str:
        results: dict[str, str] = {}
        while True:
            calls, text = ask(results)
            if not calls:
                return text
            for tool in TOOLS:
                if tool in calls:
                    results[tool] = use(tool, calls[tool])

    return work


if __name__ == "__main__":
    play(run, VARIANTS)
