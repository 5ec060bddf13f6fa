-- Entries of what is done again and again, as opening a session, are counted by the hour: `tally` tells which are the same.
ALTER TABLE audit ADD COLUMN IF NOT EXISTS count bigint NOT NULL DEFAULT 1;
ALTER TABLE audit ADD COLUMN IF NOT EXISTS last_at timestamptz;
ALTER TABLE audit ADD COLUMN IF NOT EXISTS tally text;
CREATE UNIQUE INDEX IF NOT EXISTS audit_tally ON audit (tally) WHERE tally IS NOT NULL;

-- What is too old is removed.
CREATE INDEX IF NOT EXISTS audit_at ON audit (at);
CREATE INDEX IF NOT EXISTS usage_hour ON usage (hour);
