"""Point-to-point calls between live ranks: what is sent is what is received, in order, whatever the size and layout."""

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import unisono
from tests.support.values import values
from unisono import p2p
from unisono.base.errors import MessageMismatch
from unisono.calls.p2p import Transfer


@pytest.mark.sampled(most=4)
@pytest.mark.ranks(1, 2, 3, 5, 7)
def test_a_ring_of_blocking_calls() -> None:
    """Everybody sends first, to the right, and receives from the left."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    left, right = (me - 1) % size, (me + 1) % size
    for k, count in enumerate((1, 0, 25_000, 300_000, 2_000_000)):
        tensor = torch.full((count,), -1.0)
        p2p.send(values(count, me + k), right, tag=k)
        assert p2p.recv(tensor, left, tag=k) == left
        assert torch.equal(tensor, values(count, left + k))


@pytest.mark.ranks(2)
def test_messages_of_one_tag_keep_their_order_and_tags_may_be_asked_for_in_any() -> None:
    sizes = (3, 100_000, 0, 40_000)
    if unisono.get_rank() == 0:
        for k, count in enumerate(sizes):
            for tag in (4, 0, 9):
                p2p.send(values(count, 10 * k + tag), 1, tag=tag)
        return
    for tag in (9, 4, 0):
        for k, count in enumerate(sizes):
            tensor = p2p.recv(None, 0, tag=tag)
            assert torch.equal(tensor, values(count, 10 * k + tag)), (tag, k)


@pytest.mark.ranks(4)
def test_any_source_takes_what_was_sent_first(hosts: int) -> None:
    """Between hosts, what arrives first: of what was sent before anybody listened, nobody knows the order."""
    me, order = unisono.get_rank(), (2, 3, 1, 2)
    for k, sender in enumerate(order):
        if me == sender:
            p2p.send(torch.tensor([me, k]), 0)
        unisono.barrier()
    if me == 0:
        got = [p2p.irecv() for _ in order]
        sent = [[sender, k] for k, sender in enumerate(order)]
        assert [work.source_rank() for work in got] == [work.result()[0].item() for work in got]
        if hosts > 1:
            sent.sort()
            got.sort(key=Transfer.source_rank)
        assert [work.result().tolist() for work in got] == sent


@pytest.mark.ranks(4)
def test_any_source_while_all_send() -> None:
    me, size, rounds = unisono.get_rank(), unisono.get_world_size(), 20
    if me:
        for k in range(rounds):
            p2p.send(values(1 + 3000 * (k % 3), 100 * me + k), 0)
        return
    heard = dict.fromkeys(range(1, size), 0)
    for _ in range(rounds * (size - 1)):
        work = p2p.irecv()
        source = work.source_rank()
        k = heard[source]
        assert torch.equal(work.result(), values(1 + 3000 * (k % 3), 100 * source + k))
        heard[source] += 1
    assert set(heard.values()) == {rounds}


@pytest.mark.sampled
@pytest.mark.ranks(2, 4)
def test_a_ring_of_asynchronous_calls() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    left, right = (me - 1) % size, (me + 1) % size
    for count in (2, 500_000):
        target = torch.empty(count)
        works = [p2p.irecv(target, left), p2p.isend(values(count, me), right)]
        for work in works:
            assert work.wait()
            assert work.is_completed()
            assert work.is_success()
            assert work.exception() is None
        assert [work.source_rank() for work in works] == [left, me]
        assert works[0].result() is not None
        assert works[0].get_future().wait().data_ptr() == target.data_ptr()
        assert works[1].result() is None
        assert torch.equal(target, values(count, left))


@pytest.mark.ranks(3)
def test_a_batch() -> None:
    """Everything with everybody, of different lengths, and the receives in another order than the sends."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    targets = [torch.empty(1000 * q + me) for q in range(size)]
    batch = [p2p.P2POp(p2p.irecv, targets[q], q, tag=1) for q in reversed(range(size))]
    batch += [p2p.P2POp(p2p.isend, values(1000 * me + q, me + 10 * q), q, None, 1) for q in range(size)]
    works = p2p.batch_isend_irecv(batch)
    assert len(works) == 2 * size
    for work in works:
        work.wait()
    for q, target in enumerate(targets):
        assert torch.equal(target, values(1000 * q + me, q + 10 * me))
    assert p2p.batch_isend_irecv([]) == []


@pytest.mark.ranks(3)
def test_sendrecv() -> None:
    me, size = unisono.get_rank(), unisono.get_world_size()
    for count in (1, 200_000):
        target = torch.empty(count)
        source = p2p.sendrecv(values(count, me), (me + 1) % size, target, (me - 1) % size)
        assert source == (me - 1) % size
        assert torch.equal(target, values(count, source))
        with pytest.raises(unisono.ArgumentError, match="share memory"):
            p2p.sendrecv(target, me, target, me)


@pytest.mark.ranks(2)
def test_every_layout_on_both_sides() -> None:
    me = unisono.get_rank()
    plain = torch.complex(values(60, 1), values(60, 2)).view(6, 10)
    forms = {
        "plain": plain,
        "transposed": plain.t(),
        "strided": plain[::2, 1::3],
        "expanded": plain[:, :1].expand(6, 4),
        "conjugate": plain.conj(),
        "conjugate part": plain.conj()[1:3, ::2],
        "negative": plain.conj().imag,
        "scalar": plain[2, 3],
        "empty": plain[:0],
        "with gradient": plain.clone().requires_grad_(),
    }
    for k, (name, form) in enumerate(forms.items()):
        if me == 0:
            p2p.send(form, 1, tag=k)
            continue
        wide = torch.full((*form.shape, 2), 77, dtype=form.dtype)
        p2p.recv(wide[..., 0], 0, tag=k)
        assert torch.equal(wide[..., 0], form.detach()), name
        assert (wide[..., 1] == 77).all(), name
    leaf = torch.zeros(3, requires_grad=True)
    if me == 0:
        p2p.send(torch.ones(3), 1)
    else:
        p2p.recv(leaf, 0)
        assert leaf.tolist() == [1.0] * 3


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", ["uint3", "int8", "float8_e5m2", "float4_e2m1fn_x2"])
@pytest.mark.ranks(2)
def test_layouts_of_dtypes_that_torch_hardly_knows(dtype: str) -> None:
    kind = getattr(torch, dtype)
    data = torch.arange(60, dtype=torch.uint8)
    if unisono.get_rank() == 0:
        p2p.send(data.view(6, 10).t().view(kind), 1)
    else:
        wide = torch.full((10, 12), 77, dtype=torch.uint8)
        p2p.recv(wide.view(kind)[:, ::2], 0)
        assert torch.equal(wide[:, ::2], data.view(6, 10).t())
        assert (wide[:, 1::2] == 77).all()


@pytest.mark.ranks(2)
def test_shared_tensors() -> None:
    me = unisono.get_rank()
    mine = unisono.empty(100_000).copy_(values(100_000, me))
    target = unisono.empty(100_000)
    p2p.sendrecv(mine, 1 - me, target, 1 - me)
    assert torch.equal(target, values(100_000, 1 - me))


@pytest.mark.sampled
@pytest.mark.parametrize("count", [6, 600_000])
@pytest.mark.ranks(2)
def test_a_message_that_does_not_fit(count: int) -> None:
    if unisono.get_rank() == 0:
        for _ in range(3):
            p2p.send(values(count, 1).view(2, -1), 1)
        p2p.send(values(count, 2).view(2, -1), 1)
        return
    short, other = torch.zeros(count - 1), torch.zeros(count, dtype=torch.int32)
    for target, call in ((short, p2p.recv), (other, p2p.recv), (short, lambda *a: p2p.irecv(*a).wait())):
        with pytest.raises(unisono.MismatchError, match=rf"rank 0 sent float32\[2, {count // 2}\]") as caught:
            call(target, 0)
        assert isinstance(caught.value, MessageMismatch)
        assert (caught.value.source, caught.value.receiver) == (0, 1)
        assert not target.any()
    target = torch.empty(count // 2, 2)
    p2p.recv(target, 0)
    assert torch.equal(target.view(-1), values(count, 2)), "the same number in another shape"


WRONG: dict[str, tuple[Callable[[torch.Tensor], Any], type[Exception], str]] = {
    "no tensor": (lambda t: p2p.send([1.0], 0), unisono.DTypeError, "tensor: expected a torch.Tensor"),
    "sparse": (lambda t: p2p.send(t.to_sparse(), 0), unisono.DTypeError, "to_dense"),
    "no rank": (lambda t: p2p.send(t, 2), unisono.ArgumentError, "dst=2: the ranks of this group are 0 to 1"),
    "negative rank": (lambda t: p2p.recv(t, -1), unisono.ArgumentError, "src=-1"),
    "rank of another type": (lambda t: p2p.irecv(t, 0.0), unisono.DTypeError, "src: expected a rank"),
    "no destination": (lambda t: p2p.isend(t, None), unisono.DTypeError, "dst: expected a rank"),
    "tag": (lambda t: p2p.send(t, 0, tag=-3), unisono.ArgumentError, "tag=-3"),
    "large tag": (lambda t: p2p.recv(t, 0, tag=1 << 63), unisono.ArgumentError, "tag="),
    "tag of another type": (lambda t: p2p.recv(t, 0, tag="a"), unisono.DTypeError, "tag: expected an integer"),
    "expanded": (lambda t: p2p.recv(t[:1].expand(3), 0), unisono.ArgumentError, "share memory"),
    "overlapping": (lambda t: p2p.recv(t.as_strided((3, 2), (1, 1)), 0), unisono.ArgumentError, "share memory"),
    "overlapping, asynchronous": (lambda t: p2p.irecv(t[:1].expand(3)), unisono.ArgumentError, "share memory"),
    "overlapping, in a batch": (
        lambda t: p2p.P2POp(p2p.irecv, t.as_strided((2, 3), (1, 1)), 0),
        unisono.ArgumentError,
        "share memory",
    ),
    "overlapping, of sendrecv": (
        lambda t: p2p.sendrecv(torch.ones(6), 0, t.as_strided((3, 2), (1, 1)), 0),
        unisono.ArgumentError,
        "share memory",
    ),
    "conjugate": (lambda t: p2p.recv(t.to(torch.complex64).conj(), 0), unisono.ArgumentError, "resolve_conj"),
    "op": (lambda t: p2p.P2POp(p2p.send, t, 0), unisono.ArgumentError, "op: expected unisono's isend or irecv"),
    "peer of an op": (lambda t: p2p.P2POp(p2p.isend, t, 7), unisono.ArgumentError, "dst=7"),
    "batch": (
        lambda t: p2p.batch_isend_irecv([p2p.P2POp(p2p.isend, t, 0), t]),
        unisono.DTypeError,
        r"p2p_op_list\[1\]: expected a P2POp",
    ),
}


@pytest.mark.ranks(2)
def test_wrong_arguments_move_nothing() -> None:
    me, tensor = unisono.get_rank(), torch.ones(5)
    for name, (call, kind, words) in WRONG.items():
        try:
            call(tensor)
        except unisono.UsageError as error:
            assert isinstance(error, kind), name  # noqa: PT017  names the case
            assert re.search(words, str(error)), name  # noqa: PT017
        else:
            raise AssertionError(name)
    p2p.send(torch.full((5,), float(me)), 1 - me)
    p2p.recv(tensor, 1 - me)
    assert tensor.tolist() == [1.0 - me] * 5


@pytest.mark.ranks(2)
def test_a_long_message_goes_on_while_nobody_waits_for_it() -> None:
    tensor = values(2_000_000, 1)
    if unisono.get_rank() == 0:
        sent = p2p.isend(tensor, 1)
        unisono.barrier()  # the other comes here when it has all
        sent.wait()
    else:
        assert torch.equal(p2p.recv(None, 0), tensor)
        unisono.barrier()


@pytest.mark.ranks(2)
def test_futures_and_polling() -> None:
    me = unisono.get_rank()
    work = p2p.irecv(torch.empty(4), 1 - me)
    heard = threading.Event()
    future = work.get_future().then(lambda done: (done.value().sum().item(), heard.set())[0])
    assert not work.is_completed()
    assert not work.is_success()
    unisono.barrier()
    p2p.send(torch.full((4,), float(me)), 1 - me)
    while not work.is_completed():
        pass
    assert heard.wait(20)
    assert future.wait() == 4.0 * (1 - me)


@pytest.mark.ranks(2)
def test_two_threads() -> None:
    """Each with tags of its own, in both directions, blocking and not."""
    me = unisono.get_rank()
    errors: list[BaseException] = []

    def talk(tag: int) -> None:
        try:
            for k in range(60):
                count = (1, 5000, 120_000)[k % 3]
                if tag:
                    p2p.send(values(count, 10 * k + tag + me), 1 - me, tag=tag)
                    got = p2p.recv(None, 1 - me, tag=tag)
                else:
                    work = p2p.irecv(None, 1 - me, tag=tag)
                    p2p.isend(values(count, 10 * k + tag + me), 1 - me, tag=tag).wait()
                    got = work.result()
                assert torch.equal(got, values(count, 10 * k + tag + 1 - me)), (tag, k)
        except BaseException as error:  # noqa: BLE001  shown by the test
            errors.append(error)

    others = [threading.Thread(target=talk, args=(tag,)) for tag in (0, 1)]
    for thread in others:
        thread.start()
    talk(2)
    for thread in others:
        thread.join()
    assert errors == []


@pytest.mark.ranks(3)
def test_between_collectives() -> None:
    """Messages have no place in the order of collectives: one may begin before a collective and end after it."""
    me, size = unisono.get_rank(), unisono.get_world_size()
    early = p2p.irecv(torch.empty(3), (me + 1) % size)
    total = torch.ones(10_000)
    unisono.all_reduce(total)
    assert (total == size).all()
    p2p.send(values(3, me), (me - 1) % size)
    unisono.barrier()
    assert torch.equal(early.result(), values(3, (me + 1) % size))
