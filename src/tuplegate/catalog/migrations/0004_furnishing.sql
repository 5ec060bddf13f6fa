-- What of the service's own a database of the engine was furnished with; another is brought up to date at start.
ALTER TABLE database ADD COLUMN IF NOT EXISTS furnishing text;
