-- The hash of the key's secret that a session, or a code for one, was made with: they end with it when the key is rotated.
ALTER TABLE session ADD COLUMN IF NOT EXISTS secret bytea;
ALTER TABLE console_code ADD COLUMN IF NOT EXISTS secret bytea;
