"""A child that a handler forked must never come back into the consumer.

It holds copies of the parent's loop and connections: one statement from it, or one event it takes off the
shared queue, and the parent's own claims, settles and leases break. A child that ends by `os._exit` or by
`exec`, as those of `multiprocessing` and `subprocess` do, is nobody's trouble.
"""

import os

__all__ = ["end_if_forked"]

_SAID = b"bellwire: a child that a handler forked came out of the handler; it ends here\n"
_STATUS = 70


def end_if_forked(parent: int) -> None:
    """End this process at once where it is not `parent`, the one that runs the consumer."""
    if os.getpid() != parent:
        os.write(2, _SAID)
        os._exit(_STATUS)
