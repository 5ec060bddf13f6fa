-- Of each holder of permits in the window: the number of its last statement, the permits that it has, how many of these
-- it may not have used yet, and the time (by the epoch) after which nobody waits for it to say so.
ALTER TABLE quota ADD COLUMN IF NOT EXISTS holders jsonb NOT NULL DEFAULT '{}';
