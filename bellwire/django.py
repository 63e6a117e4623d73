"""For Django projects: the same functions, by database alias, inside `transaction.atomic()`."""

from bellwire._extras import missing

try:
    from bellwire_outbox.django import cancel, drain_estimate, find_job, get_job, submit, submit_many
except ModuleNotFoundError as error:
    raise missing(__name__, "django", error) from None

__all__ = ["cancel", "drain_estimate", "find_job", "get_job", "submit", "submit_many"]
