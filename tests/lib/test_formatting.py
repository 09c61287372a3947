"""How numbers and times are written."""

from cs336_lib.formatting import digits, duration, gigabytes, human, short


def test_numbers_as_people_write_them():
    assert digits(7e10) == "7e10"
    assert digits(0.5) == "0.5"
    assert digits(1.244e7) == "1.244e7"
    assert digits(5e-7) == "5e-7"
    assert short(124_439_808) == "124.4M"
    assert short(70e9) == "70B"
    assert short(1000) == "1,000"
    assert gigabytes(1.2e9) == "1.2 GB"


def test_human_and_duration():
    assert human(1.24e8) == "124 M"
    assert human(989.5e12) == "990 T"
    assert human(12) == "12 "
    assert duration(143.93 * 86_400) == "143.9 days"
    assert duration(7200) == "2.0 hours"
    assert duration(30) == "30 seconds"
