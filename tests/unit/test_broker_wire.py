"""A connection is closed by its owner alone."""

from __future__ import annotations

import gc
import threading
import warnings

from yarl import URL

from bellwire_runtime.broker import wire


async def test_a_connection_given_up_is_closed_by_no_collector() -> None:
    """Garbage is collected in any thread; the library would begin a close there, which nobody awaits."""
    held = [wire._Connection(URL("amqp://127.0.0.1:1/"))]

    def collect() -> None:
        held.clear()
        gc.collect()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        thread = threading.Thread(target=collect)
        thread.start()
        thread.join()
    assert [str(one.message) for one in told if "Connection" in str(one.message)] == []
