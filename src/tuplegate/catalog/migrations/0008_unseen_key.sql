-- The first key, from before it is made until it was shown: where a start fails in between, the next one makes another.
ALTER TABLE installation ADD COLUMN IF NOT EXISTS unseen_key text;
