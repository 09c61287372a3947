"""A class votes by phone at once, and mischief from it is refused in one line."""

import asyncio
import http.client
import json
import random
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

from cs336_course.widgets import predictions, votes
from cs336_course.widgets.predictions import LIVE, MINE, predict

OPTIONS = ("4,000", "256", "<b>inf</b>")
LONG = 10**6


class Phone:
    """A browser that keeps its cookie."""

    def __init__(self, booth: votes.Booth, host: str = "127.0.0.1"):
        self.booth, self.host, self.cookie = booth, host, ""
        self.headers: dict[str, str] = {}

    def ask(self, path: str = "", method: str = "GET", body: str = "") -> tuple[int, str]:
        """Return the status and the text of an answer."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.booth.port, timeout=20, source_address=(self.host, 0)
        )
        headers = {"Cookie": self.cookie} | self.headers
        connection.request(method, f"/{self.booth.token}{path}", body, headers)
        answer = connection.getresponse()
        self.cookie = (answer.getheader("Set-Cookie") or self.cookie).split(";")[0]
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def vote(self, option: object) -> tuple[int, str]:
        """Vote in the current poll."""
        return self.ask(f"/{self.booth.poll.number}/{option}", "POST")


@pytest.fixture
def booth():
    """A server with an open poll that counts its updates."""
    booth = votes.Booth("127.0.0.1", 0)
    booth.updates = []
    poll = votes.Poll("Where?", OPTIONS, lambda: booth.updates.append(poll.counts()))
    booth.open(poll)
    return booth


def test_a_class_of_100_votes_and_changes_its_mind(booth):
    def student(index: int) -> None:
        # Linux has 127.0.0.2 and so on. Elsewhere the class has one address.
        host = f"127.0.1.{index + 1}" if sys.platform == "linux" else "127.0.0.1"
        phone = Phone(booth, host)
        assert phone.ask()[0] == 200
        for option in (random.randrange(3), random.randrange(3), index % 2):
            status, text = phone.vote(option)
            assert (status, json.loads(text)["mine"]) == (200, option)
            assert json.loads(text)["options"] == list(OPTIONS)

    started = time.monotonic()
    with ThreadPoolExecutor(100 if sys.platform == "linux" else 4) as room:
        list(room.map(student, range(100)))
    time.sleep(votes.PAUSE + 0.2)
    assert booth.poll.counts() == booth.updates[-1] == [50, 50, 0]
    assert len(booth.updates) <= (time.monotonic() - started) / votes.PAUSE + 1


def test_a_closed_poll_takes_no_vote_and_the_next_one_opens_at_the_same_address(booth):
    phone = Phone(booth)
    phone.ask()
    phone.vote(1)
    first = booth.poll
    first.is_open = False
    assert phone.vote(0) == (409, "this vote is closed\n")
    booth.open(votes.Poll("And now?", ("yes", "no"), lambda: None))
    assert phone.ask(f"/{first.number}/0", "POST") == (409, "this vote is closed\n")
    state = json.loads(phone.ask("/now")[1])
    assert (state["question"], state["mine"], state["open"]) == ("And now?", None, True)
    assert (first.counts(), first.is_open) == ([0, 1, 0], False)


def test_hostile_requests_get_one_line_and_no_vote(booth, capfd):
    phone = Phone(booth)
    assert phone.vote(1)[0] == 403  # without a cookie
    phone.ask()
    number = booth.poll.number
    for path in (
        "/../../etc/passwd",
        "/%2e%2e/vote.html",
        "x",
        "/now/x",
        "/0/<script>",
        f"/{LONG}",
    ):
        assert phone.ask(path) == (404, "no such page; scan the code on the slide again\n"), path
    assert phone.vote(3) == (400, "no option 3; 0 to 2 expected\n")
    for option in ("-1", "½", "١", "9" * 50, "1/1", "None"):
        assert phone.ask(f"/{number}/{quote(option, safe='/')}", "POST")[0] == 404, option
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "HEAD"):
        assert phone.ask(f"/{number}/1", method)[0] == 405, method
    assert phone.ask(f"/{number}/1") == (405, "method not allowed\n")
    assert raw(booth, f"POST /{booth.token}/{number}/1 HTTP/1.1\r\nContent-Length: {LONG}\r\n\r\n")
    for bytes_ in ("\0" * 9000, "GET / HTTP/9.9\r\n\r\n", f"GET /{'a' * 9000} HTTP/1.1\r\n\r\n"):
        assert "Traceback" not in raw(booth, bytes_)
    phone.cookie = "device=' OR 1=1 --"
    assert phone.vote(1)[0] == 403
    assert booth.poll.votes == {}
    assert capfd.readouterr() == ("", "")


def raw(booth: votes.Booth, sent: str) -> str:
    """Return what the server answers to bytes that aren't a proper request."""
    with socket.create_connection(("127.0.0.1", booth.port), timeout=20) as connection:
        try:
            connection.sendall(sent.encode("latin-1"))
            return connection.recv(1000).decode()
        except ConnectionError:
            return "closed"


def test_a_flood_from_one_device_is_turned_away_while_others_vote(booth, monkeypatch):
    monkeypatch.setattr(votes, "FROM_ONE_ADDRESS", 20)
    idle = [socket.create_connection(("127.0.0.1", booth.port)) for _ in range(60)]

    def flood() -> int:
        sent = f"GET /{booth.token} HTTP/1.1\r\n\r\n"
        return sum("429" in raw(booth, sent) for _ in range(300))

    with ThreadPoolExecutor(2) as attackers:
        turned_away = [attackers.submit(flood) for _ in range(2)]
        if sys.platform == "linux":
            other = Phone(booth, "127.0.0.9")
            assert other.ask()[0] == 200
            assert other.vote(2)[0] == 200
    assert sum(one.result() for one in turned_away) > 0
    for connection in idle:
        connection.close()


def test_one_address_has_a_limit_of_voters(booth, monkeypatch):
    monkeypatch.setattr(votes, "FROM_ONE_ADDRESS", 5)
    device = [f"{index:032x}" for index in range(6)]
    poll = booth.poll
    assert [poll.has_room(one, "10.0.0.1") for one in device] == [True] * 5 + [False]
    assert poll.has_room(device[0], "10.0.0.1")
    assert poll.has_room(device[5], "10.0.0.2")


def test_a_phone_that_drops_its_cookie_takes_no_room_in_the_next_poll(booth):
    forgetful = Phone(booth)
    for number in range(votes.FROM_ONE_ADDRESS + 1):
        forgetful.cookie = f"device={number:032x}"
        status, said = forgetful.vote(0)
        time.sleep(0.006)  # fewer connections than a second may have
    assert (status, said) == (429, "too many voters from this network address\n")
    booth.open(votes.Poll("And now?", ("yes", "no"), lambda: None))
    classmate = Phone(booth)
    classmate.ask()
    assert classmate.vote(1)[0] == 200


@pytest.mark.parametrize("header", ["Host", "Origin"])
def test_a_page_of_another_site_cannot_vote(booth, header):
    phone = Phone(booth)
    phone.ask()
    phone.headers = {"Origin": f"http://127.0.0.1:{booth.port}"}
    assert phone.vote(1)[0] == 200
    phone.headers = {header: f"http://evil.example:{booth.port}".removeprefix("http://")}
    assert phone.vote(2) == (403, "open the address on the slide itself\n")
    assert booth.poll.counts() == [0, 1, 0]


def test_a_change_of_network_gives_the_votes_an_address_there(monkeypatch):
    hosts = ["127.0.0.1"]
    monkeypatch.setattr(votes, "local_address", lambda: hosts[-1])
    home = votes.booth()
    assert votes.booth() is home
    hosts.append("127.0.0.2" if sys.platform == "linux" else "localhost")
    assert votes.booth().address.startswith(f"http://{hosts[-1]}:")
    hosts.append("127.0.0.1")
    assert votes.booth() is home


def test_the_widget_shows_votes_and_hands(booth, monkeypatch, tmp_path):
    monkeypatch.setattr(votes, "booth", lambda: booth)
    monkeypatch.chdir(tmp_path)

    async def lecture() -> None:
        widget = predict("sum_of_ones", *OPTIONS)
        widget.answer({"mode": LIVE})
        assert booth.address in widget.html
        assert "<svg" in widget.html
        phone = Phone(booth)
        phone.ask()
        assert (await asyncio.to_thread(phone.vote, 1))[0] == 200
        for _ in range(50):
            if widget.said.startswith("Votes: 1"):
                break
            await asyncio.sleep(0.1)
        widget.answer({"pick": "256"})  # a student without a phone
        assert widget.said == "Votes: 2. Scan the code to vote."
        widget.answer({"open": ""})
        assert phone.vote(0)[0] == 409
        assert widget.said == "Votes: 2. The vote is closed."
        widget.answer({"open": "yes"})
        assert phone.vote(0)[0] == 200
        widget.answer({"mode": MINE})
        assert phone.vote(1)[0] == 409

    asyncio.run(lecture())


def test_every_prediction_has_its_own_name_and_a_question():
    """Test that phones show a question, and that guesses, which are stored by name, don't mix."""
    folder = Path(__file__).parents[2] / "notebooks"
    asked = {}
    for path in folder.glob("*.ipynb"):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if name := cell["metadata"].get("cs336", {}).get("prediction"):
                assert name not in asked, name
                asked[name] = predictions.asked(folder, name).question
    assert len(asked) > 100
    assert all(text and not set(text) & set("*$\\") for text in asked.values())
