-- Limits that an organization has for itself, by the names of their settings; those of its tier and the settings hold for
-- the rest.
ALTER TABLE organization ADD COLUMN IF NOT EXISTS limits jsonb NOT NULL DEFAULT '{}';
