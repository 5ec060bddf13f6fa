-- A secret that an older version has made may have become known to a tenant: it is replaced at the next start. Where
-- there is none yet, the first one is new.
ALTER TABLE installation ADD COLUMN IF NOT EXISTS secret_is_old boolean NOT NULL DEFAULT false;
UPDATE installation SET secret_is_old = true;
