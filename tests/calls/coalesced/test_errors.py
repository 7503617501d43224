"""Lists that ranks disagree about, or that no call can take: errors before anything moves, and a group that goes on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unisono
from unisono import ArgumentError, MismatchError
from unisono.calls.coalesced import all_reduce_coalesced, broadcast_coalesced
from unisono.engine.tensors import first_overlap


def ones(*counts: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.ones(count, dtype=dtype) for count in counts]


DIFFERENT: dict[str, list[torch.Tensor]] = {
    "sizes whose sum is the same": ones(2, 4, 3),
    "one more": ones(2, 3, 4, 1),
    "one less": ones(2, 3),
    "one more without elements": ones(2, 3, 4, 0),
    "nothing": [],
    "dtypes": ones(2, 3, 4, dtype=torch.float64),
    "one dtype": [*ones(2, 3), *ones(4, dtype=torch.int32)],
}


@pytest.mark.parametrize("what", DIFFERENT)
@pytest.mark.ranks(3)
def test_other_tensors_on_one_rank(what: str) -> None:
    tensors = DIFFERENT[what] if unisono.get_rank() == 2 else ones(2, 3, 4)
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(MismatchError, match="rank 2 differs") as caught:
        all_reduce_coalesced(tensors)
    assert "tensors" in str(caught.value.calls[0])
    assert all(map(torch.equal, tensors, before))
    again = ones(7, 8)
    all_reduce_coalesced(again)
    assert all((tensor == 3).all() for tensor in again)


@pytest.mark.ranks(2)
def test_sizes_far_down_a_long_list() -> None:
    counts = [5] * 100
    counts[70 + unisono.get_rank()] = 6
    with pytest.raises(MismatchError):
        broadcast_coalesced(ones(*counts), 0)


@pytest.mark.ranks(2)
def test_plain_call_is_another_one() -> None:
    call = [lambda: all_reduce_coalesced(ones(10)), lambda: unisono.all_reduce(torch.ones(10))]
    with pytest.raises(MismatchError):
        call[unisono.get_rank()]()


@pytest.mark.ranks(2)
def test_known_lists_that_differ() -> None:
    """Ranks that know both lists, and each makes another call; and lists with a tensor twice."""
    for _ in range(2):
        all_reduce_coalesced(ones(3, 5))
        all_reduce_coalesced(ones(4, 4))
    tensors = [ones(3, 5), ones(4, 4)][unisono.get_rank()]
    with pytest.raises(MismatchError, match="2 tensors"):
        all_reduce_coalesced(tensors)
    assert all((tensor == 1).all() for tensor in tensors)
    with pytest.raises(ArgumentError, match="share memory"):
        all_reduce_coalesced(ones(4) * 2)
    tensors = ones(4, 4)
    all_reduce_coalesced(tensors)
    assert all((tensor == 2).all() for tensor in tensors)


@pytest.mark.ranks(2)
def test_columns_of_one_tensor_are_apart() -> None:
    table = torch.arange(12.0).view(4, 3)
    all_reduce_coalesced(list(table.unbind(1)))
    assert torch.equal(table, 2 * torch.arange(12.0).view(4, 3))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6), st.booleans()), max_size=8))
def test_first_overlap_against_the_definition(spans: list[tuple[int, int, bool]]) -> None:
    def meet(first: int, second: int) -> bool:
        (a, n, write), (b, m, other) = spans[first], spans[second]
        return (write or other) and max(a, b) < min(a + n, b + m)

    found = first_overlap(*([span[k] for span in spans] for k in range(3)))
    pairs = {(i, j) for i in range(len(spans)) for j in range(len(spans)) if i != j and meet(i, j)}
    assert (found in pairs) if pairs else (found is None)
