"""The tables of both SQL stores, as numbered migration steps.

A file or a database stores the number of its steps. A released step is
never changed; changes are new steps. Statements for both databases are written once, in
the SQL of PostgreSQL, with WITHOUT ROWID where SQLite needs it.
"""

import re

_FIRST = """
    CREATE TABLE responses (
        place BIGSERIAL,
        id TEXT COLLATE "C" PRIMARY KEY,
        tenant TEXT NOT NULL,
        wire TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        status TEXT NOT NULL,
        running BOOLEAN NOT NULL,
        previous TEXT,
        conversation TEXT,
        owner TEXT NOT NULL,
        lease DOUBLE PRECISION NOT NULL,
        cancelling BOOLEAN NOT NULL DEFAULT false,
        length INTEGER NOT NULL DEFAULT 0,
        record BYTEA NOT NULL,
        response BYTEA,
        metadata BYTEA
    );
    CREATE INDEX responses_by_time ON responses (tenant, created_at, id);
    CREATE INDEX responses_by_age ON responses (created_at);
    CREATE INDEX responses_running ON responses (lease) WHERE running;
    CREATE TABLE stretches (
        id TEXT COLLATE "C" NOT NULL REFERENCES responses ON DELETE CASCADE,
        first INTEGER NOT NULL,
        created_at BIGINT NOT NULL,
        events BYTEA NOT NULL,
        PRIMARY KEY (id, first)
    ) WITHOUT ROWID;
    CREATE INDEX stretches_by_age ON stretches (created_at);
    CREATE TABLE homes (
        tenant TEXT NOT NULL,
        item TEXT COLLATE "C" NOT NULL,
        response TEXT COLLATE "C" NOT NULL REFERENCES responses ON DELETE CASCADE,
        PRIMARY KEY (tenant, item, response)
    ) WITHOUT ROWID;
    CREATE INDEX homes_by_response ON homes (response);
    CREATE TABLE conversations (
        id TEXT COLLATE "C" PRIMARY KEY,
        tenant TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        conversation BYTEA NOT NULL
    );
    CREATE TABLE items (
        conversation TEXT COLLATE "C" NOT NULL REFERENCES conversations ON DELETE CASCADE,
        place INTEGER NOT NULL,
        id TEXT COLLATE "C" NOT NULL,
        item BYTEA NOT NULL,
        PRIMARY KEY (conversation, place),
        UNIQUE (conversation, id)
    ) WITHOUT ROWID
"""

_OUTBOX = """
    CREATE TABLE letters (
        id TEXT COLLATE "C" PRIMARY KEY,
        target TEXT NOT NULL,
        body BYTEA NOT NULL,
        due DOUBLE PRECISION NOT NULL,
        attempts INTEGER NOT NULL
    );
    CREATE INDEX letters_by_time ON letters (due)
"""

_CALLS = """
    ALTER TABLE responses ADD COLUMN model TEXT;
    CREATE TABLE calls (
        tenant TEXT NOT NULL,
        call TEXT COLLATE "C" NOT NULL,
        response TEXT COLLATE "C" NOT NULL REFERENCES responses ON DELETE CASCADE,
        PRIMARY KEY (tenant, call)
    ) WITHOUT ROWID;
    CREATE INDEX calls_by_response ON calls (response)
"""

# Step 4: one row at the end of a unary answer; small rows for changing values; large
# parts once. Responses that ended before it have a log of their own, so they are in `ends`.

_TABLES = """
    CREATE TABLE runs (
        seq BIGINT PRIMARY KEY REFERENCES responses (seq) ON DELETE CASCADE,
        owner TEXT NOT NULL,
        lease DOUBLE PRECISION NOT NULL,
        cancelling BOOLEAN NOT NULL DEFAULT false,
        conversation TEXT
    );
    CREATE TABLE segments (
        seq BIGINT NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
        first INTEGER NOT NULL,
        length INTEGER NOT NULL,
        events BYTEA NOT NULL,
        PRIMARY KEY (seq, first)
    );
    CREATE TABLE ends (
        seq BIGINT PRIMARY KEY REFERENCES responses (seq) ON DELETE CASCADE,
        response BYTEA NOT NULL
    );
    CREATE TABLE parts (
        digest BYTEA PRIMARY KEY,
        data BYTEA NOT NULL
    );
    CREATE TABLE item_index (
        tenant TEXT NOT NULL,
        item TEXT COLLATE "C" NOT NULL,
        seq BIGINT NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
        PRIMARY KEY (tenant, item, seq)
    ) WITHOUT ROWID;
    CREATE INDEX item_index_by_response ON item_index (seq);
    ALTER TABLE calls RENAME TO old_calls;
    CREATE TABLE calls (
        tenant TEXT NOT NULL,
        digest TEXT COLLATE "C" NOT NULL,
        seq BIGINT NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
        PRIMARY KEY (tenant, digest)
    ) WITHOUT ROWID;
    ALTER TABLE letters RENAME TO outbox;
    DROP INDEX responses_by_time;
    DROP INDEX responses_by_age;
    DROP INDEX responses_running;
    DROP INDEX calls_by_response;
    CREATE INDEX calls_by_response ON calls (seq);
"""

_ROWS = """
    INSERT INTO item_index (tenant, item, seq)
        SELECT h.tenant, item, seq FROM homes h JOIN responses r ON r.id = h.response;
    INSERT INTO calls (tenant, digest, seq)
        SELECT c.tenant, call, seq FROM old_calls c JOIN responses r ON r.id = c.response;
    DROP TABLE homes;
    DROP TABLE stretches;
    DROP TABLE old_calls;
"""

_SECRETS = "CREATE TABLE secrets (tenants BYTEA NOT NULL)"

# Step 6: files, and vector stores of their text. What is found in a full-text search is indexed by
# the database: in a table of its own (SQLite's FTS5), or a column (PostgreSQL's tsvector).

_FILES = """
    CREATE TABLE files (
        seq BIGSERIAL PRIMARY KEY,
        id TEXT COLLATE "C" NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        name TEXT NOT NULL,
        purpose TEXT NOT NULL,
        size BIGINT NOT NULL,
        created_at BIGINT NOT NULL,
        expires_at BIGINT,
        data BYTEA NOT NULL
    );
    CREATE INDEX files_by_tenant ON files (tenant, seq);
    CREATE INDEX files_by_end ON files (expires_at);
    CREATE TABLE vector_stores (
        seq BIGSERIAL PRIMARY KEY,
        id TEXT COLLATE "C" NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        active_at BIGINT NOT NULL,
        expires_at BIGINT,
        about BYTEA NOT NULL
    );
    CREATE INDEX vector_stores_by_tenant ON vector_stores (tenant, seq);
    CREATE INDEX vector_stores_by_end ON vector_stores (expires_at);
    CREATE TABLE indexed_files (
        seq BIGSERIAL PRIMARY KEY,
        store BIGINT NOT NULL,
        file TEXT COLLATE "C" NOT NULL,
        batch TEXT,
        status TEXT NOT NULL,
        size BIGINT NOT NULL DEFAULT 0,
        chunks BIGINT NOT NULL DEFAULT 0,
        begun BIGINT NOT NULL,
        about BYTEA NOT NULL
    );
    CREATE INDEX indexed_files_by_store ON indexed_files (store, seq);
    CREATE INDEX indexed_files_by_file ON indexed_files (file);
    CREATE INDEX indexed_files_by_status ON indexed_files (status, begun);
    CREATE TABLE chunks (
        seq BIGSERIAL PRIMARY KEY,
        store BIGINT NOT NULL,
        file BIGINT NOT NULL,
        text BYTEA NOT NULL,
        vector BYTEA
    );
    CREATE INDEX chunks_by_store ON chunks (store, seq);
    CREATE INDEX chunks_by_file ON chunks (file)
"""

# Step 7: whose a message is.

_TURNS = """
    ALTER TABLE outbox ADD COLUMN tenant TEXT COLLATE "C" NOT NULL DEFAULT '';
    CREATE INDEX outbox_by_turn ON outbox (target, tenant, due)
"""

# Step 8: conversations age from their last use.

_USED = """ALTER TABLE conversations RENAME COLUMN created_at TO used_at;
    ALTER TABLE conversations ADD COLUMN created_at BIGINT NOT NULL DEFAULT 0;
    UPDATE conversations SET created_at = used_at"""

_WORDS = {
    ' COLLATE "C"': "",
    "BIGSERIAL PRIMARY KEY": "INTEGER PRIMARY KEY",
    "BIGINT": "INTEGER",
    "BOOLEAN": "INTEGER",
    "BYTEA": "BLOB",
    "DOUBLE PRECISION": "REAL",
    "false": "0",
    "place BIGSERIAL,": "",
}


def _sqlite(text: str) -> str:
    """Shared steps in the SQL of SQLite, without foreign keys: the store deletes rows itself."""
    for word, own in _WORDS.items():
        text = text.replace(word, own)
    return re.sub(r" REFERENCES \w+( \(\w+\))? ON DELETE CASCADE", "", text)


def _postgres(text: str) -> str:
    return text.replace(" WITHOUT ROWID", "")


SQLITE: tuple[str, ...] = (
    *map(_sqlite, (_FIRST, _OUTBOX, _CALLS)),
    """
    ALTER TABLE responses RENAME TO old_responses;
    CREATE TABLE responses (
        seq INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        wire TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        previous TEXT,
        parts BLOB,
        metadata BLOB,
        record BLOB NOT NULL,
        response BLOB
    );
    CREATE INDEX responses_by_tenant ON responses (tenant);
    CREATE TABLE part_uses (
        digest BLOB NOT NULL,
        seq INTEGER NOT NULL,
        PRIMARY KEY (digest, seq)
    ) WITHOUT ROWID;
    """
    + _sqlite(_TABLES)
    + """
    INSERT INTO responses (id, tenant, wire, created_at, previous, metadata, record)
        SELECT id, tenant, wire, created_at, previous, metadata, record
        FROM old_responses ORDER BY created_at, rowid;
    INSERT INTO runs (seq, owner, lease, cancelling, conversation)
        SELECT seq, owner, lease, cancelling, conversation
        FROM responses JOIN old_responses o USING (id) WHERE o.running;
    INSERT INTO ends (seq, response)
        SELECT seq, o.response FROM responses JOIN old_responses o USING (id) WHERE NOT o.running;
    INSERT INTO segments (seq, first, length, events)
        SELECT seq, first, coalesce(lead(first) OVER (PARTITION BY id ORDER BY first), o.length)
            - first, events
        FROM stretches JOIN responses USING (id) JOIN old_responses o USING (id);
    """
    + _ROWS
    + "DROP TABLE old_responses",
    _sqlite(_SECRETS),
    _sqlite(_FILES) + ";\nCREATE VIRTUAL TABLE chunk_words USING fts5(store, words)",
    _sqlite(_TURNS),
    _USED,
)

# The old rows of `responses` stay where they are; what they held of their runs moves.
POSTGRES: tuple[str, ...] = (
    _postgres(_FIRST) + ";\nCREATE INDEX conversations_by_age ON conversations (created_at)",
    *map(_postgres, (_OUTBOX, _CALLS)),
    """
    ALTER TABLE responses RENAME COLUMN place TO seq;
    ALTER TABLE responses ADD UNIQUE (seq);
    CREATE TABLE part_uses (
        seq BIGINT NOT NULL REFERENCES responses (seq) ON DELETE CASCADE,
        digest BYTEA NOT NULL,
        PRIMARY KEY (seq, digest)
    );
    CREATE INDEX part_uses_by_part ON part_uses (digest);
    """
    + _postgres(_TABLES)
    + """
    INSERT INTO runs (seq, owner, lease, cancelling, conversation)
        SELECT seq, owner, lease, cancelling, conversation FROM responses WHERE running;
    INSERT INTO ends (seq, response)
        SELECT seq, response FROM responses WHERE NOT running;
    INSERT INTO segments (seq, first, length, events)
        SELECT seq, first,
            coalesce(lead(first) OVER (PARTITION BY id ORDER BY first), length) - first, events
        FROM stretches JOIN responses USING (id);
    """
    + _ROWS
    + """
    CREATE INDEX responses_by_tenant ON responses (tenant, seq);
    ALTER TABLE responses DROP COLUMN status, DROP COLUMN running, DROP COLUMN conversation,
        DROP COLUMN owner, DROP COLUMN lease, DROP COLUMN cancelling, DROP COLUMN length,
        DROP COLUMN response, DROP COLUMN model;
    ALTER TABLE responses ADD COLUMN response BYTEA, ADD COLUMN parts BYTEA
    """,
    _SECRETS,
    _FILES
    + """;
    ALTER TABLE chunks ADD COLUMN words TSVECTOR NOT NULL;
    CREATE INDEX chunks_by_word ON chunks USING gin (words)
    """,
    _TURNS,
    _USED,
)
