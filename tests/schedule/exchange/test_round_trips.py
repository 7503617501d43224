"""What is written is read again as it was, for all algorithms; and without its note as another table with its bits."""

import json
import re

import pytest

from unisono.schedule import ROOTED, prove, spread
from unisono.schedule.algorithms import CATALOGUE
from unisono.schedule.exchange import msccl, mscclpp


def without_note(text: str) -> str:
    if text.startswith("<"):
        return re.sub("<!--.*?-->", "", text, flags=re.DOTALL)
    return json.dumps({key: value for key, value in json.loads(text).items() if key != "unisono_table"})


LONG = [pytest.param(ranks, marks=pytest.mark.long) for ranks in range(6, 17)]


@pytest.mark.parametrize("ranks", [*range(1, 6), *LONG])
def test_round_trips_are_identical(ranks: int) -> None:
    for algorithm in CATALOGUE.values():
        for root in ({0, ranks - 1} if algorithm.collective in ROOTED else {0}) if algorithm.allows(ranks) else ():
            table = spread(algorithm.schedule(ranks, root))
            for format_ in (msccl, mscclpp):
                text = format_.write(table)
                assert format_.read(text.encode(), "file").digest == table.digest, table.name
                plain = format_.read(without_note(text).encode(), "file")
                assert (plain.collective, plain.result, plain.root) == (table.collective, table.result, root)
                assert prove(plain).same_bits == prove(table).same_bits, table.name
