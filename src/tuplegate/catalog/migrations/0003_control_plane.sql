ALTER TABLE organization ADD COLUMN IF NOT EXISTS deleted_at timestamptz;

-- The name that the engine knows it under changes with a reset, the id never.
ALTER TABLE database ADD COLUMN IF NOT EXISTS engine_name text;
CREATE UNIQUE INDEX IF NOT EXISTS database_engine_name_key ON database (engine_name);
UPDATE database SET engine_name = id WHERE engine_name IS NULL;
ALTER TABLE database ALTER COLUMN engine_name SET NOT NULL;
ALTER TABLE database ADD COLUMN IF NOT EXISTS clone_of text;
ALTER TABLE database ADD COLUMN IF NOT EXISTS paused_until timestamptz;
CREATE INDEX IF NOT EXISTS database_paused ON database (paused_until) WHERE paused_until IS NOT NULL;

-- Databases of the engine that a reset is about to put in place, or has taken out of it.
CREATE TABLE IF NOT EXISTS leftover (
    engine_name text PRIMARY KEY,
    database    text NOT NULL
);

-- A key that was rotated has its former secret too, for as long as it was given.
ALTER TABLE api_key ADD COLUMN IF NOT EXISTS former_digest bytea;
ALTER TABLE api_key ADD COLUMN IF NOT EXISTS former_until timestamptz;
CREATE INDEX IF NOT EXISTS api_key_organization ON api_key (organization, created_at, id);

CREATE TABLE IF NOT EXISTS session (
    id           text PRIMARY KEY,
    key          text NOT NULL REFERENCES api_key ON DELETE CASCADE,
    database     text REFERENCES database ON DELETE CASCADE,
    digest       bytea NOT NULL,
    scopes       text[] NOT NULL CHECK (scopes <@ ARRAY['read', 'write', 'admin', 'operator'] AND scopes <> '{}'),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    destroyed_at timestamptz
);
CREATE INDEX IF NOT EXISTS session_key ON session (key);
CREATE INDEX IF NOT EXISTS session_expires_at ON session (expires_at);

CREATE TABLE IF NOT EXISTS audit (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    organization text NOT NULL,
    key          text,
    session      text,
    action       text NOT NULL,
    subject      text NOT NULL,
    request_id   text NOT NULL
);
CREATE INDEX IF NOT EXISTS audit_organization ON audit (organization, id DESC);

CREATE TABLE IF NOT EXISTS usage (
    organization text NOT NULL REFERENCES organization ON DELETE CASCADE,
    database     text NOT NULL,
    hour         timestamptz NOT NULL,
    requests     bigint NOT NULL,
    rows         bigint NOT NULL,
    bytes        bigint NOT NULL,
    errors       bigint NOT NULL,
    PRIMARY KEY (organization, hour, database)
);

CREATE TABLE IF NOT EXISTS quota (
    organization text PRIMARY KEY REFERENCES organization ON DELETE CASCADE,
    started      bigint NOT NULL,
    used         bigint NOT NULL
) WITH (fillfactor = 50);

-- Counts changes that workers must not sleep through. They look at it several times a second.
CREATE TABLE IF NOT EXISTS revision (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    number   bigint NOT NULL
);
INSERT INTO revision (number) VALUES (1) ON CONFLICT DO NOTHING;
