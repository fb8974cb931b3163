"""``dgcl advise``: the command around the advisor; what it prints, and its exit status."""

import pytest

ASK = "advise graph.npz --part part.npy --topology line.json --model gcn:8,4,2"


@pytest.mark.parametrize(
    "options, status, text",
    [
        ("", 0, "is chosen"),
        ("--memory-limit 1GB --rates 100,1000", 0, "rates: as given"),
        ("--memory-limit 400", 1, "nothing fits in 400 B of a rank"),
        ("--json", 0, "dgcl.nn.InPlaceGCN([8, 4, 2])"),
        ("--inference -d float16 --optimizer sgd", 0, "inference, float16"),
    ],
)
def test_what_is_printed(options, status, text, run, folder):
    outcome = run(*ASK.split(), *options.split())
    assert outcome.status == status
    assert text in outcome.out


def test_sizes_alone_and_several_ranks(run, folder):
    argv = "advise --synthetic web-google --scale 0.01 --model gcn:8,4 --topology uniform4 --ranks 1,2,2,4"
    assert "efficiency" in run(*argv.split()).out
    assert "--undirected goes with a graph" in run(*argv.split(), "--undirected").err
    assert [each["ranks"] for each in run(*argv.split(), "--json").json["ranks"]] == [1, 2, 4]


@pytest.mark.parametrize(
    "options, message",
    [
        ("--rates 900,inf", "dgcl advise: rates must be 'here', or GB/s of sums"),
        ("--model gcn:8", "model must be written like"),
        ("--ranks 9", "has 3 devices"),
        ("--memory-limit 10", "memory_limit must be above the model's parameters"),
        ("--scale 2", "--scale goes with --synthetic"),
    ],
)
def test_bad_options(options, message, run, folder):
    outcome = run(*ASK.split(), *options.split())
    assert outcome.status == 2
    assert message in outcome.err
