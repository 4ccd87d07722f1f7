"""Repeated calls are checked once."""

from dml_jax._shared import calls


def test_lists_of_integers_are_memoized_as_tuples():
    checked = []
    check = calls.memoized(lambda _, *options: checked.append(options))
    offsets = [1, 2]
    for _ in range(2):
        check((), offsets)
    check((), (1, 2))
    offsets[0] = 3
    check((), offsets)
    assert checked == [((1, 2),), ((3, 2),)]
