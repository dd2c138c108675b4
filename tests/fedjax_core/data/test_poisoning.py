"""Poisoned examples: whose they are, and what is in them."""

import numpy as np
import pytest

from fedjax_core.data import federated_data, hold_out, poisoning, sources
from fedjax_core.testing import toy_federation
from fedjax_core.training import metrics


def images(dtype=np.uint8):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 200, (40, 6, 6, 1)).astype(dtype)
    mine = sources.from_arrays(x, np.arange(40) % 4, x[:8], np.arange(8) % 4)
    return federated_data.from_index(mine, np.arange(40).reshape(4, 10), np.arange(8).reshape(4, 2))


def test_labels_are_flipped_for_the_attackers_alone():
    data = images()
    found = poisoning.poison_clients(data, [poisoning.label_flip()], [1, 3], seed=0)
    assert poisoning.poison_clients(found, [poisoning.label_flip()], [1, 3], seed=0) is found, "such as a simulation's own data"
    for poisons, clients, seed in (([], [], 0), ([poisoning.label_flip()], [1, 2], 0), ([poisoning.label_flip()], [1, 3], 1)):
        with pytest.raises(ValueError, match=r"poisoned already, by '' of clients \[1, 3\] \(seed 0\); the config has "):
            poisoning.poison_clients(found, poisons, clients, seed)
    np.testing.assert_array_equal(hold_out.find_seen_examples(found), np.arange(40))  # which scale the inputs
    for i in range(4):
        y, before = found.train.y[found.train_index[i]], data.train.y[data.train_index[i]]
        np.testing.assert_array_equal(y, 3 - before if i in (1, 3) else before)
        np.testing.assert_array_equal(found.train.x[found.train_index[i]], data.train.x[data.train_index[i]])
    assert found.partition_hash != data.partition_hash
    np.testing.assert_array_equal(found.label_table[1], data.label_table[1][::-1])
    np.testing.assert_array_equal(found.test.y, data.test.y)
    one = poisoning.poison_clients(data, [poisoning.label_flip(source=1, target=2)], [0], seed=0)
    np.testing.assert_array_equal(one.label_table[0], data.label_table[0] * [1, 0, 1, 1] + [0, 0, data.label_table[0][1], 0])


def test_nothing_is_held_out_of_poisoned_data():
    """They would be poisoned again, and labels that are flipped twice are clean."""
    found = poisoning.poison_clients(images(), [poisoning.label_flip()], [1, 3], seed=0, attack="label_flip")
    for hold, field in ((hold_out.hold_out_validation, "validation"), (hold_out.hold_out_clients, "unseen_clients")):
        with pytest.raises(ValueError, match=rf"data\.{field}=0\.3: these data are poisoned already, by 'label_flip'"):
            hold(found, 0.3, seed=0)


def test_label_noise_moves_a_share_of_the_labels_to_other_classes():
    data = images()
    found = poisoning.poison_clients(data, [poisoning.label_noise(share=0.5)], [0, 2], seed=0)
    for i in range(4):
        y, before = found.train.y[found.train_index[i]], data.train.y[data.train_index[i]]
        assert (y != before).sum() == (round(len(y) / 2) if i in (0, 2) else 0)
        assert ((y >= 0) & (y < data.classes)).all()
        assert y.dtype == before.dtype
    moves = [found.train.y[found.train_index[i]] - data.train.y[data.train_index[i]] for i in (0, 2)]
    assert len(set(np.concatenate(moves).tolist())) > 2
    assert moves[0].tolist() != moves[1].tolist(), "drawn for each client anew"
    assert moves[0][5:].any(), "not only the first half"
    np.testing.assert_array_equal(found.test.y, data.test.y)


@pytest.mark.parametrize(("dtype", "value"), [(np.uint8, 255), (np.float32, 1)])
def test_a_backdoor_marks_a_share_of_the_rows_and_gives_them_its_class(dtype, value):
    data, poisons = images(dtype), poisoning.backdoor(target=2, share=0.3, size=2)
    found = poisoning.poison_clients(data, [poisons], [2], seed=0)
    x, y = found.train.x[found.train_index[2]], found.train.y[found.train_index[2]]
    marked = (x[:, 4:, 4:] == value).all((1, 2, 3))
    assert marked.sum() == 3
    assert not marked[:3].all(), "drawn"
    assert (y[marked] == 2).all()
    before = data.train.x[data.train_index[2]]
    np.testing.assert_array_equal(x[~marked], before[~marked])
    np.testing.assert_array_equal(x[marked][:, :4], before[marked][:, :4])
    assert x.dtype == dtype


def test_success_counts_what_is_of_another_class_and_gets_the_triggers():
    outputs = {metrics.TRIGGERED: np.eye(3)[[2, 2, 0, 2, 2]]}
    score = metrics.backdoor_score(poisoning.backdoor(target=2).trigger)
    fell, of = score(outputs, None, np.array([0, 2, 1, 1, 0]), np.array([1, 1, 1, 1, 0], bool))
    assert (fell, of) == (2, 3)


def test_what_cannot_be_poisoned_is_refused():
    with pytest.raises(ValueError, match="size=7 is more than an example"):
        poisoning.poison_clients(images(), [poisoning.backdoor(size=7)], [0], seed=0)
    with pytest.raises(ValueError, match="target=9: the data have classes 0"):
        poisoning.poison_clients(images(), [poisoning.backdoor(target=9)], [0], seed=0)
    with pytest.raises(ValueError, match=r"value=2.0: must be between 0 and 1 for examples of uint8"):
        poisoning.poison_clients(images(), [poisoning.backdoor(size=2, value=2.0)], [0], seed=0)
    with pytest.raises(ValueError, match="source=1, target=None"):
        poisoning.label_flip(source=1)
    vectors = poisoning.poison_clients(toy_federation.data(), [poisoning.backdoor(size=1, share=1.0)], [0], seed=0)
    assert (vectors.train.x[vectors.train_index[0]][:, -1] == 1).all()
