"""The extra hop: forwards the data plane, redirects the control plane."""
