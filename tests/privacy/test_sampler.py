from __future__ import annotations

import hashlib
import itertools
import math
import pickle
import traceback
from collections.abc import Callable
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from scipy import stats

from heathaze.collect import entropy
from heathaze.collect.entropy import (
    CELLS,
    CHUNK,
    SELF_CHECK,
    TOTALS,
    DiscreteLaplace,
    NoiseKey,
    draw_single,
    sampler,
    self_check,
)
from heathaze.errors import SamplerBroken
from heathaze.grid import Grid

SECRET = hashlib.sha256(b"a key that every run of these tests shares").digest()
KEY = NoiseKey(SECRET)
NIGHTLY = Fraction(1000, 47)
"""Scale of the nightly policy: 20 / 0.94."""

PRECISION = 600
"""Bits of the reference arithmetic, far beyond what any comparison here needs."""


def key_number(i: int) -> NoiseKey:
    return NoiseKey(hashlib.sha256(f"key {i}".encode()).digest())


def survival(scale: Fraction, g: int, bits: int) -> mpmath.mpf:
    """2^bits P(|X| >= g), to PRECISION bits."""
    with mpmath.workprec(PRECISION):
        s = mpmath.mpf(scale.numerator) / scale.denominator
        return mpmath.ldexp(2 * mpmath.exp(-g / s) / (1 + mpmath.exp(-1 / s)), bits)


def floor_of(x: mpmath.mpf) -> int:
    with mpmath.workprec(PRECISION):
        return int(mpmath.floor(x))


def fraction_of(x: mpmath.mpf) -> float:
    with mpmath.workprec(PRECISION):
        return float(x - mpmath.floor(x))


def table_of(scale: Fraction, bits: int) -> list[int]:
    """floor(2^bits P(|X| >= g)) for g = 1, 2, ... while it is above 0."""
    floors = (floor_of(survival(scale, g, bits)) for g in itertools.count(1))
    return list(itertools.takewhile(lambda floor: floor > 0, floors))


def draws(scale: Fraction, count: int, key: NoiseKey = KEY) -> np.ndarray:
    return sampler(scale).sample(key, CELLS, 0, count)


# The bounds and the table


@pytest.mark.parametrize("precision", [8, 63, 127, 191])
@pytest.mark.parametrize(
    "x",
    ["0", "1/1000000000000", "1/20000", "47/1000", "1/3", "1/2", "1", "2", "7/2", "4", "1023", "1024/1", "123456/7", "1/1024"],
)
def test_bounds_of_the_exponential_hold_its_value_and_are_narrow(x, precision):
    x = Fraction(x)
    low, high = entropy._exp_bounds(x, precision)
    with mpmath.workprec(30_000):  # exp(-17637) has 25,000 zeros after the point
        value = mpmath.ldexp(mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator), precision)
        assert low <= value <= high
    assert high - low <= 2


@pytest.mark.parametrize("scale", ["1/7", "1/2", "1", "7/5", "20", "1000/47", "12345/67"])
def test_every_threshold_of_the_table_is_the_floor_of_the_law(scale):
    scale = Fraction(scale)
    table = entropy._thresholds(scale, 63)
    assert table == table_of(scale, 63)
    assert len(table) == pytest.approx(43.7 * scale, abs=0.1 * scale + 1)


@pytest.mark.parametrize("scale", ["1/7", "1", "1000/47", "20000", "1000000000"])
def test_bounds_of_single_thresholds_hold_the_law_and_are_less_than_2_apart(scale):
    scale = Fraction(scale)
    for bits, g in itertools.product((63, 127, 191), (1, 2, 3, 17, 100, math.ceil(10 * scale), math.ceil(40 * scale))):
        lower, upper = entropy._threshold_bounds(scale, g, bits)
        value = survival(scale, g, bits)
        assert lower <= value <= upper
        assert upper - lower < 2


# All words of a small size


def smallest_and_largest(law: DiscreteLaplace, word: int) -> tuple[int, int]:
    """The magnitudes of a word followed by ones for ever, and by zeros for ever."""
    return law._decide(word, lambda _: 2**64 - 1), law._decide(word, lambda _: 0)


SMALL = [(Fraction("1/3"), 12), (Fraction(1), 12), (Fraction("7/5"), 11), (Fraction("200/47"), 10), (Fraction(5), 10)]


@pytest.mark.parametrize(("scale", "bits"), SMALL)
def test_over_all_words_the_number_surely_at_or_above_g_is_the_floor_of_the_law(scale, bits):
    law = DiscreteLaplace(scale, word_bits=bits)
    table = table_of(scale, bits)
    bounds = [smallest_and_largest(law, word) for word in range(1, 2**bits)]
    surely = np.array([law._decide(0, lambda _: 2**64 - 1), *(small for small, _ in bounds)])
    possibly = np.array([large for _, large in bounds])  # word 0 followed by zeros is 0, below every threshold
    for g in range(1, len(table) + 3):
        floor = table[g - 1] if g <= len(table) else 0
        assert np.count_nonzero(surely >= g) == floor
        assert np.count_nonzero(possibly >= g) + 1 == floor + 1
    undecided = {word for word, (small, large) in enumerate(bounds, start=1) if small != large}
    assert undecided == set(table) - {0}


@pytest.mark.parametrize(("scale", "bits"), SMALL)
def test_over_all_words_the_vectorised_magnitude_is_the_slow_one(scale, bits):
    law = DiscreteLaplace(scale, word_bits=bits)
    words = np.arange(2**bits, dtype=np.uint64)
    for start in (0, 12_345):
        slow = [law._decide(word, entropy._further_bits(KEY, CELLS, start + word)) for word in range(2**bits)]
        assert law.magnitudes(words, KEY, CELLS, start).tolist() == slow


@pytest.mark.parametrize(("scale", "bits"), [(Fraction(1), 10), (Fraction(5), 10)])
def test_over_all_words_and_many_keys_the_whole_distribution_is_the_law(scale, bits):
    """Each word once per key: only the refinement of words on a threshold is left to chance, so the counts are tight."""
    law = DiscreteLaplace(scale, word_bits=bits)
    words, keys = np.arange(2**bits, dtype=np.uint64), 60
    found = np.concatenate([law.magnitudes(words, key_number(i), CELLS, 0) for i in range(keys)])
    for g in range(1, len(table_of(scale, bits)) + 2):
        above, share = survival(scale, g, bits), fraction_of(survival(scale, g, bits))
        slack = 5 * math.sqrt(keys * share * (1 - share)) + 0.5
        assert abs(np.count_nonzero(found >= g) - keys * float(above)) <= slack


# Words of full size


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), NIGHTLY, Fraction(1064)])
def test_words_on_and_beside_thresholds_get_the_slow_magnitude(scale):
    law = sampler(scale)
    table = entropy._thresholds(scale, 63)
    picked = table if len(table) < 60 else [*table[:20], *table[100 : len(table) : len(table) // 20], *table[-20:]]
    crafted = sorted({max(0, t + d) for t in picked for d in (-1, 0, 1)} | {0, 1, 2**63 - 1})
    words = np.array(crafted, dtype=np.uint64)
    slow = [law._decide(word, entropy._further_bits(KEY, CELLS, 77 + i)) for i, word in enumerate(crafted)]
    assert law.magnitudes(words, KEY, CELLS, 77).tolist() == slow
    position = {word: i for i, word in enumerate(crafted)}
    for t in table[:20]:
        g = table.index(t) + 1
        assert slow[position[t - 1]] == g and slow[position[t + 1]] == g - 1


@pytest.mark.parametrize("scale", [Fraction(1, 3), Fraction(1), NIGHTLY, Fraction(1064)])
def test_drawn_noise_is_the_slow_decision_on_the_words_of_the_key(scale):
    count = 400
    words = KEY.words(CELLS, 11, count)
    magnitude = [
        sampler(scale)._decide(int(word) >> 1, entropy._further_bits(KEY, CELLS, 11 + i)) for i, word in enumerate(words)
    ]
    expected = [-m if int(word) & 1 else m for m, word in zip(magnitude, words, strict=True)]
    assert sampler(scale).sample(KEY, CELLS, 11, count).tolist() == expected


def test_drawn_magnitudes_are_the_number_of_thresholds_above_the_word():
    table = np.array(table_of(NIGHTLY, 63)[::-1], dtype=np.uint64)
    words = KEY.words(CELLS, 0, 300_000)
    counted = len(table) - np.searchsorted(table, words >> np.uint64(1), side="right")
    assert np.array_equal(np.abs(draws(NIGHTLY, 300_000)), counted)


@pytest.mark.parametrize("g", [1, 7, 400])
def test_a_word_on_a_threshold_is_decided_by_the_further_bits_of_its_own_cell(g):
    word = table_of(NIGHTLY, 63)[g - 1]
    first, count = 900, 200
    found = sampler(NIGHTLY).magnitudes(np.full(count, word, dtype=np.uint64), KEY, CELLS, first)
    further = [int(KEY.words(CELLS + 1, (first + i) << 16, 1)[0]) for i in range(count)]
    threshold = survival(NIGHTLY, g, 127)
    assert found.tolist() == [g if ((word << 64) | bits) < threshold else g - 1 for bits in further]
    assert len(set(further)) == count


@pytest.mark.parametrize(("scale", "g"), [(Fraction(1), 2), (NIGHTLY, 5), (NIGHTLY, 60), (Fraction(1064), 300)])
def test_a_word_on_a_threshold_falls_below_it_as_often_as_the_law_says(scale, g):
    value, count = survival(scale, g, 63), 800
    found = sampler(scale).magnitudes(np.full(count, floor_of(value), dtype=np.uint64), KEY, CELLS, 0)
    assert set(found.tolist()) <= {g - 1, g}
    below, share = np.count_nonzero(found == g), fraction_of(value)
    assert stats.binomtest(below, count, share).pvalue > 1e-4
    assert min(stats.binomtest(below, count, wrong).pvalue for wrong in (0.0, 1.0, (share + 0.5) % 1)) < 1e-9


def test_a_decision_takes_more_bits_as_long_as_they_lie_on_the_threshold():
    value = floor_of(survival(NIGHTLY, 3, 63 + 64 * 3))
    word, *further = (value >> 64 * 3, *((value >> 64 * i) & (2**64 - 1) for i in (2, 1, 0)))
    asked = []

    def bits_of_the_threshold(drawn: int) -> int:
        asked.append(drawn)
        return [*further, 0][drawn]

    assert sampler(NIGHTLY)._decide(word, bits_of_the_threshold) == 3
    assert asked == [0, 1, 2, 3]


# The law of many draws


SCALES = [Fraction(1, 5), Fraction(1, 2), Fraction(1), Fraction(5), NIGHTLY, Fraction(1064)]


@pytest.mark.parametrize("scale", SCALES)
def test_the_self_check_accepts_the_deployed_sampler(scale):
    assert self_check(scale) > 1e-9


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("factor", ["0.85", "1.15"])
def test_the_self_check_rejects_a_scale_that_is_15_percent_off(scale, factor):
    with pytest.raises(SamplerBroken) as broken:
        self_check(scale, draw=sampler(scale * Fraction(factor)).sample)
    message = str(broken.value)
    assert (
        f"must follow the discrete Laplace law of scale {float(scale):g}, but a chi-square test of 1048576 draws gave" in message
    )
    assert "Nothing was drawn" in message
    assert broken.value.exit_code == 3


@pytest.mark.parametrize("factor", ["0.97", "1.03"])
def test_the_self_check_rejects_a_scale_that_is_3_percent_off(factor):
    with pytest.raises(SamplerBroken):
        self_check(NIGHTLY, draw=sampler(NIGHTLY * Fraction(factor)).sample)


WRONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one-sided": np.abs,
    "52 of 100 positive": lambda noise: np.where(np.arange(len(noise)) % 25 == 0, np.abs(noise), noise),
    "shifted by one": lambda noise: noise + 1,
    "without zero": lambda noise: np.where(noise == 0, 1, noise),
    "zero twice as often": lambda noise: np.where((noise == 1) & (np.arange(len(noise)) % 2 == 0), 0, noise),
    "no noise": np.zeros_like,
    "cut off at 4 scales": lambda noise: np.clip(noise, -85, 85),
    "even numbers": lambda noise: noise // 2 * 2,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_the_self_check_rejects_a_law_of_another_shape(wrong):
    with pytest.raises(SamplerBroken):
        self_check(NIGHTLY, draw=lambda *arguments: wrong(sampler(NIGHTLY).sample(*arguments)))


def test_the_self_check_rejects_rounded_gaussian_noise_of_the_same_variance():
    rng = np.random.default_rng(4)
    with pytest.raises(SamplerBroken):
        self_check(
            NIGHTLY, draw=lambda key, domain, start, count: np.rint(rng.normal(0, math.sqrt(2) * NIGHTLY, count)).astype(int)
        )


def test_the_self_check_gives_even_p_values():
    """Chi-square with the wrong bins or degrees of freedom would crowd them at 0 or 1."""
    p_values = [
        self_check(Fraction(5), draw=lambda _, domain, start, count, i=i: draws(Fraction(5), count, key_number(i)))
        for i in range(30)
    ]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


def test_the_self_check_rejects_missing_noise_at_a_small_scale():
    with pytest.raises(SamplerBroken):
        self_check(Fraction(1, 10), draw=lambda key, domain, start, count: np.zeros(count, dtype=np.int32))  # 95 expected


def test_the_self_check_uses_a_key_and_words_of_its_own():
    used = []

    def draw(key: NoiseKey, domain: int, start: int, count: int) -> np.ndarray:
        used.append((key._secret, domain))
        return sampler(NIGHTLY).sample(key, domain, start, count)

    self_check(NIGHTLY, draw)
    self_check(NIGHTLY, draw)
    assert used[0][0] != used[1][0]
    assert {domain for _, domain in used} == {SELF_CHECK}


@pytest.fixture(scope="module")
def four_million() -> np.ndarray:
    return draws(NIGHTLY, 1 << 22)


def decay(noise: np.ndarray, scale: Fraction) -> tuple[float, float]:
    """Estimate of log P(x) / P(x + 1) on x >= 1, and its standard error: two neighbouring stretches of equal length compared."""
    length = round(2 * scale)
    near = np.count_nonzero((noise >= 1) & (noise <= length))
    far = np.count_nonzero((noise > length) & (noise <= 2 * length))
    return math.log(near / far) / length, math.sqrt(1 / near + 1 / far) / length


def test_the_log_ratio_of_neighbouring_values_is_one_over_the_scale_on_both_sides(four_million):
    rate = float(1 / NIGHTLY)
    for side in (four_million, -four_million):
        estimate, error = decay(side, NIGHTLY)
        assert abs(estimate - rate) < 4 * error
        assert abs(estimate - rate / 0.97) > 4 * error and abs(estimate - rate / 1.03) > 4 * error


def test_every_log_ratio_of_neighbours_is_within_its_error(four_million):
    counts = np.bincount(four_million + 5_000, minlength=10_001)[5_000 - 60 : 5_000 + 61].astype(float)
    distance = np.abs(np.arange(-60, 61))
    ratio = np.log(counts[:-1] / counts[1:]) - np.diff(distance) / float(NIGHTLY)
    z = ratio / np.sqrt(1 / counts[:-1] + 1 / counts[1:])
    assert np.abs(z).max() < 4.5
    assert 0.7 < np.sqrt(np.mean(z**2)) < 1.3


def test_both_signs_of_every_value_are_equally_likely(four_million):
    positive, negative = (np.bincount(np.abs(side), minlength=80)[1:80].astype(float) for side in signs(four_million))
    statistic = np.sum((positive - negative) ** 2 / (positive + negative))
    assert stats.chi2.sf(statistic, 79) > 1e-4
    assert stats.binomtest(int(positive.sum()), int(positive.sum() + negative.sum())).pvalue > 1e-4


def signs(noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return noise[noise > 0], noise[noise < 0]


@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(1), Fraction(5), NIGHTLY])
def test_mean_and_variance_are_those_of_the_law(scale):
    noise = draws(scale, 1 << 21).astype(float)
    a = math.exp(-1 / scale)
    variance = 2 * a / (1 - a) ** 2
    assert abs(noise.mean()) < 4.5 * math.sqrt(variance / len(noise))
    error = math.sqrt(np.var(noise**2) / len(noise))
    assert abs(noise.var() - variance) < 4.5 * error
    if scale > 1:
        assert variance == pytest.approx(2 * float(scale) ** 2 - 1 / 6, rel=1e-3)


def test_sign_and_magnitude_and_neighbouring_draws_are_not_related(four_million):
    noise = four_million[: 1 << 20].astype(float)
    pairs = [(np.sign(noise), np.abs(noise)), *((noise[:-lag], noise[lag:]) for lag in (1, 2, 3, 576, CHUNK))]
    for one, other in pairs:
        assert abs(np.corrcoef(one, other)[0, 1]) < 4.5 / math.sqrt(len(one))


# The stream


def test_words_are_aes_256_of_domain_and_counter():
    domain, blocks = TOTALS, 5
    counters = b"".join(domain.to_bytes(4, "big") + i.to_bytes(12, "big") for i in range(blocks))
    stream = Cipher(AES(SECRET), ECB()).encryptor().update(counters)
    assert KEY.words(domain, 0, 2 * blocks).tolist() == np.frombuffer(stream, "<u8").tolist()


@pytest.mark.parametrize("start", [0, 1, 2, 7, CHUNK - 1, CHUNK, CHUNK + 1, 576 * 576 * 8 - 1])
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_any_stretch_of_words_is_the_same_as_in_the_whole_stream(start, count):
    whole = np.concatenate([KEY.words(CELLS, start - start % 2, 2), KEY.words(CELLS, start - start % 2 + 2, 20)])
    assert KEY.words(CELLS, start, count).tolist() == whole[start % 2 :][:count].tolist()


def test_the_same_key_and_index_draw_the_same_noise_however_it_is_cut():
    total = 2 * CHUNK + 4_321
    whole = draws(NIGHTLY, total)
    for cuts in ([0, 1, 2, 5, total], [0, CHUNK - 1, CHUNK, CHUNK + 1, total], [0, 3, 65_539, 131_001, total]):
        pieces = [sampler(NIGHTLY).sample(KEY, CELLS, a, b - a) for a, b in itertools.pairwise(cuts)]
        assert np.array_equal(np.concatenate(pieces), whole)


def test_words_on_a_threshold_are_decided_alike_however_they_are_cut():
    law, word = DiscreteLaplace(Fraction(5), word_bits=10), table_of(Fraction(5), 10)[3]
    words = np.full(101, word, dtype=np.uint64)
    whole = law.magnitudes(words, KEY, CELLS, 40)
    pieces = [law.magnitudes(words[a:b], KEY, CELLS, 40 + a) for a, b in itertools.pairwise([0, 1, 4, 57, 101])]
    assert np.array_equal(np.concatenate(pieces), whole) and len(set(whole.tolist())) == 2


def test_draws_stay_what_they_were():
    """Noise that changes with a version of heathaze would differ between a task and its retry on another machine."""
    found = sampler(NIGHTLY).sample(KEY, CELLS, 1_000_003, 12).tolist()
    assert found == [-34, -28, -39, 6, 9, 3, -6, 8, 8, 0, 0, -11]


def test_another_domain_or_key_draws_other_noise():
    domains = [entropy.CELLS, entropy.TOTALS, entropy.EVENT_COUNT, entropy.SALT, entropy.SELF_CHECK]
    streams = [KEY.words(domain + odd, 0, 1_000) for domain in domains for odd in (0, 1)] + [key_number(1).words(CELLS, 0, 1_000)]
    assert len(np.unique(np.concatenate(streams))) == 1_000 * len(streams)
    for other in (sampler(NIGHTLY).sample(KEY, TOTALS, 0, 10_000), draws(NIGHTLY, 10_000, key_number(1))):
        assert abs(np.corrcoef(other, draws(NIGHTLY, 10_000))[0, 1]) < 0.05


def test_a_fresh_key_is_never_the_last_one():
    assert len({NoiseKey.draw()._secret for _ in range(100)}) == 100


# One number at any scale


def test_a_single_draw_is_the_first_draw_of_the_table():
    for i in range(150):
        assert draw_single(NIGHTLY, key_number(i), TOTALS) == sampler(NIGHTLY).sample(key_number(i), TOTALS, 0, 1)[0]
        assert draw_single(NIGHTLY, key_number(i), TOTALS, 5) == sampler(NIGHTLY).sample(key_number(i), TOTALS, 5, 1)[0]


@pytest.mark.parametrize("scale", [10**6, 10**9])
def test_single_draws_at_a_huge_scale_have_the_quantiles_of_the_law(scale):
    count = 1_500
    found = np.array([draw_single(Fraction(scale), key_number(i), TOTALS) for i in range(count)], dtype=float)
    assert stats.kstest(found / scale, "laplace").pvalue > 1e-3
    assert stats.kstest(np.abs(found) / scale, "expon").pvalue > 1e-3
    for wrong in (0.8, 1.25):
        assert stats.kstest(np.abs(found) / (wrong * scale), "expon").pvalue < 1e-3
    assert stats.binomtest(int(np.count_nonzero(found > 0)), count).pvalue > 1e-3


def test_a_scale_that_is_not_above_0_is_refused():
    for scale in (Fraction(0), Fraction(-1)):
        with pytest.raises(ValueError, match="above 0"):
            DiscreteLaplace(scale)


# The key stays hidden


def shows_the_secret(text: str | bytes) -> bool:
    raw = text if isinstance(text, bytes) else text.encode()
    return any(
        form in raw
        for form in (SECRET, SECRET[:8], SECRET.hex().encode(), SECRET[:8].hex().encode(), repr(SECRET)[2:20].encode())
    )


def test_no_way_to_print_a_key_shows_it():
    from heathaze.collect.noise import NoiseSettings

    settings = NoiseSettings(NIGHTLY, KEY, Grid(0.0, 0.0, 1.0, 1.0, 2, 2), 1)
    texts = [repr(KEY), str(KEY), f"{KEY}", f"{KEY!r:>40}", "%s %r" % (KEY, KEY), repr([KEY]), repr({"key": KEY}), repr(settings)]  # noqa: UP031
    assert not any(shows_the_secret(text) for text in texts)
    assert all("NoiseKey(hidden)" in text for text in texts)


def test_errors_around_a_key_hide_it_even_when_they_are_pickled_or_traced():
    def broken(key: NoiseKey, *_: int) -> np.ndarray:
        return np.zeros(1 << 20, dtype=np.int32)

    with pytest.raises(SamplerBroken) as of_the_check:
        self_check(NIGHTLY, draw=lambda key, *rest: broken(KEY, *rest))
    with pytest.raises(ValueError) as of_the_length:
        NoiseKey(SECRET + b"x")
    with pytest.raises(RuntimeError) as of_a_caller:
        raise RuntimeError(f"drawing with {KEY} failed")
    for caught in (of_the_check, of_the_length, of_a_caller):
        shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=caught is of_the_check).format())
        assert not shows_the_secret(shown)
        assert not shows_the_secret(pickle.dumps(caught.value))
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# The attack on one published value


def numpy_laplace(units: int, scale: float) -> float:
    """What numpy's generator returns for the uniform number units / 2^53 (random_laplace in distributions.c)."""
    u = units * 2.0**-53
    return -scale * math.log(2.0 - u - u) if u >= 0.5 else scale * math.log(u + u)


def could_be(count: int, published: float, scale: float) -> bool:
    """Whether count + numpy laplace(scale) can give the published value, by trying every uniform number that comes near."""
    noise = published - count
    tail = math.exp(-abs(noise) / scale) / 2
    nearest = round((tail if noise < 0 else 1 - tail) * 2.0**53)
    return any(
        count + numpy_laplace(units, scale) == published for units in range(max(1, nearest - 40), min(2**53, nearest + 41))
    )


@pytest.mark.parametrize("scale", [1.0, 250.0])
def test_float_noise_lets_an_attacker_rule_out_a_count_from_one_value(scale):
    """The control: what heathaze would publish with float noise."""
    noise = np.random.default_rng(5).laplace(0.0, scale, 1_000)
    assert all(could_be(0, float(y), scale) for y in noise)
    assert all(could_be(1, float(1 + y), scale) for y in noise)
    ruled_out = np.mean([not could_be(1, float(y), scale) for y in noise])
    assert ruled_out > 0.7


@pytest.mark.parametrize("scale", [Fraction(1), NIGHTLY, Fraction(250)])
def test_discrete_noise_lets_an_attacker_rule_out_no_count(scale):
    """The same attack: count the words with which another count gives the published value; none of them has none."""
    ascending = [0, *reversed(entropy._thresholds(scale, 63))]
    edges = [2**63, *reversed(ascending)]
    words = np.array([a - b for a, b in itertools.pairwise(edges)], dtype=float)  # by magnitude
    noise = np.unique(draws(scale, 20_000)).astype(int)
    with_count = {count: words[np.abs(noise - count)] for count in (0, 1, 2, 3)}
    ruled_out = {count: np.count_nonzero(ways <= 0) for count, ways in with_count.items()}
    assert ruled_out == dict.fromkeys((0, 1, 2, 3), 0)
    # A magnitude above 0 shares its words between two signs.
    likelihood = np.log(with_count[0] * np.where(noise == 0, 2, 1) / with_count[1] / np.where(noise == 1, 2, 1))
    assert np.abs(likelihood).max() <= 1 / scale * (1 + 1e-9) + 1e-9
