"""Order inside a tenant: one static number per wake-up, so that aging costs nothing while time passes.

A job's rank is the instant it became eligible, moved ahead by one aging step for each point of priority. Two
ranks never change places, so an index answers "who is next", and nothing starves: who waits can be overtaken
only by jobs that become eligible less than (their priority − its priority) × aging later, which is at most
200 × aging. The database computes the same when it writes a wake-up; a test holds the two together.
"""

from datetime import datetime, timedelta

__all__ = ["HIGHEST", "LOWEST", "overtaking_ends", "rank"]

LOWEST, HIGHEST = -100, 100


def rank(eligible_at: datetime, priority: int, aging: timedelta) -> datetime:
    """When the job would have become eligible had its priority been 0; the smaller goes first."""
    return eligible_at - priority * aging


def overtaking_ends(eligible_at: datetime, priority: int, aging: timedelta) -> datetime:
    """From here on, nothing that becomes eligible can go before this job, whatever its priority."""
    return eligible_at + (HIGHEST - priority) * aging
