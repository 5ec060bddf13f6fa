"""Decides how many records each organization keeps. Pure."""

from collections.abc import Collection


def choose_share(counts: Collection[int], each_max: int, total_max: int) -> int:
    """Return the number of records that an organization keeps at most, so that all together keep at most `total_max`.

    `counts` are the records that the organizations have. One with fewer than the share keeps all of them: no
    organization pushes out the records of another.
    """
    left, share = total_max, each_max
    for place, count in enumerate(sorted(counts)):
        equal = left // (len(counts) - place)
        if count > equal:
            return min(each_max, equal)
        left -= count
    return share
