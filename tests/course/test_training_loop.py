"""The run that dies: requests, and evidence that no page compares with anything."""

import pytest

from cs336_course.pages.training_loop import story
from cs336_lib.config import UserError


@pytest.fixture(scope="module")
def incident():
    """The run of the page, which takes some seconds."""
    return story.Incident()


def test_requests_are_counted_and_what_the_page_shows_is_not(incident, capsys):
    incident.request("batch", 9_000)
    incident.show("file")
    incident.request("file")
    assert [request.split()[0] for request in incident.requests] == ["batch", "file"]
    assert "request 2: file\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        (("weather",), {}),
        (("rows", 5, 90_000), {}),
        (("batch", -1), {}),
        (("gradient", 12), {}),
        (("tensors", 9_001), {}),
        (("replay",), {}),
        (("replay",), {"luck": 1}),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_not_counted(incident, given, changes):
    before = len(incident.requests)
    with pytest.raises(UserError):
        incident.request(*given, **changes)
    assert len(incident.requests) == before
