"""The table of `features`: in each row this library does what Gloo does, by its own name and by Gloo's."""

import pytest

from tests.integrations.torch.features import COLUMNS, answers_of


@pytest.mark.cold
@pytest.mark.parametrize("column", [name for name in COLUMNS if name != "gloo"])
def test_features_work(column: str) -> None:
    answers = answers_of(column)
    assert {
        name: said
        for name, said in answers.items()
        if said not in ("yes", "not in this torch") and "_dist2" not in name
    } == {}
