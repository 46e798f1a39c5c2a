"""A store in a PostgreSQL database, which any number of servers may share.

Importing it needs asyncpg (the extra `postgres`). The tables stand in a schema of their own, so
that the database may hold other things beside them.
"""

from .store import PostgresStore

__all__ = ["PostgresStore"]
