"""How numbers and times are written."""

from cs336_lib.formatting import digits, duration, gigabytes, short


def test_numbers_and_times_as_people_write_them():
    numbers = {7e10: "7e10", 0.5: "0.5", 1.244e7: "1.244e7", 5e-7: "5e-7"}
    assert {value: digits(value) for value in numbers} == numbers
    assert [short(n) for n in (124_439_808, 70e9, 1000)] == ["124.4M", "70B", "1,000"]
    assert gigabytes(1.2e9) == "1.2 GB"
    assert duration(143.93 * 86_400) == "143.9 days"
    assert [duration(n) for n in (7200, 30)] == ["2.0 hours", "30 seconds"]
