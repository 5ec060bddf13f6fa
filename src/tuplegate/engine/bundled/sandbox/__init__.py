"""The operating system's walls around a server's processes: Landlock, a filter of system calls, namespaces.

None of them needs root. Landlock bounds which files a process reaches, the filter which system calls. Both hold
for everything that the process starts, and nothing inside can lift them (`docs/decisions/0031-cells.md`).
"""
