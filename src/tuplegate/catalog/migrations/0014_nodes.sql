-- Machines that serve this installation: by the number that one takes at its start, with the address by which the others
-- reach it. One that was not seen for a few seconds is gone.
CREATE TABLE IF NOT EXISTS node (
    number  bigint PRIMARY KEY,
    url     text NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
