"""Settings are refused at the edge, by name and with the mend, and never by showing a secret."""

from datetime import timedelta
from typing import Any

import pytest

from bellwire_relay.settings import RelaySettings
from bellwire_runtime.settings import DaemonSettings, load
from bellwire_schema.errors import ConfigError

URL = "postgresql://bellwire:s3ntinel@localhost/db"


def test_the_database_is_the_only_thing_without_a_default() -> None:
    with pytest.raises(ConfigError, match="BELLWIRE_DATABASE_URL: is not set"):
        load(DaemonSettings)
    assert load(DaemonSettings, database_url=URL).health_port == 0


def test_keywords_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLWIRE_DATABASE_URL", URL)
    monkeypatch.setenv("BELLWIRE_HEALTH_PORT", "9100")
    assert load(DaemonSettings).health_port == 9100
    assert load(DaemonSettings, health_port=9200, log_level=None).health_port == 9200


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20", 20), ("1.5", 1.5), ("500ms", 0.5), ("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400)],
)
def test_durations_are_written_as_people_write_them(
    text: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BELLWIRE_STARTUP_TIMEOUT", text)
    assert load(DaemonSettings, database_url=URL).startup_timeout == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"database_url": "not an address s3ntinel"}, "BELLWIRE_DATABASE_URL: is no PostgreSQL address"),
        ({"listen_url": "postgresql://[s3ntinel"}, "BELLWIRE_LISTEN_URL: is no PostgreSQL address"),
        ({"database_url": "off"}, "'off' is for BELLWIRE_LISTEN_URL"),
        ({"health_port": 70_000}, "BELLWIRE_HEALTH_PORT"),
        ({"log_level": "loud"}, "BELLWIRE_LOG_LEVEL"),
        ({"call_timeout": "-3s"}, "BELLWIRE_CALL_TIMEOUT"),
        ({"call_timeout": "100ms"}, "BELLWIRE_CALL_TIMEOUT must be at least 1s"),
        ({"relay_poll_floor": "6s"}, "BELLWIRE_RELAY_POLL_FLOOR: must be between"),
        ({"relay_ownership": "2s", "relay_poll_floor": "1s"}, "at least three times"),
        ({"relay_batch": 0}, "BELLWIRE_RELAY_BATCH"),
    ],
)
def test_a_combination_that_cannot_work_is_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(RelaySettings, **{"database_url": URL, **given})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "s3ntinel" not in str(refused.value)


def test_an_address_is_not_shown_by_accident() -> None:
    assert "s3ntinel" not in repr(load(DaemonSettings, database_url=URL, listen_url=URL))


def test_listening_is_where_the_database_is_unless_told_otherwise() -> None:
    assert load(DaemonSettings, database_url=URL).listen_address == URL
    assert load(DaemonSettings, database_url=URL, listen_url="off").listen_address is None
    direct = "postgresql://direct/db"
    assert load(DaemonSettings, database_url=URL, listen_url=direct).listen_address == direct


def test_sqlalchemys_spelling_is_understood() -> None:
    given = "postgresql+psycopg://u@h/d"
    assert load(DaemonSettings, database_url=given).database_url == "postgresql://u@h/d"
