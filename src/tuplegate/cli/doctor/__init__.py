"""`doctor`: what is wrong with a service, its certificate, or the machine."""
