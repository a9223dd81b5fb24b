"""Table 1 and the problems by name. The numbers are the published table's, with its misprints beside them."""

from __future__ import annotations

import numpy as np
import pytest

from pyturingvi.errors import DataError, InputError
from pyturingvi.layout import Layout
from pyturingvi.problems import list_problems, load_problem, parameter_counts, problem_names

TABLE_1 = {
    "rpoisson-small": (1961, 1, 16, 1977, 3954, 35450, 1957230),
    "rpoisson-middle": (3922, 1, 16, 3938, 7876, 70748, 7759829),
    "rpoisson-large": (19609, 1, 16, 19625, 39250, 353114, 192599750),
    "volatility-small": (262, 6, 33, 1605, 3210, 59544, 1290420),
    "volatility-middle": (522, 6, 33, 3165, 6330, 118044, 5013360),
    "volatility-large": (2579, 6, 33, 15507, 31014, 580869, 120256785),
    "irt-small": (3348, 1, 193, 3541, 7082, 671774, 6274652),
    "irt-middle": (6695, 1, 193, 6888, 13776, 1324439, 23732604),
    "irt-large": (33475, 1, 193, 33668, 67336, 6546539, 566817614),
}
PRINTED_OTHERWISE = {
    "rpoisson-large": "mean_field_p: 39282",
    "volatility-middle": "mean_field_p: 6210, full_rank_p: 4825170",
}


@pytest.mark.parametrize("name", TABLE_1)
def test_table_1(name):
    table = list_problems().set_index("problem")
    columns = ["N", "d_y", "d_z", "d", "mean_field_p", "structured_p", "full_rank_p"]
    assert tuple(table.loc[name, columns]) == TABLE_1[name]
    assert table.loc[name, "paper_prints"] == PRINTED_OTHERWISE.get(name, "")


def test_names():
    assert list(list_problems()["problem"]) == list(TABLE_1)
    assert problem_names() == [*TABLE_1, "verbagg"]


def test_parameter_counts_are_the_nonzeros_of_the_patterns():
    layout = Layout(3, 4, 2)
    full = np.tril(np.ones((layout.dim, layout.dim), dtype=bool))
    group = np.concatenate([np.full(3, -1), np.repeat(np.arange(4), 2)])
    bordered = full & ((group[:, None] == group) | (group == -1))
    assert parameter_counts(layout) == {
        "mean_field_p": 2 * layout.dim,
        "structured_p": layout.dim + bordered.sum(),
        "full_rank_p": layout.dim + full.sum(),
    }


@pytest.mark.parametrize("name", [name for name in TABLE_1 if not name.startswith("irt")])
def test_real_problems_have_the_published_sizes(name):
    model = load_problem(name)
    n, d_y, d_z, d = TABLE_1[name][:4]
    assert model.layout == Layout(d_z, n, d_y)
    assert model.dim == d
    assert model.label == name
    assert np.isfinite(model.log_density(np.zeros(d))).all()


@pytest.mark.parametrize("name", TABLE_1)
def test_simulated_problems_have_the_published_sizes_and_say_so(name):
    model = load_problem(name, simulated=True)
    n, d_y, d_z, _ = TABLE_1[name][:4]
    assert model.layout == Layout(d_z, n, d_y)
    assert model.label == f"{name} (simulated)"
    assert len(model.global_labels) == d_z


def test_verbagg():
    model = load_problem("verbagg")
    assert model.layout == Layout(3 + 2 * 24, 316, 1)
    assert model.label == "verbagg"
    assert model.coords["item"][0] == "S1WantCurse"


def test_seed_chooses_the_subset():
    def rows(seed):
        return load_problem("rpoisson-small", seed=seed).log_density(np.zeros(1977))

    assert rows(0) == rows(0)
    assert rows(0) != rows(1)


@pytest.mark.parametrize("name", ["irt-small", "irt-middle", "irt-large"])
def test_irt_without_data_says_what_to_do(name, tmp_path):
    with pytest.raises(DataError, match=r"data_dir.*simulated=True"):
        load_problem(name)
    with pytest.raises(DataError, match=r"no data\.csv.*simulated=True"):
        load_problem(name, data_dir=tmp_path)


def test_wrong_requests_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"'irt-smal'.*Did you mean 'irt-small'"):
        load_problem("irt-smal")
    with pytest.raises(InputError, match="not both"):
        load_problem("irt-small", data_dir=tmp_path, simulated=True)
    with pytest.raises(DataError, match=r"no rwm5yr\.csv"):
        load_problem("rpoisson-small", data_dir=tmp_path)
    for seed in (-1, 1.5, "x"):
        for simulated in (False, True):
            with pytest.raises(InputError, match="seed"):
                load_problem("rpoisson-small", seed=seed, simulated=simulated)
