-- Limits that an organization has for itself, by the names of their settings; those of its tier and the settings hold for
-- the rest.
ALTER TABLE organization ADD COLUMN IF NOT EXISTS limits jsonb NOT NULL DEFAULT '{}';

-- How large a database was when it was last measured.
ALTER TABLE database ADD COLUMN IF NOT EXISTS size_bytes bigint;
