"""Redis is a program of the system, which a contributor's machine may lack and CI may not."""

from tests import redis

collect_ignore = [] if redis.there() else ["test_redis.py"]
