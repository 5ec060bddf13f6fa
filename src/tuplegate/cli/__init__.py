"""The command line: nouns and verbs. Data goes to stdout, everything else to stderr."""
