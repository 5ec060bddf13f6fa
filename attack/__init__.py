"""`make attack`: a hostile tenant against a fresh service, beside one that must not notice and one that is coveted."""
