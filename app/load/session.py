"""One user of a Streamlit app without a browser: the messages of its websocket, and what they add up to."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from kvsim.errors import KvsimError

Answered = Callable[["Page"], bool]
"""Whether what a user waits for is on the page."""

PATIENCE = 300.0
"""Seconds after which an answer counts as missing."""

RUN_OVER = (ForwardMsg.FINISHED_SUCCESSFULLY, ForwardMsg.FINISHED_WITH_COMPILE_ERROR)
PART_OVER = ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY


class NoAnswerError(KvsimError):
    """What a user waited for did not come, or the app raised instead."""


@dataclass
class Page:
    """The elements of a page by their place, as the browser would hold them."""

    elements: dict[tuple[int, ...], Any] = field(default_factory=dict)
    query: str = ""
    running: bool = False
    _touched: set[tuple[int, ...]] = field(default_factory=set)

    @property
    def text(self) -> str:
        """All that is written in words: HTML, texts, headings, code."""
        return "\n".join(filter(None, map(_words, self.elements.values())))

    @property
    def shown(self) -> dict[str, Any]:
        """What the page's own element (the player, a picture) is given, {} if it has none."""
        found = [e.bidi_component for e in self.elements.values() if _kind(e) == "bidi_component"]
        data = [json.loads(one.json or one.mixed.json or "{}") for one in found]
        return next((one for one in data if "key" in one), {})

    @property
    def raised(self) -> str:
        """What the script raised, "" if nothing."""
        return "\n".join(e.exception.message for e in self.elements.values() if _kind(e) == "exception")

    def widget(self, kind: str, label: str) -> Any:
        """A widget by its kind and label, or how that begins. Raises KeyError if there is none."""
        each = [getattr(e, kind) for e in self.elements.values() if _kind(e) == kind]
        found = [one for one in each if one.label == label] or [
            one for one in each if one.label.startswith(label)
        ]
        if not found:
            raise KeyError(f"no {kind} {label!r} on the page")
        return found[0]

    def has(self, kind: str, label: str) -> bool:
        return any(_kind(e) == kind and getattr(e, kind).label == label for e in self.elements.values())

    def take(self, message: ForwardMsg) -> None:
        """Add one message of the server."""
        kind = message.WhichOneof("type")
        if kind == "new_session":
            self.running = True
            self._touched = set()
        elif kind == "page_info_changed":
            self.query = message.page_info_changed.query_string
        elif kind == "delta":
            self._delta(tuple(message.metadata.delta_path), message.delta)
        elif kind == "script_finished" and message.script_finished in RUN_OVER:
            self.running = False
            self.elements = {k: v for k, v in self.elements.items() if k in self._touched}
        elif kind == "script_finished" and message.script_finished == PART_OVER:
            self.running = False  # of a part of the page: the others stay

    def _delta(self, path: tuple[int, ...], delta: Any) -> None:
        kind = delta.WhichOneof("type")
        if kind == "new_element":
            self.elements[path] = delta.new_element
            self._touched.add(path)
        elif kind == "add_block":  # a block that takes an element's place
            self.elements.pop(path, None)


def _kind(element: Any) -> str:
    kind: str = element.WhichOneof("type")
    return kind


def _words(element: Any) -> str:
    kind = _kind(element)
    body: str = getattr(getattr(element, kind), "body", "")
    return body


class Session:
    """One connection to the app at ``url``; use it as an asynchronous context manager.

    ``page`` is what is on the page. Raises NoAnswerError where an answer does not come in time.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.page = Page()
        self.id = ""
        self.bytes_received = 0
        self._values: dict[str, WidgetState] = {}
        self._kept: dict[str, ForwardMsg] = {}
        self._files: asyncio.Queue[Any] = asyncio.Queue()
        self._query = ""
        self._script = ""
        self._again: dict[str, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Session:
        address = urlsplit(self.url).netloc
        self._socket: ClientConnection = await connect(
            f"ws://{address}/_stcore/stream",
            subprotocols=["streamlit"],
            max_size=None,
            open_timeout=PATIENCE,
            ping_interval=None,  # a busy server is late, not gone
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop_again()
        await self._socket.close()

    # -- acting --------------------------------------------------------------------------------

    async def open(self, query: str, answered: Answered) -> None:
        """Come by a link, and wait for the page."""
        self._query = query
        await self._rerun()
        await self.until(answered)

    async def click(self, label: str, answered: Answered, kind: str = "button") -> None:
        """Click a button, and wait for what it leads to."""
        widget = self.page.widget(kind, label)
        await self._rerun(WidgetState(id=widget.id, trigger_value=True))
        await self.until(answered)

    async def choose(self, label: str, option: str, answered: Answered) -> None:
        """Choose an option of a select box, as it is written there."""
        widget = self.page.widget("selectbox", label)
        if option not in widget.options:
            raise KeyError(f"{label!r} has no option {option!r}")
        await self._keep(WidgetState(id=widget.id, string_value=option), answered)

    async def type(self, label: str, value: str | float, answered: Answered) -> None:
        """Fill in a field of text or of a number."""
        if isinstance(value, str):
            state = WidgetState(id=self.page.widget("text_input", label).id, string_value=value)
        else:
            state = WidgetState(id=self.page.widget("number_input", label).id, double_value=value)
        await self._keep(state, answered)

    async def upload(self, label: str, name: str, data: bytes, answered: Answered) -> None:
        """Upload a file to the field whose label begins so."""
        widget = self.page.widget("file_uploader", label)
        ask = BackMsg()
        ask.file_urls_request.request_id = uuid.uuid4().hex
        ask.file_urls_request.file_names.append(name)
        ask.file_urls_request.session_id = self.id
        await self._socket.send(ask.SerializeToString())
        await self.until(lambda _: not self._files.empty())
        urls = self._files.get_nowait().file_urls[0]
        await asyncio.to_thread(_put, f"{self.url}{urls.upload_url}", name, data)
        state = WidgetState(id=widget.id)
        info = state.file_uploader_state_value.uploaded_file_info.add()
        info.file_id, info.name, info.size = urls.file_id, name, len(data)
        info.file_urls.CopyFrom(urls)
        await self._keep(state, answered)

    async def _keep(self, state: WidgetState, answered: Answered) -> None:
        self._values[state.id] = state
        await self._rerun()
        await self.until(answered)

    async def _rerun(self, *triggers: WidgetState) -> None:
        message = BackMsg()
        rerun = message.rerun_script
        rerun.query_string = self._query
        rerun.page_script_hash = self._script
        rerun.widget_states.widgets.extend([*self._values.values(), *triggers])
        self.page.running = True
        await self._socket.send(message.SerializeToString())

    # -- hearing -------------------------------------------------------------------------------

    async def until(self, answered: Answered) -> None:
        """Take messages until the page has the answer."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not answered(self.page):
                    self._take(await self._socket.recv())
                    if self.page.raised:
                        raise NoAnswerError(f"the app raised: {self.page.raised}")
        except ConnectionClosed as error:
            raise NoAnswerError(f"the server closed the connection: {error}") from error
        except TimeoutError:
            raise NoAnswerError(
                f"no answer within {PATIENCE:.0f} s; the page says: {self.page.text[-400:]}"
            ) from None

    async def think(self, seconds: float) -> None:
        """Do nothing for so long; what the server says meanwhile is heard."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._take(await self._socket.recv())
        except ConnectionClosed as error:
            raise NoAnswerError(f"the server closed the connection: {error}") from error
        except TimeoutError:
            return

    def _take(self, data: bytes | str) -> None:
        assert isinstance(data, bytes)
        self.bytes_received += len(data)
        message = ForwardMsg()
        message.ParseFromString(data)
        kind = message.WhichOneof("type")
        if kind == "ref_hash":
            known = ForwardMsg()
            known.CopyFrom(self._kept[message.ref_hash])
            known.metadata.CopyFrom(message.metadata)
            message = known
        elif message.metadata.cacheable:
            self._kept[message.hash] = message
        if kind == "new_session":
            self.id = message.new_session.initialize.session_id or self.id
            self._script = message.new_session.page_script_hash
        elif kind == "stop_auto_rerun":
            self._stop_again(message.stop_auto_rerun.fragment_ids)
        elif kind == "auto_rerun":
            one = message.auto_rerun
            if one.fragment_id not in self._again:
                self._again[one.fragment_id] = asyncio.create_task(
                    self._repeat(one.fragment_id, one.interval)
                )
        elif kind == "file_urls_response":
            self._files.put_nowait(message.file_urls_response)
        self.page.take(message)
        if kind == "page_info_changed":
            self._query = self.page.query

    async def _repeat(self, fragment: str, interval: float) -> None:
        """A part of the page wants to be run again and again."""
        while True:
            await asyncio.sleep(interval)
            message = BackMsg()
            rerun = message.rerun_script
            rerun.query_string, rerun.page_script_hash = self._query, self._script
            rerun.fragment_id, rerun.is_auto_rerun = fragment, True
            rerun.widget_states.widgets.extend(self._values.values())
            await self._socket.send(message.SerializeToString())

    def _stop_again(self, fragments: Iterable[str] | None = None) -> None:
        for fragment in list(self._again) if fragments is None else fragments:
            if fragment in self._again:
                self._again.pop(fragment).cancel()


def _put(url: str, name: str, data: bytes) -> None:
    """Send a file as a form, with the token that shows it comes from the app's own page."""
    parts = urlsplit(url)
    with urllib.request.urlopen(
        f"{parts.scheme}://{parts.netloc}/_stcore/health", timeout=PATIENCE
    ) as answer:
        cookies = SimpleCookie(answer.headers["Set-Cookie"] or "")
    token = cookies["_streamlit_xsrf"].value if "_streamlit_xsrf" in cookies else ""
    edge = uuid.uuid4().hex
    head = f'--{edge}\r\nContent-Disposition: form-data; name="{name}"; filename="{name}"\r\n'
    head += "Content-Type: application/octet-stream\r\n\r\n"
    body = head.encode() + data + f"\r\n--{edge}--\r\n".encode()
    headers = {
        "Content-Type": f"multipart/form-data; boundary={edge}",
        "Cookie": f"_streamlit_xsrf={token}",
        "X-Xsrftoken": token,
    }
    request = urllib.request.Request(url, body, headers, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE):
            return
    except urllib.error.HTTPError as error:
        raise NoAnswerError(f"the upload of {name}: {error.code} {error.read().decode()[:200]}") from None
