"""Python tools by name, and what importing the package costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fisk_ai.tools
from fisk_ai.errors import ToolSetupError
from fisk_ai.tools import FunctionTool, ToolContext, load_python_tool

from .doubles import said

pytestmark = pytest.mark.anyio

MODULE = """
from __future__ import annotations
from fisk_ai.tools import ToolContext, tool
import sibling_of_{name}

@tool(name="look-up", on_crash="skip")
def lookup(stream: str) -> str:
    "Look it up."
    return stream

def plain(context: ToolContext, n: int = 1) -> int:
    "Count."
    import later_of_{name}
    return n + later_of_{name}.VALUE

def bad(x) -> None: ...

class Group:
    @staticmethod
    def inner() -> str:
        "Say it."
        return "inner"

value = 3
"""


@pytest.fixture(autouse=True)
def _imports_are_undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "some_tools.py").write_text(MODULE.replace("{name}", "some_tools"))
    (tmp_path / "sibling_of_some_tools.py").touch()
    (tmp_path / "later_of_some_tools.py").write_text("VALUE = 41")
    (tmp_path / "broken_tools.py").write_text("raise RuntimeError('at import')")
    (tmp_path / "exiting_tools.py").write_text("raise SystemExit(2)")
    (tmp_path / "misspelt_tools.py").write_text("def f(: pass")
    (tmp_path / "decorated_tools.py").write_text("from fisk_ai.tools import tool\n@tool\ndef f(x): ...\n")
    (tmp_path / "json.py").write_text("def lookup() -> None: ...")
    return str(tmp_path)


def test_decorated_function_is_taken_as_it_is(directory: str) -> None:
    loaded = load_python_tool("some_tools:lookup", directory)
    assert isinstance(loaded, FunctionTool)
    assert (loaded.name, loaded.on_crash) == ("look-up", "skip")
    assert loaded.identity == {"function": "some_tools.lookup", "parallel": False}


async def test_plain_function_becomes_a_tool_and_may_import_later(directory: str, context: ToolContext) -> None:
    loaded = load_python_tool("some_tools:plain", directory)
    assert loaded.name == "plain"
    assert said(await loaded.call({}, context)) == "42"


def test_name_may_be_dotted(directory: str) -> None:
    assert load_python_tool("some_tools:Group.inner", directory).name == "inner"


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ("some_tools", "module:function"),
        (":lookup", "module:function"),
        ("gone_tools:lookup", "No module named 'gone_tools'"),
        ("some_tools:gone", "has no 'gone'"),
        ("some_tools:value", "it is a int, not a function"),
        ("some_tools:Group", "it is a type, not a function"),
        ("some_tools:bad", "'x' has no annotation"),
        ("broken_tools:f", "RuntimeError: at import"),
        ("exiting_tools:f", "SystemExit: 2"),
        ("misspelt_tools:f", "SyntaxError"),
        ("decorated_tools:f", "'x' has no annotation"),
        (".some_tools:lookup", "TypeError"),
        ("json:lookup", "another module 'json' is in use"),
    ],
)
def test_refusal_names_the_tool_and_the_cause(spec: str, cause: str, directory: str) -> None:
    with pytest.raises(ToolSetupError) as refused:
        load_python_tool(spec, directory)
    assert repr(spec) in str(refused.value)
    assert cause in str(refused.value)
    assert "\n" not in str(refused.value)


def test_public_names_are_these() -> None:
    names = ["CommandTool", "FunctionTool", "Tool", "ToolContext", "ToolOutput", "load_python_tool", "tool"]
    assert fisk_ai.tools.__all__ == names
    assert all(hasattr(fisk_ai.tools, name) for name in names)
    assert not hasattr(fisk_ai.tools, "gone")


def test_importing_the_package_loads_nothing_slow() -> None:
    script = "import sys, fisk_ai.tools; print({'pydantic', 'jsonschema', 'anyio', 'asyncio'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
