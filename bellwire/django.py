"""For Django projects: the same functions, by database alias, inside `transaction.atomic()`.

`transaction` is for handlers and needs the consumer's extra, so it is looked up when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from bellwire._extras import missing

try:
    from bellwire_outbox.django import cancel, drain_estimate, find_job, get_job, submit, submit_many
except ModuleNotFoundError as error:
    raise missing(__name__, "django", error) from None

__all__ = ["cancel", "drain_estimate", "find_job", "get_job", "submit", "submit_many", "transaction"]

if TYPE_CHECKING:
    from bellwire_consumer.django import transaction
else:

    def __getattr__(name: str) -> Any:
        if name != "transaction":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from bellwire_consumer.django import transaction
        except ModuleNotFoundError as error:
            raise missing(f"{__name__}.transaction", "bellwire[consumer]", error) from None
        return transaction
