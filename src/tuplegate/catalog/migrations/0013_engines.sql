-- Engines that databases live on. The first is the one that holds this catalog.
CREATE TABLE IF NOT EXISTS engine (
    name   text PRIMARY KEY,
    weight integer NOT NULL DEFAULT 1 CHECK (weight BETWEEN 0 AND 1000),
    state  text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'draining'))
);
INSERT INTO engine (name) VALUES ('first') ON CONFLICT DO NOTHING;

ALTER TABLE database ADD COLUMN IF NOT EXISTS engine text NOT NULL DEFAULT 'first' REFERENCES engine;
CREATE INDEX IF NOT EXISTS database_engine ON database (engine);
ALTER TABLE leftover ADD COLUMN IF NOT EXISTS engine text NOT NULL DEFAULT 'first';

-- A database that goes from one engine to another: the name that it has in the engine before, and the one after. The row
-- stays for a while when it is done, so that who was held meanwhile finds the way.
CREATE TABLE IF NOT EXISTS move (
    former     text PRIMARY KEY,
    database   text NOT NULL REFERENCES database ON DELETE CASCADE,
    successor  text NOT NULL,
    engine     text NOT NULL REFERENCES engine,
    step       text NOT NULL CHECK (step IN ('preparing', 'copying', 'finishing', 'switched', 'done')),
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at   timestamptz
);
CREATE INDEX IF NOT EXISTS move_database ON move (database);
