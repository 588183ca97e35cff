"""How the doctor's report counts."""

import pytest

from pagoda.doctor.model_report import _requests, _users_counted


@pytest.mark.parametrize(
    ("count", "text"),
    [(20.0, "20 requests"), (1.0, "1 request"), (2.59, "2.5 requests"), (0.96, "0.9 requests"),
     (1234.9, "1,234 requests")],
)  # fmt: skip
def test_requests(count: float, text: str):
    assert _requests(count) == text


def test_one_is_no_plural():
    assert [_users_counted(n) for n in (0, 1, 1000)] == ["0 users", "1 user", "1,000 users"]
