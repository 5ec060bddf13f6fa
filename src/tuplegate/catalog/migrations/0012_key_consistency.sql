-- Whether what a key reads must be serializable, or may be the snapshot of a replica.
ALTER TABLE api_key ADD COLUMN IF NOT EXISTS consistency text NOT NULL DEFAULT 'serializable'
    CHECK (consistency IN ('serializable', 'snapshot'));
