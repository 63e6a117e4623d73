"""A job class that cannot work is refused when it is made, by a message that says what to write instead."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field, computed_field

from bellwire import ConfigError, FailedJob, Job, JobConfig, upgrade
from bellwire_outbox.payload import accepted_versions, decode, encode, upgrades

GOOD: dict[str, Any] = {"kind": "render", "version": 3, "key": ("account_id",), "unique_until": "pruned"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "Render"}, "must match"),
        ({"kind": ""}, "must match"),
        ({"kind": "r" * 64}, "must match"),
        ({"kind": "render-statement"}, "must match"),
        ({"version": 0}, "1 to 32767"),
        ({"version": 32_768}, "1 to 32767"),
        ({"version": True}, "1 to 32767"),
        ({"key": None}, "unique_until means nothing without a key"),
        ({"key": "account_id"}, r'key=\("account_id",\)'),
        ({"key": ()}, "at least one field"),
        ({"key": ("a", "a")}, "each once"),
        ({"unique_until": None}, "must say until when"),
        ({"unique_until": "done"}, "must say until when"),
        ({"priority": 101}, "-100 to 100"),
        ({"priority": 1.5}, "-100 to 100"),
        ({"tenant": ("account_id",)}, "one field"),
        ({"max_age": timedelta(0)}, "above zero"),
        ({"max_age": 3600}, "above zero"),
        ({"max_age": timedelta.max}, "at most 365000 days"),
        ({"ordering_key": ("account_id",)}, "not built yet"),
        ({"after_failure": "block"}, "not built yet"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_config_that_cannot_work_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        JobConfig(**{**GOOD, **change})


def test_key_has_no_default() -> None:
    with pytest.raises(TypeError, match="key"):
        JobConfig(kind="render", version=1)  # type: ignore[call-overload]


def test_a_config_does_not_change() -> None:
    with pytest.raises(AttributeError):
        JobConfig(kind="render", version=1, key=None).version = 2  # type: ignore[misc]


def unknown_key() -> None:
    class Bad(Job):
        job_config = JobConfig(kind="bad", version=1, key=("acount_id",), unique_until="pruned")
        account_id: int


def unknown_tenant() -> None:
    class Bad(Job):
        job_config = JobConfig(kind="bad", version=1, key=None, tenant="tenant")
        account_id: int


def aliased() -> None:
    class Bad(Job):
        job_config = JobConfig(kind="bad", version=1, key=None)
        account_id: int = Field(alias="accountId")


def excluded() -> None:
    class Bad(Job):
        job_config = JobConfig(kind="bad", version=1, key=None)
        account_id: int = Field(default=1, exclude=True)


def no_config() -> None:
    class Bad(Job):
        job_config: ClassVar[JobConfig] = {"kind": "bad"}  # type: ignore[assignment]


def inherited() -> None:
    class Good(Job):
        job_config = JobConfig(kind="good", version=1, key=None)

    class Bad(Good):
        more: int


def failed_with_more() -> None:
    class Bad(FailedJob):
        job_config = JobConfig(kind="bad", version=1, key=None)
        account_id: int


def failed_with_key() -> None:
    class Bad(FailedJob):
        job_config = JobConfig(kind="bad", version=1, key=("job_id",), unique_until="pruned")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (unknown_key, r"key names 'acount_id', which is no field of the payload \(account_id\)"),
        (unknown_tenant, "tenant names 'tenant'"),
        (aliased, "alias"),
        (excluded, "never reach the handler"),
        (no_config, "must be a JobConfig"),
        (inherited, "another class's kind"),
        (failed_with_more, "account_id"),
        (failed_with_key, "key=None"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_class_that_cannot_work_is_refused_when_it_is_made(make: Callable[[], None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_job_adds_exactly_one_public_name_to_pydantics() -> None:
    names = {name for name in {*dir(Job), *Job.__annotations__} if not name.startswith("_")}
    assert names - set(dir(BaseModel)) == {"job_config"}


def test_fields_may_be_shared_by_a_class_without_config_and_computed_ones_stay_out() -> None:
    class OfAccount(Job):
        account_id: int

    class Close(OfAccount):
        job_config = JobConfig(kind="close", version=1, key=("account_id",), unique_until="finished")

        @computed_field
        def label(self) -> str:
            return f"account {self.account_id}"

    text, tree = encode(Close(account_id=7))
    assert text == '{"account_id":7}'
    assert decode(Close, tree) == Close(account_id=7)


def test_the_follow_up_of_a_failure_has_its_fields_given() -> None:
    class StatementFailed(FailedJob):
        job_config = JobConfig(kind="statement_failed", version=1, key=None)
        tries: int = 1

    assert list(StatementFailed.model_fields) == ["job_id", "failed_kind", "key", "code", "tries"]


def test_an_old_payload_is_walked_up_version_by_version() -> None:
    class Render(Job):
        job_config = JobConfig(kind="render", version=4, key=None)
        account: int
        period: str

    @upgrade(Render, from_version=2)
    def _v2(old: dict[str, Any]) -> dict[str, Any]:
        return {"account_id": old["id"], "month": old["month"]}

    assert accepted_versions(Render) == (4,)
    with pytest.raises(ConfigError, match="no @upgrade chain from version 2"):
        decode(Render, {"id": 7, "month": "2026-05"}, version=2)

    @upgrade(Render, from_version=3)
    def _v3(old: dict[str, Any]) -> dict[str, Any]:
        return {"account": old["account_id"], "period": old["month"]}

    assert accepted_versions(Render) == (2, 3, 4)
    assert decode(Render, {"id": 7, "month": "2026-05"}, version=2) == Render(account=7, period="2026-05")
    assert dict(upgrades(Render)) == {2: _v2, 3: _v3}
    with pytest.raises(ConfigError, match="no @upgrade chain from version 5"):
        decode(Render, {}, version=5)
    with pytest.raises(ConfigError, match="already"):
        upgrade(Render, from_version=3)(_v3)
    with pytest.raises(ConfigError, match="1 to 3"):
        upgrade(Render, from_version=4)
