import numpy as np
import pytest

from fedjax_core.algorithm import targets_of
from fedjax_core.data import federated_data, sources
from fedjax_core.data.sources import derived, published_images, toy
from tests.fedjax_core.data.sources.written import assert_same, cifar_files, pacs, write_folder

CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
    forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
    mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
    sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale willow_tree
    wolf woman worm
"""
FC100_TEST = """
    beaver dolphin otter seal whale    bee beetle butterfly caterpillar cockroach    fox porcupine possum raccoon skunk
    baby boy girl man woman
"""  # aquatic mammals, insects, medium mammals, people
FC100_VALIDATION = """
    bear leopard lion tiger wolf    camel cattle chimpanzee elephant kangaroo    crab lobster snail spider worm
    hamster mouse rabbit shrew squirrel
"""  # large carnivores, large omnivores and herbivores, invertebrates but insects, small mammals


@pytest.mark.parametrize(("test", "unseen"), [("test", FC100_TEST), ("validation", FC100_VALIDATION)])
def test_fc100_divides_the_classes_by_superclass(tmp_path, monkeypatch, test, unseen):
    spec = published_images.CIFAR100._replace(parts={"train.bin": 300, "test.bin": 100})
    monkeypatch.setattr(published_images, "CIFAR100", spec)
    files, *parts = cifar_files(spec)
    files["fine_label_names.txt"] = "\n".join(CIFAR100.split()).encode()
    write_folder(tmp_path, spec, files)
    x = np.concatenate([part[0] for part in parts])
    names = [CIFAR100.split()[c] for part in parts for c in part[1][:, 1]]
    data = sources.load("fc100", tmp_path, test=test)
    others = {*FC100_TEST.split(), *FC100_VALIDATION.split()}
    assert data.class_names == (*(n for n in CIFAR100.split() if n not in others), *sorted(unseen.split()))
    assert len(data.class_names) == 80
    rows = [[i for i, n in enumerate(names) if n not in others], [i for i, n in enumerate(names) if n in unseen.split()]]
    y = [[data.class_names.index(names[i]) for i in part] for part in rows]
    assert max(y[0]) < 60 <= min(y[1])
    assert_same(data, x[rows[0]], y[0], x[rows[1]], y[1])


def test_fc100_wants_all_of_cifar100_in_its_order(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"fc100: of='digits' has 10 classes, 0, 1, 2 \.\.\.: must have the 100 of CIFAR-100"):
        sources.load("fc100", of="digits")
    with pytest.raises(ValueError, match="unknown FC100 test 'train'; allowed: test, validation"):
        sources.load("fc100", test="train")
    with pytest.raises(FileNotFoundError, match=r"cifar-100-binary\.tar\.gz"):
        sources.load("fc100", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"tfds:cifar100 is not prepared"):
        sources.load("fc100", tmp_path, of="tfds:cifar100")


def test_unseen_classes_are_in_the_test_set_alone():
    whole = toy.digits()
    data = sources.load("unseen", of="digits", classes=(7, 0))
    assert data.class_names == tuple("12345689" + "07")
    assert data.name == "digits_unseen"
    x, y = np.concatenate([whole.train.x, whole.test.x]), np.concatenate([whole.train.y, whole.test.y])
    seen, rest = np.flatnonzero((y != 0) & (y != 7)), np.flatnonzero((y == 0) | (y == 7))
    assert_same(data, x[seen], ["12345689".index(str(c)) for c in y[seen]], x[rest], [8 if c == 0 else 9 for c in y[rest]])


@pytest.mark.parametrize("classes", [(), (-1, 2), (3, 3), tuple(range(10))])
def test_unseen_classes_are_some_of_those_there_are(classes):
    with pytest.raises(ValueError, match=r"unseen: classes=\(.*\): must be some, not all, of the labels 0 to 9 of 'digits'"):
        sources.load("unseen", of="digits", classes=classes)


def test_an_unseen_domain_is_the_test_set():
    whole = sources.load("rotated", of="digits", degrees=(0, 90))
    data = sources.load("unseen_domain", of="rotated(of='digits', degrees=(0, 90))", domain="90")
    assert data.name == "digits_rotated_unseen_90"
    x, y = (np.concatenate(column) for column in zip(whole.train, whole.test, strict=True))
    assert whole.train_domains is not None
    assert whole.test_domains is not None
    turned = np.concatenate([whole.train_domains, whole.test_domains]) == 1
    assert_same(data, x[~turned], y[~turned], x[turned], y[turned])
    assert data.train_domains is not None
    assert not data.train_domains.any()
    with pytest.raises(ValueError, match=r"unknown domain of rotated\(.*\) '45'; allowed: 0, 30, 60, 90"):
        sources.load("unseen_domain", of="rotated(of='digits')", domain="45")
    with pytest.raises(ValueError, match="unseen_domain: of='digits' has no domains"):
        sources.load("unseen_domain", of="digits", domain="0")


def test_turned_images_keep_their_labels_and_clients_and_so_does_an_unseen_domain():
    images, truths = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4, 1), np.arange(18).reshape(6, 3) % 2
    whole = sources.from_arrays(images, truths, images, truths, "abc", targets="labels", train_clients=[0, 0, 1, 1, 2, 2])
    turned = derived.rotated(lambda _: whole, "given", (0, 180))
    assert np.array_equal(turned.train_clients, whole.train_clients)
    assert np.array_equal(turned.train.y, whole.train.y)
    data = derived.unseen_domain(lambda _: turned, "given", "180")
    assert targets_of(data.train.y) == targets_of(data.test.y) == "labels"
    assert sorted([*map(tuple, data.train.y), *map(tuple, data.test.y)]) == sorted([*map(tuple, whole.train.y)] * 2)


def test_an_unseen_domain_of_pacs_leaves_three_clients(shared_data):
    """All 9,991 images stand on one side or the other; each client has one of the other domains,
    and everybody the same test.
    """
    others = derived.unseen_domain(lambda _: pacs(shared_data), "pacs", "photo")
    data = federated_data.federate(others, {"name": "by_domain"}, clients=3, seed=0)
    assert data.label_table.sum(1).tolist() == [2048, 2344, 3929]
    assert data.test_label_table.sum(1).tolist() == [1670] * 3


def test_turned_digits_have_an_angle_per_domain():
    whole, data = toy.digits(), sources.load("rotated", of="digits")
    assert data.domain_names == ("0", "30", "60", "90")
    assert data.train_domains is not None
    assert np.ptp(np.bincount(data.train_domains)) <= 1
    assert data.train.y.tolist() == whole.train.y.tolist()
    for domain, turn in ((0, 0), (3, 1)):
        mine = data.train_domains == domain
        np.testing.assert_array_equal(data.train.x[mine], np.rot90(whole.train.x[mine], turn, (1, 2)))
    again = sources.load("rotated", of="digits")
    np.testing.assert_array_equal(again.test.x, data.test.x)
    with pytest.raises(ValueError, match=r"rotated: degrees=\(0, 0\): must be two or more angles"):
        sources.load("rotated", of="digits", degrees=(0, 0))


def test_only_some_classes():
    whole, data = toy.digits(), sources.load("only", of="digits", classes=(7, 0))
    assert (data.name, data.class_names) == ("digits_only", ("7", "0"))
    for part, found in ((whole.train, data.train), (whole.test, data.test)):
        rows = np.flatnonzero((part.y == 0) | (part.y == 7))
        np.testing.assert_array_equal(found.x, part.x[rows])
        assert found.y.tolist() == [int(c == 0) for c in part.y[rows]]
        assert found.y.dtype == np.int32


@pytest.mark.parametrize("classes", [(), (3,), (3, 10), (3, 3)])
def test_only_classes_that_there_are(classes):
    with pytest.raises(ValueError, match=r"only: classes=\(.*\): must be two or more of the labels 0 to 9 of 'digits'"):
        sources.load("only", of="digits", classes=classes)


@pytest.mark.parametrize(("classes", "part"), [((0, 1), "test"), ((2, 3), "training")])
def test_only_classes_with_examples_of_both_parts(classes, part):
    x = np.zeros((4, 2), np.float32)
    whole = sources.from_arrays(x, [0, 1, 0, 1], x, [2, 3, 2, 3])
    with pytest.raises(ValueError, match=rf"only: classes=\(., .\) have no {part} examples in 'given': must have some of both"):
        derived.only(lambda _: whole, "given", classes)


def test_resplit_tests_on_a_part_of_the_training_rows():
    whole = toy.digits().train
    data = sources.load("resplit", of="digits", test_fraction=0.2)
    assert data.name == "digits_resplit"
    assert len(data.test.y) == round(0.2 * len(whole.y))
    both = np.concatenate([data.train.x, data.test.x])
    assert sorted(row.tobytes() for row in both) == sorted(row.tobytes() for row in whole.x)
    share = np.bincount(data.test.y) / np.bincount(whole.y)
    np.testing.assert_allclose(share, 0.2, atol=0.01)
    again = sources.load("resplit", of="digits")
    np.testing.assert_array_equal(again.test.x, data.test.x)
    with pytest.raises(ValueError, match=r"test_fraction=1 must be between 0 and 1"):
        sources.load("resplit", of="digits", test_fraction=1)


@pytest.mark.parametrize("of", ["diabetes", "text(length=80)"])
def test_resplit_of_what_are_no_classes_does_not_sort_by_targets(of):
    """Where examples with equal targets were kept together, those with the smallest ones were
    tested on.
    """
    whole = sources.load(of).train.y.astype(float)
    data = sources.load("resplit", of=of)
    spread = whole[:, 0].std() / len(data.test.y) ** 0.5
    assert abs(data.test.y[:, 0].mean() - whole[:, 0].mean()) < 3 * spread
    if data.train_clients is not None:
        whose = sources.load(of).train_clients
        tests = np.bincount(data.test_clients, minlength=whose.max() + 1)
        assert np.abs(tests - 0.2 * np.bincount(whose)).max() < 1


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        ("only(of='multilabel', classes=(0, 1))", "labels"),
        ("unseen(of='diabetes', classes=(0,))", "numbers"),
        ("fc100(of='diabetes')", "numbers"),
    ],
)
def test_classes_are_chosen_where_there_are_some(spec, kind):
    with pytest.raises(ValueError, match=rf"of='\w+'\) needs classes, the data have {kind}"):
        sources.load(spec)
