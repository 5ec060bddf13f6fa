-- The database that it is a copy of: the engine has that one's roles as long as there is this record.
ALTER TABLE leftover ADD COLUMN IF NOT EXISTS source text;

UPDATE leftover SET source = move.former FROM move
 WHERE move.successor = leftover.engine_name AND leftover.source IS NULL;
