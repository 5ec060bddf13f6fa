"""The alias: another address of the data plane, through an extra hop. It decides nothing and adds no rights."""
