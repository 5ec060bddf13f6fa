CREATE TABLE IF NOT EXISTS organization (
    id         text PRIMARY KEY,
    name       text NOT NULL UNIQUE CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
    tier       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS database (
    id                text PRIMARY KEY,
    organization      text NOT NULL REFERENCES organization,
    name              text NOT NULL CHECK (name ~ '^[a-z][a-z0-9_-]{0,62}$'),
    state             text NOT NULL CHECK (state IN ('creating', 'active', 'deleting', 'failed')),
    is_default        boolean NOT NULL DEFAULT false,
    delete_protection boolean NOT NULL DEFAULT false,
    created_at        timestamptz NOT NULL DEFAULT now(),
    UNIQUE (organization, name)
);
CREATE UNIQUE INDEX IF NOT EXISTS one_default_database ON database (organization) WHERE is_default;

CREATE TABLE IF NOT EXISTS api_key (
    id           text PRIMARY KEY,
    organization text NOT NULL REFERENCES organization,
    database     text REFERENCES database ON DELETE CASCADE,
    name         text NOT NULL,
    digest       bytea NOT NULL,
    hint         text NOT NULL,
    scopes       text[] NOT NULL CHECK (scopes <@ ARRAY['read', 'write', 'admin', 'operator'] AND scopes <> '{}'),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,
    revoked_at   timestamptz,
    last_used_at timestamptz
);
