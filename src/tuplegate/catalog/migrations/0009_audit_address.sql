-- Where the request came from, as the service sees it. None for what was done on the machine itself, and before this.
ALTER TABLE audit ADD COLUMN IF NOT EXISTS address text;
