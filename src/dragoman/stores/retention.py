"""The retention of a store: limits by age and number, and the order of deletion."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from dragoman.core.error import FaultError, bad_request

from .serialize import digests
from .statements import Row, Steps, Values, advisory_lock, chunks, places

DAY = 86_400.0


class Retention(Struct, frozen=True, kw_only=True):
    """Limits of a store by age and number; its `sweep` deletes the excess.

    Responses, and conversations after their last use, live `max_age` seconds, the event logs of
    ended runs `max_log_age` seconds (without its log a response can be read, but no longer
    replayed). There are at most `max_responses` responses, and `max_responses_per_key` of one
    tenant; `max_conversations` conversations, each of `max_items` items and `max_bytes` bytes.
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
"""Responses, conversations and files that one transaction of a sweep deletes, at the most."""
QUICK = 0.05
"""Seconds after which it deletes no more, so that writers do not wait for what is large."""

TURN = 600
"""Seconds for which a turn uses its conversation in advance: a unary answer is stored at its end,
and nothing tells before that it goes on."""

OLD = """SELECT seq, parts, tenant FROM (
        SELECT seq, parts, tenant, created_at FROM responses WHERE seq NOT IN (SELECT seq FROM runs)
        ORDER BY seq LIMIT $1
    ) AS oldest WHERE created_at < CAST($2 AS FLOAT)"""
COUNTS = "SELECT tenant, count(*) FROM responses GROUP BY tenant"
FIRST = """SELECT seq, parts, tenant FROM responses
    WHERE tenant = $1 AND seq NOT IN (SELECT seq FROM runs) ORDER BY seq LIMIT $2"""
LOGS = """SELECT seq FROM responses WHERE created_at < CAST($1 AS FLOAT) AND seq IN (
        SELECT DISTINCT seq FROM segments WHERE seq NOT IN (SELECT seq FROM runs)
        ORDER BY seq LIMIT $2)"""
TALKS = "SELECT tenant, count(*) FROM conversations GROUP BY tenant"
_IDLE = "id NOT IN (SELECT conversation FROM runs WHERE conversation IS NOT NULL)"
FIRST_TALKS = f"""SELECT id FROM conversations WHERE tenant = $1 AND {_IDLE}
    ORDER BY used_at, id LIMIT $2 FOR UPDATE SKIP LOCKED"""
OLD_TALKS = f"""SELECT id FROM conversations WHERE used_at < CAST($1 AS FLOAT) AND {_IDLE}
    LIMIT $2 FOR UPDATE SKIP LOCKED"""
_LOCK = f"SELECT {advisory_lock('$1')}"
"""Before a deletion: a lock of the tenant, so that no server stores or deletes uses of its parts
meanwhile. Other tenants have other parts, and do not wait. If it were taken later, two deletions
would deadlock."""
_SWEEPS = "sweeps"
"""Locked by a sweep that counts, so that no other sweep deletes what it has counted."""


def delete_quickly(rows: Sequence[Row], delete: Callable[[list[Row]], Steps[None]]) -> Steps[int]:
    """Delete one row, then two together, then four, until that has taken long enough for one
    transaction; returns how many were deleted."""
    began, done, size = time.monotonic(), 0, 1
    while done < len(rows) and time.monotonic() - began < QUICK:
        some = list(rows[done : done + size])
        yield from delete(some)
        done, size = done + len(some), 2 * size
    return done


def forget(find: str, values: Values, cascades: bool) -> Steps[int]:
    """Delete responses of a query for `seq`, `parts` and `tenant`, with everything that only they
    use, of one tenant, as another's lock may be long in coming; returns how many. `cascades`: the
    database deletes the rows of a response by itself."""
    if not (first := (yield find, values)):
        return 0
    tenant = first[0][2]
    yield _LOCK, (tenant,)
    found = yield find, values  # those of before may be gone, or have more parts

    def delete(rows: list[Row]) -> Steps[None]:
        some = [seq for seq, *_ in rows]
        tables = ("responses", "runs", "segments", "ends", "item_index", "calls")
        for table in tables[:1] if cascades else tables:
            yield f"DELETE FROM {table} WHERE seq IN ({places(len(some))})", some
        uses = [(digest, seq) for seq, parts, _ in rows for digest in digests(parts)]
        for use in () if cascades else uses:
            yield "DELETE FROM part_uses WHERE digest = $1 AND seq = $2", use
        for several in chunks(sorted({digest for digest, _ in uses})):
            unused = "NOT EXISTS (SELECT 1 FROM part_uses u WHERE u.digest = parts.digest)"
            yield (
                f"DELETE FROM parts WHERE digest IN ({places(len(several))}) AND {unused}",
                several,
            )

    return (yield from delete_quickly([row for row in found if row[2] == tenant], delete))


def forget_surplus(kept: Retention, cascades: bool) -> Steps[int]:
    """Delete some of the excess responses; returns how many."""
    yield _LOCK, (_SWEEPS,)
    surplus = kept.excess((yield COUNTS, ()), kept.max_responses, kept.max_responses_per_key)
    for tenant, count in surplus.items():
        if some := (yield from forget(FIRST, (tenant, min(SWEPT, count)), cascades)):
            return some
    return 0


def forget_logs(before: float) -> Steps[int]:
    """Delete some of the logs of earlier responses; returns of how many responses."""

    def delete(rows: list[Row]) -> Steps[None]:
        some = [seq for (seq,) in rows]
        yield f"DELETE FROM segments WHERE seq IN ({places(len(some))})", some

    return (yield from delete_quickly((yield LOGS, (before, SWEPT)), delete))


def forget_surplus_talks(kept: Retention) -> Steps[int]:
    """Delete some of the excess conversations, like responses."""
    yield _LOCK, (_SWEEPS,)
    surplus = kept.excess((yield TALKS, ()), kept.max_conversations, kept.max_conversations)
    for tenant, count in surplus.items():
        if some := (yield from forget_talks(FIRST_TALKS, (tenant, min(SWEPT, count)))):
            return some
    return 0


def forget_talks(find: str, values: Values) -> Steps[int]:
    """Delete conversations of a query for ids, with their items; returns how many."""

    def delete(rows: list[Row]) -> Steps[None]:
        some = [id for (id,) in rows]
        yield f"DELETE FROM items WHERE conversation IN ({places(len(some))})", some
        yield f"DELETE FROM conversations WHERE id IN ({places(len(some))})", some

    return (yield from delete_quickly((yield find, values), delete))
