"""`make torture`: a long run of the list-append workload with faults, checked as a whole."""
