CREATE TABLE IF NOT EXISTS installation (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    id       text NOT NULL,
    secret   bytea NOT NULL
);
