"""Roles and their rights: those of the installation, those of tenants, and the walls between them."""
