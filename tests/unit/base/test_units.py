import pytest

from pagoda.base.errors import ConfigError
from pagoda.base.units import format_bytes, format_seconds, parse_size, short_size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("32k", 32_000),
        ("256K", 262_144),
        ("1.5k", 1500),
        ("2G", 2 << 30),
        ("2g", 2_000_000_000),
        ("4GiB", 4 << 30),
        (" 7 MB ", 7 << 20),
        ("1T", 1 << 40),
    ],
)
def test_sizes_read_as_in_vllm(text: str, value: int):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "1.0001k5", "12Q", "1e3", "0.0001k", "9" * 400])
def test_what_is_not_a_size_is_refused(text: str):
    with pytest.raises(ConfigError, match="size|whole"):
        parse_size(text)


def test_bytes_and_seconds_are_written_for_people():
    assert [format_bytes(x) for x in (0, 1023, 1536, 3 << 30, -2048, 5 << 40)] == [
        "0 B", "1023 B", "1.50 KiB", "3.00 GiB", "-2.00 KiB", "5.00 TiB",
    ]  # fmt: skip
    assert [format_seconds(x) for x in (0.0123, 3.44, 125)] == ["12 ms", "3.4 s", "2 min 05 s"]


@pytest.mark.parametrize("count", [0, 1, 1000, 4096, 32 << 20, 4 << 30, 3 << 29])
def test_short_sizes_are_read_as_what_they_were(count):
    assert parse_size(short_size(count)) == count


def test_short_sizes_have_the_largest_unit():
    assert [short_size(n) for n in (4 << 30, 32 << 20, 1536 << 10, 1000)] == [
        "4G", "32M", "1536K", "1000",
    ]  # fmt: skip
