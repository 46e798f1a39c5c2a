"""The retention of a store: limits by age and number, and the order of deletion."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request

from .serialize import digests
from .statements import Row, Steps, Values, chunks, places

DAY = 86_400.0


class Retention(Struct, frozen=True, kw_only=True):
    """Limits of a store by age and number; its `sweep` deletes the excess.

    Responses and conversations live `max_age` seconds, the event logs of ended runs `max_log_age`
    seconds (without its log a response can be read, but no longer replayed). There are at most
    `max_responses` responses, and `max_responses_per_key` of one tenant; `max_conversations`
    conversations, each of `max_items` items and `max_bytes` bytes.
    """

    max_age: float = 30 * DAY
    max_log_age: float = DAY
    max_responses: int = 100_000
    max_responses_per_key: int = 100_000
    max_conversations: int = 100_000
    max_items: int = 10_000
    max_bytes: int = 64 * 1024 * 1024

    def is_due(self, seconds: float, added: int) -> bool:
        """Whether to sweep, so many seconds after the last time, and after so many rows were
        added: limits are exceeded by a tenth of the age, and a hundredth of the number."""
        most = min(self.max_responses, self.max_responses_per_key, self.max_conversations)
        return added > most // 100 or seconds > min(600.0, self.max_age / 10, self.max_log_age / 10)

    @staticmethod
    def excess(rows: Iterable[Row], total: int, each: int) -> dict[str, int]:
        """How many rows of each tenant to delete, by their counts, for limits in total and for each
        tenant: those with the most rows give first, so that no tenant evicts the rows of
        others.

        >>> Retention.excess([("a", 60), ("b", 10)], 50, 100)
        {'a': 20}
        """
        counts: dict[str, int] = {tenant: int(count) for tenant, count in rows}
        level, left = each, total
        for place, count in enumerate(sorted(counts.values())):
            share = left // (len(counts) - place)
            if count > share:
                level = min(each, share)
                break
            left -= count
        return {tenant: count - level for tenant, count in counts.items() if count > level}

    def check_room(self, count: int, size: int) -> None:
        """Raise FaultError where a conversation of so many items and bytes would be too large."""
        for has, most, what in ((count, self.max_items, "items"), (size, self.max_bytes, "bytes")):
            if has > most:
                problem = f"a conversation has room for {most} {what}; continue in a new one"
                raise FaultError(bad_request(problem, "conversation"))


SWEPT = 250
"""Responses that one transaction deletes, so that writers do not wait for a whole sweep."""

OLD = """SELECT seq, parts FROM (
        SELECT seq, parts, created_at FROM responses WHERE seq NOT IN (SELECT seq FROM runs)
        ORDER BY seq LIMIT $1
    ) AS oldest WHERE created_at < CAST($2 AS FLOAT)"""
COUNTS = "SELECT tenant, count(*) FROM responses GROUP BY tenant"
FIRST = """SELECT seq, parts FROM responses WHERE tenant = $1 AND seq NOT IN (SELECT seq FROM runs)
    ORDER BY seq LIMIT $2"""
LOGS = """DELETE FROM segments WHERE seq IN (
        SELECT seq FROM responses WHERE created_at < CAST($1 AS FLOAT) AND seq IN (
            SELECT DISTINCT seq FROM segments WHERE seq NOT IN (SELECT seq FROM runs)
            ORDER BY seq LIMIT $2))
    RETURNING seq"""
TALKS = "SELECT tenant, count(*) FROM conversations GROUP BY tenant"
FIRST_TALKS = "SELECT id FROM conversations WHERE tenant = $1 ORDER BY created_at, id LIMIT $2"
OLD_TALKS = "SELECT id FROM conversations WHERE created_at < CAST($1 AS FLOAT)"
_LOCK_USES = "LOCK TABLE part_uses IN SHARE ROW EXCLUSIVE MODE"
"""The first statement of a deletion: a lock, so that no other server stores or deletes uses
of parts meanwhile. If it were taken later, two deletions would deadlock."""


def forget(find: str, values: Values, cascades: bool) -> Steps[int]:
    """Delete the responses of a query for `seq` and `parts`, with everything that only they use;
    returns how many. `cascades`: the database deletes the rows of a response by itself."""
    yield _LOCK_USES, ()
    gone = yield find, values
    for some in chunks([seq for seq, _ in gone]):
        tables = ("responses", "runs", "segments", "ends", "item_index", "calls")
        for table in tables[:1] if cascades else tables:
            yield f"DELETE FROM {table} WHERE seq IN ({places(len(some))})", some
    uses = [(digest, seq) for seq, parts in gone for digest in digests(parts)]
    for use in () if cascades else uses:
        yield "DELETE FROM part_uses WHERE digest = $1 AND seq = $2", use
    for some in chunks(sorted({digest for digest, _ in uses})):
        unused = "NOT EXISTS (SELECT 1 FROM part_uses u WHERE u.digest = parts.digest)"
        yield f"DELETE FROM parts WHERE digest IN ({places(len(some))}) AND {unused}", some
    return len(gone)


def forget_surplus(kept: Retention, cascades: bool) -> Steps[int]:
    """Delete some of the excess responses; returns how many. They are counted under the lock,
    so that no other sweep of the same database deletes any meanwhile."""
    yield _LOCK_USES, ()
    surplus = kept.excess((yield COUNTS, ()), kept.max_responses, kept.max_responses_per_key)
    for tenant, count in surplus.items():
        if some := (yield from forget(FIRST, (tenant, min(SWEPT, count)), cascades)):
            return some
    return 0


def forget_surplus_talks(kept: Retention) -> Steps[None]:
    """Delete the excess conversations, like responses."""
    yield _LOCK_USES, ()
    surplus = kept.excess((yield TALKS, ()), kept.max_conversations, kept.max_conversations)
    for talks in surplus.items():
        yield from forget_talks(FIRST_TALKS, talks)


def forget_talks(find: str, values: Values) -> Steps[None]:
    """Delete the conversations of a query for ids, with their items."""
    for some in chunks([id for (id,) in (yield find, values)]):
        yield f"DELETE FROM items WHERE conversation IN ({places(len(some))})", some
        yield f"DELETE FROM conversations WHERE id IN ({places(len(some))})", some
