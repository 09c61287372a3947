"""The run that dies: requests, evidence that no page compares with anything, and its files."""

import numpy as np
import pytest
import torch

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


def test_token_windows_are_the_files_windows(tmp_path):
    np.arange(41, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    dataset = story.TokenWindows(tmp_path / "tokens.bin", block_size=4)
    items = [dataset[i] for i in range(len(dataset))]
    assert torch.cat([item["x"] for item in items]).tolist() == list(range(40))
    assert torch.cat([item["y"] for item in items]).tolist() == list(range(1, 41))
