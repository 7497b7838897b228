"""Float64 arithmetic with the same bits on every machine.

IEEE 754 fixes the result of +, -, *, / and the square root to the last bit, and NumPy computes them so,
element by element. It does not fix exp, tanh, log and erf, which differ from one mathematics library to the
next, nor the order in which BLAS and numpy.sum add. So this file makes all others of those five, and
adds one after another. The loss is speed, which small models do not need.
"""
import numpy as np

LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
PI = float.fromhex("0x1.921fb54442d18p+1")


def total(x, axis=-1):
    """The sum over one axis."""
    result = np.zeros(np.delete(x.shape, axis))
    for part in np.moveaxis(x, axis, 0):
        result = result + part
    return result


def total_of_all(x):
    return float(total(x.reshape(-1)))


def product(a, b):
    """The matrix product over the last two axes."""
    result = a[..., :, :1] * b[..., :1, :]
    for k in range(1, a.shape[-1]):
        result = result + a[..., :, k : k + 1] * b[..., k : k + 1, :]
    return result


def transpose(x):
    return np.swapaxes(x, -1, -2)


def polynomial(x, coefficients):
    """By Horner's rule; the highest power first."""
    result = np.zeros_like(x)
    for coefficient in coefficients:
        result = result * x + coefficient
    return result


def reciprocal_factorials(highest):
    factorial, result = 1, [1.0]
    for n in range(1, highest + 1):
        factorial *= n
        result.insert(0, 1.0 / factorial)
    return result


def exp(x):
    x = np.clip(np.asarray(x, np.float64), -700, 700)
    halvings = np.rint(x / LN2_HIGH)
    rest = (x - halvings * LN2_HIGH) - halvings * LN2_LOW  # at most half of ln 2, exact to the last bits
    return np.ldexp(polynomial(rest, reciprocal_factorials(14)), halvings.astype(np.int32))


def log(x):
    fraction, exponent = np.frexp(np.asarray(x, np.float64))
    low = fraction < 0.7
    fraction, exponent = np.where(low, 2 * fraction, fraction), np.where(low, exponent - 1, exponent)
    s = (fraction - 1) / (fraction + 1)  # ln f = 2 artanh s
    series = polynomial(s * s, [1 / n for n in range(29, 0, -2)])
    return exponent * LN2_HIGH + (exponent * LN2_LOW + 2 * s * series)


def tanh(x):
    shrunk = exp(-2 * np.abs(x))
    return np.sign(x) * ((1 - shrunk) / (1 + shrunk))


def erf(x):
    """Sums the series erf x = 2 / sqrt(pi) exp(-x^2) (x + 2 x^3 / 3 + 4 x^5 / (3 5) + 8 x^7 / (3 5 7) + ...)."""
    x = np.clip(x, -6, 6)  # beyond 6, erf is 1 to the last bit
    square, odd, coefficients = x * x, 1, [1.0]
    for n in range(1, 130):
        odd *= 2 * n + 1
        coefficients.insert(0, 2**n / odd)
    return 2 / np.sqrt(np.float64(PI)) * exp(-square) * (x * polynomial(square, coefficients))


def cos(x):
    """For x from 0 to pi."""
    quarter = x / 4  # the series is for small numbers; cos 2y = 2 cos(y)^2 - 1
    result = float(polynomial(np.float64(-quarter * quarter), reciprocal_factorials(22)[::2]))
    for _ in range(2):
        result = 2 * result * result - 1
    return result


def power(base, exponent):
    result = 1.0
    for _ in range(exponent):
        result *= base
    return result


class Random:
    """SplitMix64: whole numbers alone, so that every machine draws the same."""

    def __init__(self, seed):
        self.state = seed

    def words(self, count):
        step = 0x9E3779B97F4A7C15
        with np.errstate(over="ignore"):  # it is meant to wrap
            z = np.uint64(self.state) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(step)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        self.state = (self.state + count * step) % 2**64
        return z ^ (z >> np.uint64(31))

    def below(self, limit, count):
        """Whole numbers from 0 to limit - 1."""
        return (self.words(count) % np.uint64(limit)).astype(np.int64)

    def bell(self, shape):
        """Numbers of mean 0 and variance 1: the sum of four of 16 bits is close to a normal deviate."""
        words = self.words(int(np.prod(shape)))
        four = [(words >> np.uint64(bits)) & np.uint64(0xFFFF) for bits in (0, 16, 32, 48)]
        sums = (four[0] + four[1] + four[2] + four[3]).astype(np.float64)
        return ((sums / 65536 - 2) * np.sqrt(np.float64(3))).reshape(shape)
