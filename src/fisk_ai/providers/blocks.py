"""One content block of the Messages API while its deltas arrive. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from fisk_ai.jsontext import BadJson, decode_strict, splice_array
from fisk_ai.providers.base import Delta
from fisk_ai.providers.wire import StreamNotVerbatim, read_shape

_EXTENDS: Mapping[str, tuple[frozenset[str], str]] = {
    "text_delta": (frozenset({"text"}), "text"),
    "thinking_delta": (frozenset({"thinking"}), "thinking"),
    "signature_delta": (frozenset({"thinking"}), "signature"),
    "citations_delta": (frozenset({"text"}), "citations"),
    "input_json_delta": (frozenset({"tool_use", "server_tool_use", "mcp_tool_use"}), "input"),
}
"""Type of a delta -> the types of blocks that take it, and the field that it extends.

A block of another type takes it too, if it starts with that field.
"""

_NULL = msgspec.Raw(b"null")


class _Delta(msgspec.Struct):
    type: str
    text: msgspec.Raw = _NULL
    thinking: msgspec.Raw = _NULL
    signature: msgspec.Raw = _NULL
    citation: msgspec.Raw = _NULL
    partial_json: str = ""


_deltas = msgspec.json.Decoder(_Delta)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_texts = msgspec.json.Decoder(str)


@dataclass(slots=True)
class OpenBlock:
    """One content block while its deltas arrive; pieces are kept as the provider spelled them."""

    type: str
    fields: dict[str, bytes]
    strings: dict[str, list[bytes]] = field(default_factory=dict)
    citations: list[bytes] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    closed: bool = False

    @classmethod
    def start(cls, raw: bytes) -> OpenBlock:
        """Return the block that starts with `raw`."""
        fields = {name: bytes(value) for name, value in read_shape(_fields.decode, raw).items()}
        return cls(read_shape(_texts.decode, fields.get("type", b"null")), fields)

    def extend(self, raw: bytes) -> Delta | None:
        """Add a delta and return what there is to show of it.

        Raises:
            StreamNotVerbatim: for a delta that the block isn't known to take.
        """
        delta = read_shape(_deltas.decode, raw)
        self._expect(delta.type)
        match delta.type:
            case "text_delta":
                return self._join("text", delta.text)
            case "thinking_delta":
                return self._join("thinking", delta.thinking)
            case "signature_delta":
                read_shape(_texts.decode, bytes(delta.signature))
                self.fields["signature"] = bytes(delta.signature)
            case "citations_delta":
                self._cite(bytes(delta.citation))
            case "input_json_delta":
                self.arguments.append(delta.partial_json)
        return None

    def _join(self, name: Literal["text", "thinking"], piece: msgspec.Raw) -> Delta:
        shown = read_shape(_texts.decode, bytes(piece))
        self.strings.setdefault(name, []).append(_inside(bytes(piece).strip()))
        return Delta(name, shown)

    def _expect(self, kind: str) -> None:
        if kind not in _EXTENDS:
            raise StreamNotVerbatim(f"a delta of the type {kind!r}")
        types, name = _EXTENDS[kind]
        if self.type not in types and name not in self.fields:
            raise StreamNotVerbatim(f"a delta of the type {kind!r} for a block of the type {self.type!r}")

    def _cite(self, citation: bytes) -> None:
        if not self.citations and (start := self.fields.get("citations", b"null")) != b"null":
            self.citations += map(bytes, read_shape(_items.decode, start))
        read_shape(_fields.decode, citation)
        self.citations.append(citation)

    def encode(self) -> bytes:
        """Return the block as the API would have sent it whole."""
        for name, pieces in self.strings.items():
            self.fields[name] = b'"' + _inside(self.fields.get(name, b"")) + b"".join(pieces) + b'"'
        if self.citations:
            self.fields["citations"] = splice_array(self.citations)
        if (spelled := "".join(self.arguments)).strip():
            self.fields["input"] = _arguments(spelled)
        items = [msgspec.json.encode(name) + b":" + value for name, value in self.fields.items()]
        return b"{" + b",".join(items) + b"}"


def _inside(string: bytes) -> bytes:
    return string[1:-1] if string.startswith(b'"') else b""


def _arguments(spelled: str) -> bytes:
    """Return arguments as they were spelled; what is cut off or broken as text, which is never usable."""
    raw = spelled.encode()
    try:
        decode_strict(raw)
    except BadJson:
        return msgspec.json.encode(spelled)
    return raw
