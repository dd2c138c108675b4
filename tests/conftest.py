"""Settings of all tests: eight simulated devices, strict broadcasting, warnings as errors.

Programs of tests run for milliseconds but take seconds to compile, so XLA compiles them fast and
with few optimizations (`tests/quick.py`). FEDJAX_TEST_OPTIMISED=1 compiles as for users; one job of
CI does. Compiled programs are cached until the end of the session, for all of its workers.
"""

import functools
import gc
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from tests import launch, quick

os.environ["XLA_FLAGS"] = quick.flags(os.environ)
os.environ["FEDJAX_CACHE"] = ""  # tests do not cache decoded images
os.fsync = lambda fd: None  # no test survives a power cut; to wait for the disk takes a twentieth of the time
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # of other processes: a fifth of the time to lower and compile a program
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_traceback_in_locations_limit", 0)  # here too


def pytest_configure(config):
    """Creates the session's folder of compiled programs; xdist's workers use their controller's."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="programs")
        os.environ["FEDJAX_TEST_PROGRAMS"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["XDG_DATA_HOME"] = os.path.join(os.environ["FEDJAX_TEST_PROGRAMS"], "home")  # has the key that signs runs
    jax.config.update("jax_compilation_cache_dir", os.environ["FEDJAX_TEST_PROGRAMS"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collects tests without garbage collection, a quarter of the time; then freezes all imports, so that it skips them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        gc.enable()


@pytest.fixture(autouse=True)
def _strict():
    """Seeds NumPy's global generator, which some libraries still use; pyproject.toml makes warnings errors."""
    np.random.seed(0)  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "optax.global_norm is deprecated", DeprecationWarning)  # jax-privacy 2.0
        yield


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Returns the existing folder of data sets (FEDJAX_TEST_DATA, default ../shared/data)."""
    return Path(os.environ.get("FEDJAX_TEST_DATA", Path(__file__).parents[1] / "../shared/data")).resolve()


@pytest.fixture(scope="session")
def shared_data(data_folder) -> Path:
    """Returns the folder of public data sets; tests skip if it is absent."""
    if not data_folder.is_dir():
        pytest.skip(f"no real data at {data_folder}; set FEDJAX_TEST_DATA")
    return data_folder


@pytest.fixture(scope="session")
def launcher(tmp_path_factory):
    """Starts command lines; shared by all files, since its start costs all imports."""
    with launch.Launcher(tmp_path_factory.mktemp("launcher")) as started:
        yield started


@functools.lru_cache(8)  # asked again for each file of METHODS
def _case(nodeid: str) -> str:
    """Returns the method of `tests/toy.py` that a contract test checks; empty for other tests."""
    file, _, test = nodeid.partition("::")
    if not file.endswith("test_every_method.py"):
        return ""
    from tests import toy

    return max((name for name in toy.METHODS if f"[{name}-" in test or f"_{name}" in test), key=len, default="")


def _group(nodeid: str) -> str:
    """Returns the tests that share compiled rounds: a file, or a method with its contract."""
    file = nodeid.partition("::")[0]
    own = [path for path in METHODS if _case(nodeid).startswith(path.stem.removeprefix("test_"))]
    return f"tests/methods/{max(own, key=lambda path: len(path.stem)).name}" if own else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Sends a group to one worker; xdist's own marks have no effect under pytest 9.2."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return Groups(config, log)


METHODS = sorted((Path(__file__).parent / "methods").glob("test_*.py"))
SLOW = {  # files with more than about ten measured seconds of computing
    *(
        "test_command_line",
        "test_configs",
        "test_documents",
        "test_memory",
        "test_pages",
        "test_paper_tables",
        "test_processes",
        "test_resume",
        "test_speed",
        "test_weights",
    ),
    *(
        "test_analyze",
        "test_predict",
        "test_table",
        "test_evaluation",
        "test_manager",
        "test_rounds",
        "test_client_loop",
        "test_model_parallel",
        "test_instruction_task",
        "test_option_scoring",
        "test_analysis",
    ),
    *(
        "test_pipeline",
        "test_aggregators",
        "test_few_shot",
        "test_adapters",
        "test_local_batch_norm",
        "test_local_training",
        "test_conv",
        "test_decoder",
        "test_families",
    ),
    *(
        "test_accelerator",
        "test_from_nnx",
        "test_pool",
        "test_vit",
        "test_plots",
        "test_checkpoints",
        "test_export_model",
        "test_export_predictor",
        "test_loop",
        "test_plan_tpu",
    ),
}
QUICK_METHODS = {"fedavg", "scaffold", "fedskc", "fedper", "fedoa"}  # their contract and tests are in a quick run
SLOW_TESTS = {  # single tests of other files, by prefix
    "test_accounting": ("test_noise_of_pfl_research",),
    "test_numpy_files": ("test_npz_reads_",),
    "test_compile_worker": ("test_a_language_model", "test_streamed", "test_what_is_lowered"),
    "test_composed": ("test_a_run_with_all_of_them", "test_a_sample_keeps_the_contract"),
    "test_derived": ("test_an_unseen_domain_of_pacs",),
    "test_earlier": ("test_a_run_of_an_earlier_commit",),
    "test_experiment": ("test_augmentation_reaches",),
    "test_federated_data": ("test_pacs_by_domain",),
    "test_fedoa": (
        "test_another_server",
        "test_equal_adapters",
        "test_released_personal",
        "test_the_distance_moves",
        "test_the_global_model_is",
        "test_without_the_regulariser",
    ),
    "test_fedskc": (
        "test_a_low_temperature",
        "test_equals_the_loops_when_few",
        "test_every_option",
        "test_features_can",
        "test_released_equals",
        "test_the_contrast_at",
        "test_the_ramp",
        "test_the_scale_is",
        "test_variants_equal",
        "test_without_its_parts",
    ),
    "test_given": ("test_a_loss_is", "test_all_at_once", "test_what_has_no_module"),
    "test_devices": ("test_records_have_time", "test_a_resumed_run", "test_a_run_is_resumed"),
    "test_participation": ("test_a_profile_alone", "test_off_the_devices", "test_records_say"),
    "test_early_stopping": (
        "test_a_run_ends_there",
        "test_a_run_that_is_resumed",
        "test_early_stopping",
        "test_scores_are_those_of_the_validation",
        "test_the_summary_the_state",
    ),
    "test_vmapped_runs": (
        "test_a_seed_that_diverges",
        "test_seeds_are_their_runs_alone",
    ),
    "test_loggers": ("test_wandb_offline",),
    "test_plan": ("test_the_command_plans",),
    "test_load_pretrained": ("test_the_real_encoder",),
    "test_streaming": ("test_every_number_is_that_of_data",),
    "test_robust_aggregation": ("test_an_own_rule_from_a_file",),
    "test_runner": ("test_one_seed_of_everything",),
    "test_runs": ("test_a_run_tells_its_epsilon",),
    "test_scaffold": ("test_frozen_controls", "test_one_full_batch"),
    "test_search": ("test_a_real_search", "test_a_search_that_is_killed"),
    "test_settings": ("test_rows_of_tables",),
    "test_sweep": ("test_a_table_trains", "test_seeds_in_one_program", "test_the_command_runs"),
    "test_matrix_factorization": ("test_strategies_are_as_good",),
    "test_table_clients": (
        "test_a_row_without_files",
        "test_differences_are_drawn",
        "test_intervals_are_drawn",
        "test_the_worst_tenth",
        "test_without_files",
    ),
    "test_table_rounds": (
        "test_targets_that_some_seeds",
        "test_the_numbers_of_a_table",
    ),
    "test_targets": ("test_a_later_token", "test_all_scopes_have", "test_next_tokens_are_learnt"),
    "test_unseen": ("test_a_table_has_the_gap",),
    "test_unseen_clients": ("test_scores_of_fed", "test_statistics_that_stay", "test_two_architectures"),
    "test_pretrained_weights": ("test_transformers",),
    "test_apply_transforms": ("test_who_sends_what_is_not_finite",),
}


def _slow(item) -> bool:
    file = item.path.stem
    if file == "test_every_method":
        return _case(item.nodeid) not in QUICK_METHODS
    if item.name.startswith(SLOW_TESTS.get(file, ())):
        return True
    return file in SLOW or (item.path.parent.name == "methods" and file.removeprefix("test_") not in QUICK_METHODS)


def pytest_collection_modifyitems(items):
    """Marks slow tests: `-m "not slow"` takes minutes."""
    for item in items:
        if _slow(item):
            item.add_marker(pytest.mark.slow)


KEPT = 2**30  # bytes of compiled programs and traces that tests may keep for later ones
_resident_before = 0


def _resident() -> int | None:
    """Returns the resident bytes of this process; None where they are unknown."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else None


def pytest_runtest_teardown(item, nextitem):
    """Drops the compiled programs of a group if there are many.

    Those of the whole suite would take many gigabytes; dropping after every group would compile
    shared programs again. Results of `toy.reference` stay, for other groups to compare with.
    """
    global _resident_before
    if nextitem is None or _group(item.nodeid) != _group(nextitem.nodeid):
        for case in sys.modules["tests.toy"].CASES.values() if "tests.toy" in sys.modules else ():
            case.drop_offloaded_run()
        if (_resident() or 2 * KEPT) > _resident_before + KEPT:
            jax.clear_caches()
            gc.collect()
            _resident_before = _resident() or 0
