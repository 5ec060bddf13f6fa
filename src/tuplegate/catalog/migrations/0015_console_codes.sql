-- Codes that sign the console in: each is good for one session, for a minute. Only its hash is here.
CREATE TABLE console_code (
    id         text PRIMARY KEY,
    key        text NOT NULL REFERENCES api_key ON DELETE CASCADE,
    database   text REFERENCES database ON DELETE CASCADE,
    digest     bytea NOT NULL,
    scopes     text[] NOT NULL CHECK (scopes <@ ARRAY['read', 'write', 'admin', 'operator'] AND scopes <> '{}'),
    lifetime_s integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX console_code_key ON console_code (key);
CREATE INDEX console_code_expires_at ON console_code (expires_at);
