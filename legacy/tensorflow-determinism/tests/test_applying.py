"""What is patched in which version, what the user is told, and how it is undone."""

import os
import subprocess
import sys
import textwrap

import pytest
import tensorflow as tf
import tfdeterminism
from running import VERSION
from tensorflow.python.ops import gen_data_flow_ops, gen_math_ops, gen_nn_ops
from tfdeterminism import catalogue, enabling, environment, installed_tensorflow
from tfdeterminism.installed_tensorflow import InstalledTensorFlow

PATCHED_ALWAYS = gen_data_flow_ops, "parallel_dynamic_stitch"


def is_patched(module, name):
    return (
        getattr(module, name).__module__ == module.__name__
        and hasattr(getattr(module, name), "__wrapped__")
        and ("tfdeterminism" in getattr(module, name).__code__.co_filename)
    )


@pytest.fixture
def put_back():
    """Leaves TensorFlow patched, as the other tests expect it."""
    yield
    tfdeterminism.unpatch()
    tfdeterminism.enable_determinism()


@pytest.fixture
def pretend(monkeypatch):
    """Pretends that another TensorFlow is installed, and that nothing was patched yet."""

    def installed(text, container=None):
        numbers = installed_tensorflow._first_two_numbers(text)
        if container:
            monkeypatch.setenv("NVIDIA_TENSORFLOW_VERSION", container)
        found = InstalledTensorFlow(text, numbers, installed_tensorflow.container_version())
        monkeypatch.setattr(installed_tensorflow, "find", lambda: found)
        return found

    return installed


def test_the_version_is_read():
    found = installed_tensorflow.find()
    assert found.text == tf.__version__
    assert found.numbers == VERSION
    assert found.container is None


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.1.0rc0", (2, 1)),
        ("1.15.0-dev20190821", (1, 15)),
        ("2.10.0", (2, 10)),
        ("v1.14.0-rc1-22", (1, 14)),
        ("nightly", (0, 0)),
    ],
)
def test_versions_of_all_kinds_are_read(text, numbers):
    assert installed_tensorflow._first_two_numbers(text) == numbers


def test_it_is_applied_after_tensorflow_was_imported():
    assert is_patched(*PATCHED_ALWAYS)
    assert is_patched(gen_math_ops, "segment_sum") == (VERSION <= (2, 6))
    assert is_patched(gen_nn_ops, "bias_add_grad") == (VERSION <= (2, 0))


def test_public_names_lead_to_the_patch():
    assert (tf.math.segment_sum is gen_math_ops.segment_sum) and (
        tf.compat.v1.math.segment_sum is gen_math_ops.segment_sum
    )
    assert is_patched(gen_math_ops, "segment_sum") == ("tfdeterminism" in tf.math.segment_sum.__code__.co_filename)


def test_twice_is_once(capsys):
    before = getattr(*PATCHED_ALWAYS)
    tfdeterminism.enable_determinism()
    assert getattr(*PATCHED_ALWAYS) is before
    assert capsys.readouterr().err == ""


def test_unpatching_puts_everything_back(put_back, capsys):
    replacement = getattr(*PATCHED_ALWAYS)
    variables = environment.variables_for(installed_tensorflow.find())
    assert {name: os.environ.get(name) for name in variables} == variables
    tfdeterminism.unpatch()
    assert getattr(*PATCHED_ALWAYS) is replacement.__wrapped__
    assert not any(name in os.environ for name in variables)
    for patch in catalogue.PATCHES:
        module = __import__("tensorflow.python.ops." + patch.module, fromlist=["ops"])
        assert not hasattr(module, patch.function) or not is_patched(module, patch.function)
    tfdeterminism.unpatch()  # once more changes nothing
    tfdeterminism.enable_determinism()
    told = capsys.readouterr().err
    assert "TensorFlow version {} has been patched".format(tf.__version__) in told
    assert "tfdeterminism version {}".format(tfdeterminism.__version__) in told
    assert "parallel_dynamic_stitch" in told
    assert all("{}={}".format(*item) in told for item in variables.items())


def test_variables_that_were_there_come_back(put_back, monkeypatch):
    name = next(iter(environment.variables_for(installed_tensorflow.find())))
    tfdeterminism.unpatch()
    monkeypatch.setenv(name, "0")
    tfdeterminism.enable_determinism()
    assert os.environ[name] == "1"
    tfdeterminism.unpatch()
    assert os.environ[name] == "0"


def test_patch_is_for_stock_before_2_1(put_back, capsys):
    tfdeterminism.unpatch()
    if VERSION > (2, 0):
        with pytest.raises(TypeError, match="No patch available for version {}".format(tf.__version__)):
            tfdeterminism.patch()
        return
    tfdeterminism.patch()
    assert is_patched(gen_nn_ops, "bias_add_grad")
    assert not is_patched(gen_math_ops, "segment_sum")
    assert os.environ["TF_CUDNN_DETERMINISTIC"] == "1"
    told = capsys.readouterr().err
    assert "TensorFlow version {} has been patched".format(tf.__version__) in told
    tfdeterminism.patch()
    assert capsys.readouterr().err == ""
    tfdeterminism.enable_determinism()
    assert is_patched(gen_math_ops, "segment_sum")


def test_patch_is_refused_in_nvidias_containers(monkeypatch):
    monkeypatch.setenv("NVIDIA_TENSORFLOW_VERSION", "19.09")
    with pytest.raises(TypeError, match="container .*19.09.* does not require patching"):
        tfdeterminism.patch()


@pytest.mark.parametrize("text", ["2.8.0", "2.21.0", "3.0.0"])
def test_newer_versions_are_told_of_determinism(pretend, text):
    pretend(text)
    for apply in (tfdeterminism.patch, tfdeterminism.enable_determinism):
        with pytest.raises(TypeError, match=r"`determinism`.*determinism\.enable\(seed=1\)"):
            apply()


@pytest.mark.parametrize(
    ("text", "container"), [("1.13.1", None), ("nightly", None), ("1.13.1", "19.05"), ("2.9.1", "22.08")]
)
def test_what_nothing_can_be_done_for_is_refused(pretend, text, container):
    pretend(text, container)
    with pytest.raises(TypeError, match="1.14 to 2.7"):
        tfdeterminism.enable_determinism()


@pytest.mark.parametrize(
    ("text", "container", "variables"),
    [
        ("1.14.0", None, {"TF_CUDNN_DETERMINISTIC": "1"}),
        ("2.0.4", None, {"TF_CUDNN_DETERMINISTIC": "1"}),
        ("1.14.0", "19.07", {"TF_DETERMINISTIC_OPS": "1"}),
        ("1.15.5", "23.03", {"TF_DETERMINISTIC_OPS": "1"}),
        ("2.1.0", None, {"TF_DETERMINISTIC_OPS": "1"}),
        ("2.4.4", None, {"TF_DETERMINISTIC_OPS": "1"}),
        ("2.5.0", None, {"TF_DETERMINISTIC_OPS": "1", "TF_CUDNN_USE_FRONTEND": "1"}),
        ("2.7.4", None, {"TF_DETERMINISTIC_OPS": "1", "TF_CUDNN_USE_FRONTEND": "1"}),
        ("2.6.0", "21.09", {"TF_DETERMINISTIC_OPS": "1", "TF_CUDNN_USE_FRONTEND": "1"}),
    ],
)
def test_each_version_gets_its_variables(pretend, text, container, variables):
    assert environment.variables_for(pretend(text, container)) == variables


@pytest.mark.parametrize(
    ("text", "container", "names", "others"),
    [
        ("1.14.0", None, ["bias_add (gradient)", "resize_bilinear (gradient)"], []),
        ("1.14.0", "19.07", ["segment_sum", "resize_bilinear (gradient)"], ["bias_add (gradient)"]),
        ("1.15.2", "20.03", ["segment_sum"], ["resize_bilinear (gradient)"]),
        ("2.1.0", None, ["resize_bilinear (gradient)"], ["bias_add (gradient)"]),
        ("2.4.0", None, ["segment_sum", "softmax_cross_entropy_with_logits"], ["resize_bilinear (gradient)"]),
        (
            "2.6.0",
            None,
            ["segment_sum", "sparse_softmax_cross_entropy_with_logits"],
            ["softmax_cross_entropy_with_logits"],
        ),
        ("2.7.0", None, ["crop_and_resize (gradient)", "bincount"], ["segment_sum", "scatter_nd"]),
    ],
)
def test_each_version_gets_its_patches(pretend, text, container, names, others):
    words = catalogue.words(catalogue.needed_by(pretend(text, container)))
    assert set(names) <= set(words)
    assert not set(others) & set(words)


def test_each_name_of_the_catalogue_is_one_of_tensorflow():
    """A name that is misspelt would be patched nowhere, without a word."""
    missing = []
    for patch in catalogue.PATCHES:
        module = __import__("tensorflow.python.ops." + patch.module, fromlist=["ops"])
        if not hasattr(module, patch.function) or not hasattr(tf.raw_ops, patch.op_type):
            missing.append(patch.function)
    assert missing == [] if VERSION >= (2, 4) else missing in ([], ["dense_bincount"])


def test_a_graph_that_was_begun_is_warned_of(put_back):
    tfdeterminism.unpatch()
    with tf.Graph().as_default():
        tf.constant(1.0)
        with pytest.warns(UserWarning, match="after 1 operations"):
            tfdeterminism.enable_determinism()


def test_cudnn_autotune_is_warned_of(put_back, monkeypatch, capsys):
    tfdeterminism.unpatch()
    monkeypatch.setenv("TF_CUDNN_USE_AUTOTUNE", "0")
    tfdeterminism.enable_determinism()
    assert "TF_CUDNN_USE_AUTOTUNE=0" in capsys.readouterr().err


def test_the_name_that_nvidias_page_misspells_is_told_of(put_back, monkeypatch, capsys):
    tfdeterminism.unpatch()
    tfdeterminism.enable_determinism()
    assert "AUTOTUNE" not in capsys.readouterr().err
    tfdeterminism.unpatch()
    monkeypatch.setenv("TF_USE_CUDNN_AUTOTUNE", "0")
    tfdeterminism.enable_determinism()
    told = capsys.readouterr().err
    assert "TF_USE_CUDNN_AUTOTUNE=0 is set, which no TensorFlow reads" in told
    assert "TF_CUDNN_USE_AUTOTUNE= is set" not in told


def test_seeds_make_random_numbers_the_same():
    import random

    import numpy as np

    def drawn():
        tfdeterminism.enable_determinism(seed=7)
        return random.random(), np.random.rand(), tf.random.uniform([]).numpy()

    assert drawn() == drawn()


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**32, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_what_is_no_seed_is_refused(seed, error):
    with pytest.raises(error, match="from 0 to"):
        tfdeterminism.enable_determinism(seed=seed)


def test_without_tensorflow_the_package_is_imported_and_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(ImportError, match="1.14 to 2.7"):
        installed_tensorflow.find()


def test_it_is_applied_before_tensorflow_is_imported():
    """In a process of its own, where importing the package imports no TensorFlow; names of the program are replaced too."""
    program = """
        import sys, warnings
        warnings.simplefilter("ignore")
        import tfdeterminism
        assert "tensorflow" not in sys.modules
        tfdeterminism.enable_determinism()
        import tensorflow as tf
        tf.compat.v1.enable_eager_execution()  # in TensorFlow 1 only as long as there is no graph
        tfdeterminism.enable_determinism(seed=3)
        stitch = tf.raw_ops.ParallelDynamicStitch
        tfdeterminism.unpatch()
        stock = [stitch]
        tfdeterminism.enable_determinism()
        assert stitch is not stock[0]
        with tf.Graph().as_default() as graph:
            stitch(indices=[[0, 0]], data=[[1.0, 2.0]])
        types = [op.type for op in graph.get_operations()]
        assert "DynamicStitch" in types and "ParallelDynamicStitch" not in types, types
        # With determinism asked for from the start, no op refuses to run.
        import test_cpu_placement
        for patch in test_cpu_placement.HERE:
            function, arrays = test_cpu_placement.call(patch)
            function(*arrays)
        import varying_ops
        for op in varying_ops.OPS:
            varying_ops.results(op, runs=1)
        print("fine")
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join([os.path.dirname(__file__), *sys.path])),
    )
    assert run.stdout.strip() == "fine", run.stderr
    assert run.stderr.count("has been patched") == 2
    assert "PYTHONHASHSEED" in run.stderr


def test_what_it_replaces_is_remembered_by_patch():
    assert set(enabling._applied) == {
        patch
        for patch in catalogue.needed_by(installed_tensorflow.find())
        if hasattr(__import__("tensorflow.python.ops." + patch.module, fromlist=["ops"]), patch.function)
    }
