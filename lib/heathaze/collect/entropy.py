"""The only source of randomness that protects people: exact discrete Laplace noise from AES-256-CTR.

The law. X takes the integer x with probability (1 - a) / (1 + a) * a^|x|, where a = exp(-1/s) and the scale
s = sensitivity / epsilon is an exact rational. A count with such noise is epsilon-differentially private for that
sensitivity, with no floating point anywhere between the data and what is stored.

The draw. P(|X| >= g) = 2 a^g / (1 + a) for g >= 1. One 64-bit word of AES-CTR keystream per cell gives a sign bit and
63 bits of a uniform U in [0, 1). The magnitude is the number of g with U < P(|X| >= g). The thresholds
T_g = floor(2^63 P(|X| >= g)) are certified by integer intervals (`_exp_bounds`): a word below T_g is surely below the
threshold, a word above it is surely not, and a word equal to it (one draw in about 10^16) gets more bits until the
comparison is decided. So every draw has the law above exactly, given that AES-CTR is a uniform stream.

The key. 32 bytes of os.urandom, bound to one ledger entry and one input; the cell index is the counter, so a task that
Spark runs twice draws the same noise twice. `KeyStore` keeps it until the noisy table is committed and then destroys it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy.special import chdtrc, pdtr, pdtrc

from heathaze.errors import InputError, KeyDestroyed, SamplerBroken

WORD_BITS = 63
"""Bits of a word that decide the magnitude; the 64th is the sign."""

CHUNK = 1 << 16
"""Words per vectorised step: 512 KB, so that a step stays in the cache."""

# Domains of the keystream. No two draws share a word.
CELLS, TOTALS, EVENT_COUNT, SALT, SELF_CHECK, MAP = range(0, 12, 2)
"""Even numbers; domain + 1 holds the further bits of a draw that its first word did not decide."""


class NoiseKey:
    """A key whose bytes are never shown."""

    def __init__(self, secret: bytes):
        if len(secret) != 32:
            raise ValueError("a noise key has 32 bytes")
        self._secret = secret

    @classmethod
    def draw(cls) -> NoiseKey:
        return cls(os.urandom(32))

    def __repr__(self) -> str:
        return "NoiseKey(hidden)"

    def words(self, domain: int, start: int, count: int) -> np.ndarray:
        """Words start .. start + count of the keystream of `domain`, as uint64."""
        first_block, skipped = divmod(start, 2)
        counter = (domain << 96) | first_block
        cipher = Cipher(AES(self._secret), CTR(counter.to_bytes(16, "big"))).encryptor()
        stream = cipher.update(bytes(8 * (count + skipped)))
        return np.frombuffer(stream, "<u8")[skipped:]

    def salt(self) -> int:
        """The 64-bit salt of the sampling hash. It protects nobody: the bound k holds for every salt."""
        return int(self.words(SALT, 0, 1)[0].astype(np.int64))


class DiscreteLaplace:
    """Exact sampler of the discrete Laplace law of rational scale."""

    def __init__(self, scale: Fraction, word_bits: int = WORD_BITS):
        if scale <= 0:
            raise ValueError("the scale must be above 0")
        self.scale = scale
        self.word_bits = word_bits
        # The leading 0 stands for all thresholds beyond the table: they lie in word 0.
        self._ascending = np.array([0, *reversed(_thresholds(scale, word_bits))], dtype=np.uint64)
        self._shift = np.uint64(max(0, word_bits - 16))
        self._guide = self._make_guide()

    def _make_guide(self) -> np.ndarray:
        """Magnitude by the top 16 bits of a word, -1 where those do not decide it.

        A bucket decides when no threshold lies in it, so a word that equals a threshold is always undecided.
        """
        buckets = np.arange(1 << (self.word_bits - int(self._shift)), dtype=np.uint64)
        first = buckets << self._shift
        last = first | ((np.uint64(1) << self._shift) - np.uint64(1))
        below_first = np.searchsorted(self._ascending, first, side="left")
        upto_last = np.searchsorted(self._ascending, last, side="right")
        guide = np.where(below_first == upto_last, len(self._ascending) - upto_last, -1)
        return guide.astype(np.int32)

    def sample(self, key: NoiseKey, domain: int, start: int, count: int) -> np.ndarray:
        """Draws start .. start + count of `domain`, as int32. The same arguments give the same draws, for ever."""
        noise = np.empty(count, dtype=np.int32)
        for offset in range(0, count, CHUNK):
            size = min(CHUNK, count - offset)
            words = key.words(domain, start + offset, size)
            magnitude = self.magnitudes(words >> np.uint64(1), key, domain, start + offset)
            negative = -(words & np.uint64(1)).astype(np.int32)
            np.subtract(magnitude ^ negative, negative, out=noise[offset : offset + size])
        return noise

    def magnitudes(self, words: np.ndarray, key: NoiseKey, domain: int, start: int) -> np.ndarray:
        """Magnitude of each word (`word_bits` bits); `start` is the index of the first, for further bits."""
        magnitude = self._guide.take((words >> self._shift).astype(np.intp))
        undecided = np.flatnonzero(magnitude < 0)
        if len(undecided):
            rest = words[undecided]
            position = np.searchsorted(self._ascending, rest, side="right")
            magnitude[undecided] = len(self._ascending) - position
            touching = self._ascending[position - 1] == rest
            for i in undecided[touching]:
                magnitude[i] = self._decide(int(words[i]), _further_bits(key, domain, start + int(i)))
        return magnitude

    def single(self, key: NoiseKey, domain: int, index: int) -> int:
        """Draw `index` of `domain` for one number, of any size and at any scale: no table, no saturation."""
        word = int(key.words(domain, index, 1)[0])
        magnitude = self._decide(word >> 1, _further_bits(key, domain, index))
        return -magnitude if word & 1 else magnitude

    def _decide(self, word: int, more: Callable[[int], int]) -> int:
        """The magnitude of one word, with 64 further bits whenever the bits so far lie on a threshold."""
        bits, drawn = self.word_bits, 0
        low, high = 0, 1
        doubling = True
        while doubling or high - low > 1:
            g = high if doubling else (low + high) // 2
            lower, upper = _threshold_bounds(self.scale, g, bits)
            if word + 1 <= lower:
                low = g
                if doubling:
                    high = 2 * g
            elif word >= upper:
                high, doubling = g, False
            else:
                word, bits, drawn = (word << 64) | more(drawn), bits + 64, drawn + 1
        return low


@functools.lru_cache(maxsize=16)
def sampler(scale: Fraction) -> DiscreteLaplace:
    """The sampler of `scale`, made once per process: its table has about 44 entries per unit of scale."""
    return DiscreteLaplace(scale)


def draw_single(scale: Fraction, key: NoiseKey, domain: int, index: int = 0) -> int:
    """One draw without a table: for totals and N, whose scale may be huge."""
    one = DiscreteLaplace.__new__(DiscreteLaplace)
    one.scale, one.word_bits = scale, WORD_BITS
    return one.single(key, domain, index)


def self_check(scale: Fraction, draw: Callable[[NoiseKey, int, int, int], np.ndarray] | None = None) -> float:
    """Chi-square test of the deployed sampler at `scale`, with a key of its own; returns the p-value.

    A million draws against the law computed apart from the sampler's table. A right sampler fails once in a billion
    runs; a scale wrong by 3 % is caught almost surely. `draw` replaces the sampler in tests.
    """
    count = 1 << 20
    noise = (draw or sampler(scale).sample)(NoiseKey.draw(), SELF_CHECK, 0, count)
    s = float(scale)
    tail = [1.0]  # P(|X| >= g) at the edges of the bins
    edges = [0, 1]
    while True:
        survival = 2 * math.exp(-edges[-1] / s) / (1 + math.exp(-1 / s))
        if survival * count < 200:
            break
        tail.append(survival)
        edges.append(edges[-1] + max(1, round(s / 8)))
    edges.pop()
    mass = -np.diff(np.array([*tail, 0.0]))
    magnitude_bin = np.searchsorted(edges, np.abs(noise), side="right") - 1
    if len(mass) == 1:
        # So little noise that only whether a draw is 0 can be counted.
        expected_other = count * 2 * math.exp(-1 / s) / (1 + math.exp(-1 / s))
        other = np.count_nonzero(noise)
        p_value = float(min(1.0, 2 * min(pdtr(other, expected_other), pdtrc(other - 1, expected_other) if other else 1.0)))
    else:
        # Bin 0 is the value 0, which has no sign; the others count once for each sign.
        observed = np.concatenate(
            [
                np.bincount(magnitude_bin[noise >= 0], minlength=len(mass)),
                np.bincount(magnitude_bin[noise < 0], minlength=len(mass))[1:],
            ]
        )
        expected = count * np.concatenate([mass[:1], mass[1:] / 2, mass[1:] / 2])
        statistic = float(np.sum((observed - expected) ** 2 / expected))
        p_value = float(chdtrc(len(expected) - 1, statistic))
    if p_value < 1e-9:
        raise SamplerBroken(
            f"the noise sampler must follow the discrete Laplace law of scale {s:g}, but a chi-square test of {count} draws "
            f"gave p = {p_value:.1e}. Nothing was drawn for a release; check the installed numpy and cryptography packages."
        )
    return p_value


class KeyStore:
    """Keeps the key of each ledger entry until its noisy table is committed.

    The key outlives a crash, so that the next run draws the same noise: files that the crash left behind then hold
    nothing that the release does not. A destroyed key leaves a mark, so that no second key can be drawn for its entry.
    """

    _DESTROYED = b"destroyed"

    def __init__(self, directory: str | Path):
        self._directory = Path(directory)

    def prepare(self) -> None:
        """Make the folder of the keys, so that a charge is never followed by a key that cannot be kept."""
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"noise keys must be kept in a folder, but {self._directory} cannot be one: {error}.") from None

    def living(self) -> list[str]:
        """The entries whose keys have not been destroyed."""
        names = [path.name for path in self._directory.iterdir()] if self._directory.is_dir() else []
        return [name for name in names if not name.startswith(".") and not self._is_destroyed(name)]

    def _is_destroyed(self, entry_id: str) -> bool:
        return (self._directory / entry_id).read_bytes() == self._DESTROYED

    def key_of(self, entry_id: str) -> NoiseKey:
        """The key of this entry, drawn now if it has none yet."""
        self.prepare()
        path = self._directory / entry_id
        if not path.exists():
            fresh = self._write(os.urandom(32), entry_id)
            try:
                os.link(fresh, path)  # atomic, and fails if another process was first
            except (FileExistsError, FileNotFoundError):
                pass  # another process made the key, or has destroyed it by now
            finally:
                fresh.unlink(missing_ok=True)
        content = path.read_bytes()
        if content == self._DESTROYED:
            raise KeyDestroyed(
                f"the noise key of entry {entry_id} must not be used again: it was destroyed when the noisy table was committed."
            )
        return NoiseKey(content)

    def destroy(self, entry_id: str) -> None:
        """Replace the key by a mark that it existed."""
        self.prepare()
        os.replace(self._write(self._DESTROYED, entry_id), self._directory / entry_id)
        for leftover in self._directory.glob(f".{entry_id}.*"):  # of a process that died while it made the key
            leftover.unlink(missing_ok=True)

    def _write(self, content: bytes, entry_id: str) -> Path:
        path = self._directory / f".{entry_id}.{os.getpid()}.{os.urandom(4).hex()}"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return path


def _further_bits(key: NoiseKey, domain: int, index: int) -> Callable[[int], int]:
    return lambda drawn: int(key.words(domain + 1, (index << 16) + drawn, 1)[0])


def _thresholds(scale: Fraction, bits: int) -> list[int]:
    """floor(2^bits * 2 a^g / (1 + a)) for g = 1, 2, ... as long as it is above 0, each one certified."""
    slack = 64
    while True:
        precision = bits + slack
        one = 1 << precision
        low, high = _exp_bounds(1 / scale, precision)
        numerator_low, numerator_high = 2 * low, 2 * high
        denominator_low, denominator_high = one + low, one + high
        table: list[int] = []
        while True:
            floor_low = (numerator_low << bits) // denominator_high
            floor_high = (numerator_high << bits) // denominator_low
            if floor_low != floor_high:
                break
            if floor_low == 0:
                return table
            table.append(floor_low)
            numerator_low = numerator_low * low >> precision
            numerator_high = -(-numerator_high * high >> precision)
        slack += 64


def _threshold_bounds(scale: Fraction, g: int, bits: int) -> tuple[int, int]:
    """Integers lower <= 2^bits * 2 a^g / (1 + a) <= upper, less than 2 apart."""
    precision = bits + 64
    one = 1 << precision
    power_low, power_high = _exp_bounds(g / scale, precision)
    a_low, a_high = _exp_bounds(1 / scale, precision)
    lower = (2 * power_low << bits) // (one + a_high)
    upper = -((-2 * power_high << bits) // (one + a_low))
    return lower, upper


def _exp_bounds(x: Fraction, precision: int) -> tuple[int, int]:
    """Integers low <= 2^precision * exp(-x) <= high for x >= 0, by integer arithmetic rounded outwards.

    exp(-x) = exp(-x / 2^r)^(2^r) with x / 2^r <= 1/2; the alternating series of the inner exponential lies between its
    partial sums. Every division rounds down for the lower end and up for the upper one.
    """
    halvings = max(0, math.ceil(x).bit_length() + 1)
    guard = precision + 2 * halvings + 16
    numerator, denominator = x.numerator << guard, x.denominator << halvings
    y_low, y_high = numerator // denominator, -(-numerator // denominator)
    term_low = term_high = 1 << guard
    low = high = 0
    i = 0
    while term_high > 1:
        if i % 2 == 0:
            low, high = low + term_low, high + term_high
        else:
            low, high = low - term_high, high - term_low
        i += 1
        term_low = (term_low * y_low >> guard) // i
        term_high = -((-term_high * y_high >> guard) // i)
    low, high = max(0, low - term_high), high + term_high
    for _ in range(halvings):
        low, high = low * low >> guard, -(-high * high >> guard)
    shift = guard - precision
    return low >> shift, -(-high >> shift)
