"""Votes by phone on the local network.

A web server runs in a thread of the presenter's kernel. Phones open its address, which contains a
random token, and each browser has one vote per poll. The server needs no account and no connection
to the internet. It expects mischief from a classroom, so everything that a client can use up has a
limit, and every error is one line.
"""

import asyncio
import contextlib
import itertools
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler

from cs336_lib.config import UserError

PORT = 8336
LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # none of them looks like another one
PAUSE = 0.3  # seconds between two updates of the presenter's histogram

# The limits leave room for a class of 100 behind one router, whose phones ask every two seconds.
FROM_ONE_ADDRESS = 200  # voters, open connections, and connections in a second
CONNECTIONS = 400  # in all, because a process can open few files
SECONDS = 10  # that a connection may take to send its request

BUSY = (
    b"HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n\r\ntoo many requests; wait a second\n"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; connect-src 'self'; "
    "script-src 'unsafe-inline'; style-src 'unsafe-inline'",
    "Content-Type": "text/plain; charset=utf-8",
    "X-Content-Type-Options": "nosniff",
}
NUMBERS = itertools.count()


class Poll:
    """A question that each device can answer once. The answer can change until the poll closes.

    Args:
        question: Text above the options. Code is between backticks.
        options: Possible answers, ten at most.
        changed: Function without arguments that the server's thread calls after votes have
            arrived.
    """

    def __init__(self, question: str, options: tuple[str, ...], changed: Callable[[], object]):
        self.question, self.options, self.changed = question, options, changed
        self.number = next(NUMBERS)
        self.votes: dict[str, int] = {}  # index of the chosen option by device
        self.voters: dict[str, str] = {}  # network address by device
        self.is_open = False
        self.is_waiting = False

    def has_room(self, device: str, host: str) -> bool:
        """Register a device as a voter, and return whether its network address may have it."""
        if device not in self.voters:
            if list(self.voters.values()).count(host) >= FROM_ONE_ADDRESS:
                return False
            self.voters[device] = host
        return True

    def counts(self) -> list[int]:
        """Return the number of votes for each option."""
        counted = Counter(self.votes.copy().values())
        return [counted[index] for index in range(len(self.options))]

    def record(self, device: str, option: int) -> None:
        """Store a vote, and call `changed` within `PAUSE` seconds, once for all votes till then."""
        self.votes[device] = option
        if not self.is_waiting:
            self.is_waiting = True
            asyncio.get_running_loop().call_later(PAUSE, self.report)

    def report(self) -> None:
        """Call `changed`."""
        self.is_waiting = False
        self.changed()


class Booth:
    """Server that shows one poll at a time, always at the same address, until the process ends.

    After a change of network, `booth` starts another one.

    Args:
        host: Address of this machine to listen on.
        port: Port to listen on. If it is taken, a free one is used.
    """

    def __init__(self, host: str, port: int = PORT):
        self.poll = Poll("", (), lambda: None)
        self.token = "".join(secrets.choice(LETTERS) for _ in range(7))
        try:
            sockets = bind_sockets(port, host)
        except OSError:
            sockets = bind_sockets(0, host)
        self.port = sockets[0].getsockname()[1]
        self.origin = f"http://{host}:{self.port}"
        self.address = f"{self.origin}/{self.token}"
        threading.Thread(target=asyncio.run, args=(self.serve(sockets),), daemon=True).start()

    async def serve(self, sockets: list[socket.socket]) -> None:
        """Answer requests until the process ends."""
        own = {"booth": self}
        handlers = [
            (f"/{self.token}/?", Page, own),
            (f"/{self.token}/now", Answer, own),
            (f"/{self.token}/([0-9]{{1,9}})/([0-9])", Vote, own),
        ]
        quiet = {"log_function": lambda handler: None, "default_handler_class": Lost}
        server = Door(
            Application(handlers, default_handler_args=own, **quiet),
            no_keep_alive=True,  # so that a limit on connections is one on requests
            max_body_size=64,
            max_header_size=8192,
            idle_connection_timeout=SECONDS,
            body_timeout=SECONDS,
        )
        server.add_sockets(sockets)
        await asyncio.Event().wait()

    def open(self, poll: Poll) -> None:
        """Show a poll, and close the previous one."""
        previous, self.poll = self.poll, poll
        poll.is_open = True
        if previous is not poll:
            previous.is_open = False
            previous.changed()


class Door(HTTPServer):
    """HTTP server that turns away a client with too many connections before it reads a request."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        """Set up the counters of connections by network address."""
        super().initialize(*args, **kwargs)
        self.connected: Counter[str] = Counter()
        self.recent: Counter[str] = Counter()
        self.second = 0

    def handle_stream(self, stream: IOStream, address: tuple) -> None:
        """Accept a connection, or answer `BUSY`."""
        host, now = address[0], int(time.monotonic())
        if now != self.second:
            self.second = now
            self.recent.clear()
        self.recent[host] += 1
        most = max(self.recent[host], self.connected[host] + 1)
        if most > FROM_ONE_ADDRESS or self.connected.total() >= CONNECTIONS:
            with contextlib.suppress(OSError):
                stream.socket.send(BUSY)
            stream.close()
            return
        self.connected[host] += 1
        super().handle_stream(stream, address)

    def on_close(self, connection: Any) -> None:
        """Count a closed connection."""
        super().on_close(connection)
        self.connected[connection.context.address[0]] -= 1


class Answer(RequestHandler):
    """Answer with the poll and the device's vote as JSON. Errors are one line of text."""

    def initialize(self, booth: Booth) -> None:
        """Take the argument that the list of handlers has."""
        self.booth = booth

    def prepare(self) -> None:
        """Refuse a page of another site that sends requests here, or that names itself so."""
        headers, origin = self.request.headers, self.booth.origin
        is_ours = f"http://{headers.get('Host')}" == origin
        if not is_ours or headers.get("Origin", origin) != origin:
            raise HTTPError(403, "open the address on the slide itself")

    def set_default_headers(self) -> None:
        """Set headers that forbid the browser to keep the answer or to load anything else."""
        self.clear_header("Server")
        for name, value in HEADERS.items():
            self.set_header(name, value)

    @property
    def device(self) -> str:
        """Random identifier of the browser from its cookie, or ""."""
        found = re.fullmatch("[0-9a-f]{32}", self.get_cookie("device") or "")
        return found[0] if found else ""

    def get(self) -> None:
        """Answer with the current state."""
        poll = self.booth.poll
        self.write(
            {
                "number": poll.number,
                "question": poll.question,
                "options": poll.options,
                "open": poll.is_open,
                "mine": poll.votes.get(self.device),
            }
        )

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer with one line instead of a page."""
        error = kwargs["exc_info"][1]
        said = error.log_message if isinstance(error, HTTPError) else None
        self.finish(f"{said or self._reason.lower()}\n")

    def log_exception(self, kind: Any, error: Any, traceback: Any) -> None:
        """Log errors of this module only, because the client is told about its own."""
        if not isinstance(error, HTTPError):
            super().log_exception(kind, error, traceback)


class Lost(Answer):
    """Answer to other addresses."""

    def prepare(self) -> None:
        """Refuse the request."""
        raise HTTPError(404, "no such page; scan the code on the slide again")


class Page(Answer):
    """Page that a phone shows."""

    def get(self) -> None:
        """Answer with the page, and give the browser its identifier."""
        if not self.device:
            self.set_cookie("device", secrets.token_hex(16), httponly=True, samesite="Lax")
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.write(Path(__file__).with_name("vote.html").read_bytes())


class Vote(Answer):
    """Vote of a device."""

    def get(self, *_: str) -> None:
        """Refuse, because a link could vote otherwise."""
        raise HTTPError(405)

    def post(self, number: str, option: str) -> None:
        """Record the vote for an option of the poll with this number."""
        poll = self.booth.poll
        if not self.device:
            raise HTTPError(403, "this browser sends no cookie; allow cookies and reload the page")
        if int(number) != poll.number or not poll.is_open:
            raise HTTPError(409, "this vote is closed")
        if int(option) >= len(poll.options):
            raise HTTPError(400, f"no option {option}; 0 to {len(poll.options) - 1} expected")
        if not poll.has_room(self.device, self.request.remote_ip):
            raise HTTPError(429, "too many voters from this network address")
        poll.record(self.device, int(option))
        super().get()


def local_address() -> str:
    """Return the address of this machine on its network.

    Raises:
        UserError: If it has no network.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # UDP, so nothing is sent
        except OSError:
            raise UserError(
                "this machine has no network; join the network of the phones, or count hands"
            ) from None
        return probe.getsockname()[0]


def booth() -> Booth:
    """Return the server of this kernel at the address that its network gives it now."""
    return booth_at(local_address())


@cache
def booth_at(host: str) -> Booth:
    """Start a server, or return the one that runs at this address."""
    return Booth(host)


@cache
def qr_code(address: str) -> str:
    """Return a QR code as SVG, or "" if segno isn't installed."""
    try:
        import segno
    except ImportError:
        return ""
    return segno.make_qr(address).svg_inline(scale=6, dark="#000", light="#fff", title=address)
