"""`Job`: a payload with a contract. It adds one public name, `job_config`, to pydantic's, so fields are free.

A job class that cannot work is refused when it is made (`ConfigError`). A value that does not fit is refused
when a job is constructed (`PayloadInvalid`, naming the field), and once more when it is submitted. Jobs are
frozen: the key that was submitted is the key that is looked up.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from bellwire_outbox.config import JobConfig
from bellwire_outbox.refusals import payload_invalid
from bellwire_schema.errors import ConfigError

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


class _JobModel(BaseModel):
    """Carries pydantic's settings for every job."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, protected_namespaces=()
    )


if TYPE_CHECKING:
    _Base = _JobModel
else:

    class _Meta(type(BaseModel)):
        """Turns pydantic's error into ours on direct construction only.

        `model_validate` keeps raising pydantic's `ValidationError`, which web frameworks answer with a 422.
        """

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except ValidationError as error:
                refused = payload_invalid(error, kind=kind_of(cls))
            # Not chained: pydantic's text quotes the values, and payloads stay out of logs.
            raise refused

    class _Base(_JobModel, metaclass=_Meta):
        pass


class Job(_Base):
    """Subclass it with a `job_config` and the payload's fields; pydantic v2 does the rest.

    A subclass without `job_config` only lends fields to further classes and cannot be submitted. A class with
    one is final: a second class of the same kind would be a second meaning.
    """

    job_config: ClassVar[JobConfig]
    __bellwire_upgrades__: ClassVar[dict[int, Upgrade]] = {}

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        inherited = getattr(cls, "job_config", None)
        own = cls.__dict__.get("job_config")
        if inherited is not None and own is None:
            raise ConfigError(
                f"{cls.__name__}: {inherited.kind} is another class's kind; move the shared fields to a "
                "Job class "
                "without job_config, and give each class its own"
            )
        if own is None:
            return
        if not isinstance(own, JobConfig):
            raise ConfigError(f"{cls.__name__}: job_config must be a JobConfig, got {type(own).__name__}")
        cls.__bellwire_upgrades__ = {}
        _check_fields(cls, own)


class FailedJob(Job):
    """The follow-up of a failed job. The failing edge submits it, whoever writes that, so its fields are
    given.

    `key` is the failed job's key as text. The follow-up belongs to the failed job's tenant.
    """

    job_id: UUID
    failed_kind: str
    key: str | None
    code: str

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        config = cls.__dict__.get("job_config")
        if config is None:
            return
        more = sorted(name for name, field in cls.model_fields.items() if field.is_required())
        if set(more) - set(FailedJob.model_fields):
            raise ConfigError(
                f"{cls.__name__}: the edge that submits it fills in {', '.join(FailedJob.model_fields)} "
                "and nothing "
                f"else; give {', '.join(sorted(set(more) - set(FailedJob.model_fields)))} a default or "
                "leave it out"
            )
        if config.key is not None or config.tenant is not None:
            raise ConfigError(
                f"{cls.__name__}: a follow-up is refused by nothing and belongs to the failed job's "
                "tenant: key=None, "
                "and no tenant"
            )


def upgrade(job: type[Job], *, from_version: int) -> Callable[[Upgrade], Upgrade]:
    """Declare how a payload of `from_version` becomes one of the next version.

    Versions are walked one by one, so a class at version 5 needs the steps from 3 and 4 to run a payload of
    version 3. Without a complete chain an old payload is never run under the new rules.
    """
    config = getattr(job, "job_config", None)
    if config is None:
        raise ConfigError(f"upgrade: {job.__name__} has no job_config")
    if isinstance(from_version, bool) or not 1 <= from_version < config.version:
        raise ConfigError(
            f"upgrade: from_version of {config.kind} must be 1 to {config.version - 1}, got {from_version!r}"
        )

    def register(step: Upgrade) -> Upgrade:
        if from_version in job.__bellwire_upgrades__:
            raise ConfigError(f"upgrade: {config.kind} already has a step from version {from_version}")
        job.__bellwire_upgrades__[from_version] = step
        return step

    return register


def kind_of(cls: type) -> str:
    config = getattr(cls, "job_config", None)
    return config.kind if isinstance(config, JobConfig) else cls.__name__


def _check_fields(cls: type[Job], config: JobConfig) -> None:
    known = cls.model_fields
    for option, names in (("key", config.key or ()), ("tenant", (config.tenant,) if config.tenant else ())):
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"{cls.__name__}: {option} names {name!r}, which is no field of the payload "
                    f"({', '.join(known) or 'it has none'})"
                )
    for name, field in known.items():
        if _renamed(field):
            raise ConfigError(
                f"{cls.__name__}.{name}: payloads are stored under their fields' own names; rename the "
                "field instead "
                "of giving it an alias"
            )
        if field.exclude:
            raise ConfigError(f"{cls.__name__}.{name}: an excluded field would never reach the handler")


def _renamed(field: FieldInfo) -> bool:
    return any(
        alias is not None for alias in (field.alias, field.validation_alias, field.serialization_alias)
    )
