"""A workload of short random transactions that append to lists and read them, sent in every way, and its history.

Ten keys are hot at a time. A key is given up for a new one after some hundred appends, so that lists stay short however
long the workload is. Everything that a client sends follows from the seed and the client's number, whatever the others
do; only how the clients interleave does not.

Of several nodes of a service a client uses one, and the next one when that does not answer or refuses.
"""
