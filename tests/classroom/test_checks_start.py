"""The check of notebook 00: untouched stub, right answer, and each mistake with its diagnosis."""

from verdicts import assert_verdicts

from cs336_lib.classroom.checks import start


def test_bytes_of():
    cases = {
        "passed": lambda n, bits: n * bits / 8,
        "that is bits": lambda n, bits: n * bits,
        "you multiplied by 8": lambda n, bits: n * bits * 8,
        "did you use //": lambda n, bits: n * bits // 8,
        "does n appear": lambda n, bits: bits / 8,
        "does bits appear": lambda n, bits: n * 4,
        "not 7": lambda n, bits: 7,
        "your code raised ZeroDivisionError": lambda n, bits: n / 0,
        "not attempted yet": ...,
    }
    assert_verdicts(start.bytes_of, cases)
