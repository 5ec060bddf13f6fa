-- The database that a change concerns, so that who is bound to one sees what was done with that one. None where it
-- concerns the organization as a whole.
ALTER TABLE audit ADD COLUMN IF NOT EXISTS database text;
CREATE INDEX IF NOT EXISTS audit_database ON audit (database, id DESC) WHERE database IS NOT NULL;
