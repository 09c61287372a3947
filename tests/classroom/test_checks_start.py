import pytest

from cs336_lib.classroom.checks import start


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (lambda n, bits: n * bits / 8, "passed"),
        (lambda n, bits: n * bits, "that is bits"),
        (lambda n, bits: n * bits * 8, "you multiplied by 8"),
        (lambda n, bits: n * bits // 8, "did you use //"),
        (lambda n, bits: bits / 8, "does n appear"),
        (lambda n, bits: n * 4, "does bits appear"),
        (lambda n, bits: 7, "not 7"),
        (lambda n, bits: n / 0, "your code raised ZeroDivisionError"),
        (..., "not attempted yet"),
    ],
)
def test_bytes_of_diagnoses(answer, verdict, capsys):
    start.bytes_of(answer)
    assert verdict in capsys.readouterr().out
