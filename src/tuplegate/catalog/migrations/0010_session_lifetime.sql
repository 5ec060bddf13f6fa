-- How long a session lives, and is extended by a refresh, where it was asked to be short. None for as long as any.
ALTER TABLE session ADD COLUMN IF NOT EXISTS lifetime_s integer;
