"""Sending one request and reading one answer, over httpx2. What is sent and how it is read is the `Api`'s.

No retries and no deadline here: both are the retry policy's.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import httpx2

from fisk_ai.errors import ConfigError, InvalidReply, ProviderError, ProviderRefused, ProviderUnreachable
from fisk_ai.formats import reader_for
from fisk_ai.providers.base import Delta, ModelRequest, OnDelta, Reply
from fisk_ai.providers.concessions import Conceding
from fisk_ai.providers.credentials import Endpoint
from fisk_ai.providers.refusals import http_refusal
from fisk_ai.providers.wire import MAX_REPLY_BYTES, Api, SettlesStop, StreamNotVerbatim, not_an_answer
from fisk_ai.records import MAX_REQUEST_ID_CHARACTERS
from fisk_ai.text import one_line

_CONNECT_TIMEOUT_S = 10.0
_MAX_ERROR_BYTES = 64 * 1024
_EVENT_STREAM = "text/event-stream"
_KEY = "[key]"


class _ConcededError(Exception):
    """The server refused a part of the request, which is left out from now on."""


class HttpProvider:
    """A model behind an HTTP API."""

    def __init__(self, api: Api, endpoint: Endpoint, *, stream: bool = True) -> None:
        self._api = api
        self._endpoint = endpoint
        self._stream = stream
        self._client: httpx2.AsyncClient | None = None

    @property
    def name(self) -> str:
        """The provider's name."""
        return self._api.name

    @property
    def format(self) -> str:
        """The format of its turns."""
        return self._api.format

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one attempt at one turn; a stream that can't be kept verbatim is asked for again as a whole.

        Raises:
            ProviderError: saying whether another attempt may help; never with the key in it.
        """
        try:
            return await self._complete(request, on_delta)
        except ProviderError as problem:
            raise self._without_key(problem) from problem.__cause__

    async def _complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        if self._stream:
            try:
                return await self._attempt(request, on_delta, stream=True)
            except StreamNotVerbatim:
                on_delta = _ignore
        try:
            return await self._attempt(request, on_delta, stream=False)
        except StreamNotVerbatim as problem:
            raise InvalidReply(
                f"{self.name} streams though it was asked not to, and the stream can't be kept as it is: {problem}"
            ) from None

    def _without_key(self, problem: ProviderError) -> ProviderError:
        """Take the key out of all that an error says: some servers repeat what they were sent."""
        credential = self._endpoint.credential
        if credential is not None:
            problem.args = tuple(str(said).replace(credential.secret, _KEY) for said in problem.args)
            if isinstance(problem, ProviderRefused) and problem.kind is not None:
                problem.kind = problem.kind.replace(credential.secret, _KEY)
        return problem

    async def _attempt(self, request: ModelRequest, on_delta: OnDelta, *, stream: bool) -> Reply:
        """Ask, and once more for each part of the request that the server refuses and that can be left out."""
        while True:
            try:
                return await self._ask(request, on_delta, stream=stream)
            except _ConcededError:
                continue

    async def _ask(self, request: ModelRequest, on_delta: OnDelta, *, stream: bool) -> Reply:
        body = self._api.build_request(request, stream=stream)
        headers = {"accept": _EVENT_STREAM if stream else "application/json"}
        url = self._endpoint.base_url + self._api.path
        try:
            async with self._open_client().stream("POST", url, content=body, headers=headers) as response:
                reply = await self._read_named(response, on_delta)
        except httpx2.RequestError as problem:
            raise self._unreachable(problem) from problem
        return self._api.settle_stop(reply, request) if isinstance(self._api, SettlesStop) else reply

    async def _read_named(self, response: httpx2.Response, on_delta: OnDelta) -> Reply:
        """Read an answer with the id that the API gave its request, which its support asks for."""
        request_id = _request_id(response)
        try:
            return replace(await self._read(response, on_delta), request_id=request_id)
        except httpx2.RequestError as problem:
            raise _named(self._unreachable(problem), request_id) from problem
        except ProviderError as problem:
            raise _named(problem, request_id) from problem.__cause__

    async def _read(self, response: httpx2.Response, on_delta: OnDelta) -> Reply:
        if response.status_code != httpx2.codes.OK:
            raise await self._refusal(response)
        if _content_type(response) == _EVENT_STREAM:
            return await self._read_stream(response, on_delta)
        reply = self._api.read_reply(await _read_body(response, MAX_REPLY_BYTES))
        _show_whole(reply, on_delta)
        return reply

    async def _read_stream(self, response: httpx2.Response, on_delta: OnDelta) -> Reply:
        turn = self._api.accumulator()
        response.encoding = "utf-8"  # event streams have no other, whatever the header says
        source = httpx2.EventSource(response, max_event_size=MAX_REPLY_BYTES)
        received = 0
        async with aclosing(aiter(source)) as events:  # type: ignore[type-var]
            async for event in events:
                received += len(event.data)
                if received > MAX_REPLY_BYTES:
                    raise _too_large()
                if (delta := turn.feed(event.event, event.data)) is not None:
                    on_delta(delta)
                if turn.done:
                    break
        return turn.reply()

    async def _refusal(self, response: httpx2.Response) -> ProviderRefused:
        body = await _read_body(response, _MAX_ERROR_BYTES, cut=True)
        if isinstance(self._api, Conceding) and self._api.concessions.make(response.status_code, body):
            raise _ConcededError
        credential = self._endpoint.credential
        return http_refusal(
            self.name,
            response.status_code,
            response.headers,
            body,
            credential=credential.variable if credential else "whether the server wants a key",
        )

    def _unreachable(self, problem: httpx2.RequestError) -> ProviderUnreachable:
        host = httpx2.URL(self._endpoint.base_url).host
        what = one_line(str(problem), 200) or "no details"
        return ProviderUnreachable(
            f"no whole answer from {self.name} at {host}: {type(problem).__name__}: {what}",
            retryable=not isinstance(problem, (httpx2.UnsupportedProtocol, httpx2.LocalProtocolError)),
            sent=not isinstance(problem, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)),
        )

    def _open_client(self) -> httpx2.AsyncClient:
        if self._client is None:
            credential = self._endpoint.credential
            headers = {"content-type": "application/json", "user-agent": "fisk-ai", **self._api.headers}
            headers |= credential.headers if credential else {}
            try:
                self._client = httpx2.AsyncClient(
                    headers=headers,
                    follow_redirects=False,  # a redirect would carry the conversation to another host
                    timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S),
                    # Without TLS there is nothing to verify, and reading the certificates takes 50 ms.
                    verify=self._endpoint.base_url.startswith("https:"),
                    trust_env=not self._endpoint.is_loopback,  # no proxy between us and this machine
                )
            except (ValueError, ImportError, httpx2.InvalidURL) as problem:
                raise ConfigError(
                    "the proxy or certificate settings in the environment (HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE) "
                    f"can't be used: {type(problem).__name__}"
                ) from problem
        return self._client

    async def aclose(self) -> None:
        """Give up connections; may be called twice."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _request_id(response: httpx2.Response) -> str | None:
    """Return the id that the API gave the request, if it names one."""
    given = response.headers.get("request-id") or response.headers.get("x-request-id") or ""
    return one_line(given, MAX_REQUEST_ID_CHARACTERS) or None


def _named(problem: ProviderError, request_id: str | None) -> ProviderError:
    if request_id is not None:
        problem.args = (f"{problem} (request-id {request_id})",)
    return problem


def _content_type(response: httpx2.Response) -> str:
    given: str = response.headers.get("content-type", "")
    return given.partition(";")[0].strip().lower()


async def _read_body(response: httpx2.Response, limit: int, *, cut: bool = False) -> bytes:
    """Read at most `limit` bytes; what is longer is cut, or an `InvalidReply`."""
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            if cut:
                break
            raise _too_large()
    return bytes(body[:limit])


def _too_large() -> InvalidReply:
    return not_an_answer(f"it is larger than {MAX_REPLY_BYTES // 2**20} MiB")


def _show_whole(reply: Reply, on_delta: OnDelta) -> None:
    """Show a turn that came in one piece."""
    if text := reader_for(reply.format)(reply.message).text:
        on_delta(Delta("text", text))


def _ignore(_delta: Delta) -> None:
    """Leave out what was shown before, when the same turn was streamed."""
