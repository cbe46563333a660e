import numpy as np

from crpipe.loading.decoders import Buffers


def address(array):
    return array.__array_interface__["data"][0]


def test_a_buffer_is_used_again_when_nobody_holds_it():
    buffers = Buffers(kept=2)
    first = buffers.take(100)
    assert (first.shape, first.dtype) == ((100,), np.float32)
    assert first.flags.writeable
    place = address(first)
    del first
    assert address(buffers.take(90)) == place


def test_a_buffer_in_use_is_not_given_again():
    buffers = Buffers(kept=4)
    first = buffers.take(10)
    views = first, first[2:5], first.reshape(2, 5)[:, 1:].T, memoryview(first), np.asarray(first[1:])
    for view in views:
        held, place = view, address(np.asarray(first))
        assert address(buffers.take(10)) != place
        del held
    kept = first[3:][1:].view(np.uint32)
    kept[:] = 7
    del first, view, views
    for _ in range(4):
        buffers.take(10)[:] = 0
    assert kept.tolist() == [7] * 6


def test_no_more_buffers_are_remembered_than_allowed():
    buffers = Buffers(kept=2)
    held = [buffers.take(10) for _ in range(5)]
    for number, each in enumerate(held):
        each[:] = number
    assert [each[0] for each in held] == [0, 1, 2, 3, 4]
    assert len(buffers._known) == 2


def test_a_larger_batch_replaces_a_free_buffer():
    buffers = Buffers(kept=1)
    buffers.take(10)
    assert len(buffers.take(1000)) == 1000
    assert len(buffers._known) == 1
