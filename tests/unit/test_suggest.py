"""suggest: the expected errors against measured ones, the model against simulation, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import pi, sqrt

import numpy as np
import pytest

from heathaze import cli
from heathaze.errors import InputError
from heathaze.evaluate import suggest as model
from heathaze.evaluate import suggest_measure as measure
from heathaze.evaluate.suggest import BOXES, GOOD, KS, Feed, Setting, assess, suggest
from heathaze.evaluate.suggest_table import TABLE
from heathaze.learn.denoiser import discrete_laplace, noise_variance
from heathaze.learn.shrink import shrink
from heathaze.policy import Refine, parse_policy
from heathaze.release.refine import Measured, refine
from heathaze.release.sums import box_sums, prefix_sum

FEED = Feed(200_000, 20, Decimal(1), 400)
BOXED = 1_500
"""Records that boxes are measured at."""


def measured_errors(points: measure.Points, setting: Setting, epsilon: Decimal, seed: int) -> list[float]:
    """Mean absolute errors of BOXES at records of the bounded sample: a release in numpy against all events, exactly counted."""
    random = np.random.default_rng(seed)
    kept = points.kept(setting.k, seed)
    counts = points.of(kept).count(setting.cell_metres)
    scale = setting.k / (Fraction(epsilon) * Fraction(98, 100))
    noisy = counts + discrete_laplace(random, float(scale), counts.shape)
    found = shrink(noisy, [], scale)
    size = Measured(len(kept), len(points), noise_variance(scale))
    published = prefix_sum(refine(found.values, found.deviation, noisy, size, Refine()).values)
    everything = prefix_sum(points.count(setting.cell_metres))
    chosen = random.choice(kept, BOXED)
    errors = []
    for _, side in BOXES:
        edges = points.boxes(chosen, side, setting.cell_metres)
        if side is None:
            (truth,) = box_sums([everything], *edges)
        else:
            truth = points.around(points.middles(chosen, side), points.slice[chosen], side)
        errors.append(float(np.abs(box_sums([published], *edges)[0] - truth).mean()))
    return errors


@pytest.mark.parametrize(
    ("kilometres", "users", "events_per_user", "epsilon", "shape", "seed"),
    [(18.0, 30_000, 20.0, Decimal(1), "rings", 1), (27.0, 50_000, 12.0, Decimal(2), "corridors", 2)],
)
def test_expected_errors_are_within_a_factor_of_the_measured_ones(kilometres, users, events_per_user, epsilon, shape, seed):
    assert seed not in {drawn for drawn, _ in measure.DRAWN}
    feed = Feed(users, events_per_user, epsilon, kilometres**2, shape=shape)
    setting = replace(suggest(feed).setting, denoiser="shrink")
    points = measure.points_of(measure.square_city(kilometres, users, events_per_user, shape, seed), setting.slices)
    found = np.array(measured_errors(points, setting, epsilon, seed))
    factors = {}
    for told in (shape, None):
        expected = np.array([one.absolute for one in assess(replace(feed, shape=told), setting).expected])
        factors[told] = expected / found
        print(
            f"{shape}, told {told}, {setting}: expected {expected.round(1)}, measured {found.round(1)}, {factors[told].round(2)}"
        )
    assert (np.abs(np.log(factors[shape])) < np.log(1.5)).all(), factors
    # Not knowing how people stand costs more.
    assert (np.abs(np.log(factors[None])) < np.log(2.5)).all(), factors


def test_the_mean_absolute_error_of_sampling_is_that_of_a_simulation():
    feed = Feed(5_000, 10, Decimal(1), 100)
    k, others, own, gamma = 5, 0.002, 0.05, 4.0
    law = model._Sampling(model._activity(feed), k, others, own, feed.users, 1.0)
    off = model._Off(noise_low=-2.0, noise=3.0, cut_low=-1.0, cut=2.0)
    random, activity = np.random.default_rng(0), model._activity(feed)
    odds = np.append(activity.odds, 1 - activity.odds.sum())
    events = np.rint(np.append(activity.events, 0)).astype(int)
    kept = np.minimum(events, k)
    weight = odds * kept
    sums = []
    for _ in range(20_000):
        crowd = random.choice([value for _, value in model._CROWDS], p=[chance for chance, _ in model._CROWDS])
        company = random.choice(len(events), random.poisson(feed.users * others / own * crowd), p=odds)
        record = random.choice(len(events), p=weight / weight.sum())
        inside = random.binomial(events[company], own)
        sample = random.binomial(inside, kept[company] / np.maximum(events[company], 1))
        beside = random.binomial(events[record] - 1, own)
        seen = random.binomial(beside, kept[record] / events[record])
        noise = off.noise_low + off.noise * sqrt(pi / 2) * random.normal()
        cut = crowd * (off.cut_low + off.cut * sqrt(pi / 2) * random.normal())
        sums.append(gamma * (sample.sum() + 1 + seen) - inside.sum() - 1 - beside + noise + cut)
    assert law.mean_absolute(gamma, off) == pytest.approx(np.abs(sums).mean(), rel=0.05)


@pytest.mark.parametrize(("tail", "k"), [(1.5, 3), (1.5, 30), (3.0, 10)])
def test_the_share_that_bounding_keeps_is_that_of_a_city(tail, k):
    city = measure.square_city(8, 20_000, 15, "rings", seed=3, tail=tail)
    points = measure.points_of(city, 1)
    found = len(points.kept(k, 0)) / len(points)
    assert model._kept(Feed(20_000, 15, Decimal(1), 64, tail=tail), k) == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("across", [0.3, 0.9, 1.0, 1.7, 5.0])
def test_the_blur_of_a_box_is_the_mean_over_its_offsets(across):
    starts = np.linspace(0, 1, 2_000, endpoint=False)
    cells = np.arange(int(across) + 3)
    shares = np.minimum(cells + 1, starts[:, None] + across) - np.maximum(cells, starts[:, None])
    assert model.blur(across) == pytest.approx((np.maximum(shares, 0) ** 2).sum(1).mean(), rel=1e-3)


def test_the_table_is_made_again_from_its_seeds():
    town = model.TOWNS.index(5)
    again = measure._middle([measure.crowd("rings", 5, *drawn) for drawn in measure.DRAWN])
    assert again == pytest.approx(TABLE["cities"]["crowd"]["rings"][town], rel=0.02)


def test_the_table_is_written_as_it_is_read(tmp_path):
    measure.write_table(TABLE, tmp_path / "table.py")
    names: dict = {}
    exec((tmp_path / "table.py").read_text(), names)
    assert names["TABLE"] == TABLE


def test_smoothing_keeps_a_power_law_and_fades_below_what_was_measured():
    at = np.geomspace(1, 100, 50)
    smooth = measure._smooth(at, [2.0] * 50, [0.1, 1, 10, 1_000])
    assert smooth == pytest.approx([2, 2, 2, 2])
    assert measure._smooth(at, [2.0] * 50, [0.1, 10], fades=True) == pytest.approx([0.2, 2])


def relative(feed: Feed, setting: Setting) -> list[float]:
    return [one.relative for one in assess(feed, setting).expected]


def test_more_epsilon_and_more_users_make_every_error_smaller():
    setting = Setting(5, 200, 8)
    errors = relative(FEED, setting)
    for better in (replace(FEED, epsilon=Decimal(4)), replace(FEED, users=2_000_000)):
        assert all(less < more for less, more in zip(relative(better, setting), errors, strict=True))


def test_fewer_slices_and_larger_cells_make_the_error_of_a_cell_smaller():
    assert relative(FEED, Setting(5, 200, 4))[0] < relative(FEED, Setting(5, 200, 24))[0]
    assert relative(FEED, Setting(5, 400, 8))[0] < relative(FEED, Setting(5, 100, 8))[0]


@pytest.mark.parametrize("feed", [FEED, Feed(20_000, 30, Decimal(2), 400), Feed(3_000, 8, Decimal("0.5"), 150, days=7)])
def test_no_neighbour_of_the_suggestion_is_better(feed):
    best = suggest(feed).setting
    judged = model._judge(feed, best)
    place = KS.index(best.k)
    for k in KS[max(0, place - 1) : place + 2]:
        assert model._judge(feed, replace(best, k=k)) >= judged
    for part in (0.6, 1.7):
        assert model._judge(feed, replace(best, cell_metres=best.cell_metres * part)) >= judged


def test_slices_are_as_fine_as_the_error_allows():
    best = suggest(FEED).setting
    assert model._judge(FEED, best) <= GOOD
    few = Feed(2_000, 10, Decimal(1), 400)
    assert suggest(few).setting.slices == 1 and model._judge(few, suggest(few).setting) > GOOD


def test_bayes_is_suggested_but_where_the_noise_is_negligible():
    assert suggest(FEED).setting.denoiser == "bayes"
    loud = Feed(5_000_000, 20, Decimal(100), 100)
    assert suggest(loud, cell_metres=250, slices=1).setting.denoiser == "none"


def test_what_is_given_is_taken():
    setting = suggest(FEED, k=7, cell_metres=130.0, slices=5).setting
    assert (setting.k, setting.cell_metres, setting.slices) == (7, 130, 5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"users": 0}, "users"),
        ({"events_per_user": 0.0}, "events per user"),
        ({"epsilon": Decimal(0)}, "epsilon"),
        ({"epsilon": Decimal("inf")}, "epsilon"),
        ({"area_km2": 0.5}, "area"),
        ({"area_km2": 10**6}, "area"),
        ({"days": 0}, "period"),
        ({"tail": 1.0}, "tail"),
        ({"shape": "round"}, "rings"),
    ],
)
def test_a_feed_that_cannot_be_is_refused(change, named):
    with pytest.raises(InputError, match=named):
        replace(FEED, **change)


def test_an_epsilon_below_which_cells_say_nothing_is_refused():
    with pytest.raises(InputError, match="k / epsilon"):
        suggest(replace(FEED, epsilon=Decimal("0.00001")))


NUMBERS = ["suggest", "--users", "20000", "--events-per-user", "30", "--epsilon", "2"]
EDGES = ["--south", "37.70", "--west", "-122.52", "--north", "37.88", "--east", "-122.292"]
REST = '[dataset]\nname = "toy"\n[budget]\ncap = 100\n'


def test_the_snippet_is_a_policy_with_what_was_suggested(capsys):
    assert cli.main([*NUMBERS, *EDGES, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    policy = parse_policy(REST + report["toml"])
    setting = report["setting"]
    assert policy.privacy.max_events_per_user == setting["k"]
    assert policy.grid.cell_metres == Decimal(str(setting["cell_metres"]))
    assert policy.period.slices == setting["slices"] and policy.denoise.method == setting["denoiser"] == "bayes"
    assert policy.privacy.declared_event_count == 600_000 and policy.privacy.epsilon == 2
    assert [one["box"] for one in report["expected"]] == [name for name, _ in BOXES]
    assert all(one["relative"] == pytest.approx(one["absolute"] / one["typical"]) for one in report["expected"])


def test_the_area_of_edges_is_that_of_a_box_of_the_same_size(capsys):
    cli.main([*NUMBERS, *EDGES, "--json"])
    by_edges = json.loads(capsys.readouterr().out)
    cli.main([*NUMBERS, "--area", str(by_edges["feed"]["area_km2"]), "--json"])
    by_area = json.loads(capsys.readouterr().out)
    assert by_edges["feed"]["area_km2"] == pytest.approx(401, rel=0.01)
    assert by_area["expected"] == by_edges["expected"] and "# south" in by_area["toml"]


def test_a_policy_gives_area_period_and_epsilon_and_is_told_how_it_stands(tmp_path, capsys):
    policy = tmp_path / "policy.toml"
    now = "days = 7\nslices = 14\n[grid]\nsouth = 37.70\nwest = -122.52\nnorth = 37.88\neast = -122.292\nrows = 144\ncols = 144\n"
    privacy = "[privacy]\nepsilon = 1.5\nmax_events_per_user = 300\ndeclared_event_count = 1\n"
    policy.write_text(f"{REST}[period]\n{now}{privacy}")
    assert cli.main([*NUMBERS[:5], "--policy", str(policy), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["feed"]["days"] == 7 and report["feed"]["epsilon"] == "1.5"
    stands = report["policy_now"]
    assert stands["setting"]["k"] == 300 and stands["setting"]["cell_metres"] == pytest.approx(139, rel=0.01)
    assert report["expected"][2]["relative"] < stands["expected"][2]["relative"]
    assert cli.main([*NUMBERS[:5], "--policy", str(policy)]) == 0
    assert "the policy as it stands: k 300" in capsys.readouterr().out


def test_the_text_has_a_line_for_every_box_and_the_snippet(capsys):
    assert cli.main([*NUMBERS, "--area", "400"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name, _ in BOXES) and "[privacy]\nepsilon = 2\n" in text
    assert "can hardly be published" not in text
    assert cli.main(["suggest", "--users", "50", "--events-per-user", "2", "--epsilon", "0.5", "--area", "400"]) == 0
    assert "can hardly be published" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*NUMBERS], "one of --area"),
        ([*NUMBERS, "--area", "400", *EDGES], "more than one"),
        ([*NUMBERS, *EDGES[:6]], "--east"),
        ([*NUMBERS, "--area", "-3"], "the area must be"),
        ([*NUMBERS, "--south", "38", *EDGES[2:]], "grid.south < grid.north"),
        ([*NUMBERS[:5], "--area", "400"], "--epsilon"),
        ([*NUMBERS[:5], "--area", "400", "--epsilon", "two"], "must be a number"),
        ([*NUMBERS, "--area", "400", "--epsilon", "0"], "epsilon must be above 0"),
        ([*NUMBERS, "--area", "400", "--period-days", "0"], "the period must be"),
        ([*NUMBERS, "--area", "400", "--slices", "7"], "--slices must divide"),
        ([*NUMBERS, "--area", "400", "--cell-metres", "0"], "--cell-metres must be"),
        ([*NUMBERS, "--area", "40000", "--cell-metres", "1"], "the grid must be"),
        ([*NUMBERS, "--area", "400", "--cell-metres", "90000"], "a cell must be"),
        ([*NUMBERS, "--area", "400", "--max-events-per-user", "0"], "--max-events-per-user must be"),
        ([*NUMBERS, "--policy", "nowhere.toml"], "nowhere.toml"),
        (["suggest", "--users", "many", "--events-per-user", "3", "--area", "4"], "invalid int"),
    ],
)
def test_mistakes_are_named_and_exit_with_1(arguments, said, capsys):
    try:
        code = cli.main(arguments)
    except SystemExit as stopped:  # the parser's own
        code = stopped.code
    assert code == 1
    assert said in capsys.readouterr().err
