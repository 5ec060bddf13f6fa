-- It is about to be dropped, so that a change whose worker was killed cannot still put it in place.
ALTER TABLE leftover ADD COLUMN IF NOT EXISTS doomed boolean NOT NULL DEFAULT false;
