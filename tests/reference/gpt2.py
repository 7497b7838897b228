"""GPT-2 as Hugging Face defines it, forward and backward by hand, in float64.

Blocks normalise before attention and before the MLP; matrices are [in, out]; the output matrix is the
token embedding; positions are learned. `p` holds the parameters by name, `grad` their gradients. Every
function that goes forward returns its result and what its partner that goes backward needs.
"""
import numpy as np

from arithmetic import PI, exp, log, product, tanh, total, transpose

EPSILON = 1e-5
GELU_SCALE, GELU_CUBIC = float(np.sqrt(np.float64(2 / PI))), 0.044715


def shapes(c):
    """The parameters of a model by name."""
    width, inner = c["n_embd"], 4 * c["n_embd"]
    result = {"wte.weight": (c["vocab_size"], width), "wpe.weight": (c["n_positions"], width)}
    for layer in range(c["n_layer"]):
        block = {"ln_1": (width,), "attn.c_attn": (width, 3 * width), "attn.c_proj": (width, width),
                 "ln_2": (width,), "mlp.c_fc": (width, inner), "mlp.c_proj": (inner, width)}
        for name, shape in block.items():
            result[f"h.{layer}.{name}.weight"] = shape
            result[f"h.{layer}.{name}.bias"] = shape[-1:]
    return result | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


def linear(p, name, x):
    return product(x, p[name + ".weight"]) + p[name + ".bias"]


def linear_backward(p, grad, name, x, dy):
    rows = dy.reshape(-1, dy.shape[-1])
    grad[name + ".weight"] = product(transpose(x.reshape(-1, x.shape[-1])), rows)
    grad[name + ".bias"] = total(rows, 0)
    return product(dy, transpose(p[name + ".weight"]))


def layer_norm(p, name, x):
    width = x.shape[-1]
    centred = x - total(x)[..., None] / width
    deviation = np.sqrt(total(centred * centred)[..., None] / width + EPSILON)
    normal = centred / deviation
    return normal * p[name + ".weight"] + p[name + ".bias"], (normal, deviation)


def layer_norm_backward(p, grad, name, saved, dy):
    normal, deviation = saved
    width = dy.shape[-1]
    grad[name + ".weight"] = total((dy * normal).reshape(-1, width), 0)
    grad[name + ".bias"] = total(dy.reshape(-1, width), 0)
    dn = dy * p[name + ".weight"]
    mean, slope = total(dn)[..., None] / width, total(dn * normal)[..., None] / width
    return (dn - mean - normal * slope) / deviation


def gelu(x):
    """The tanh form ("gelu_new")."""
    return 0.5 * x * (1 + tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x)))


def gelu_backward(x, dy):
    t = tanh(GELU_SCALE * (x + GELU_CUBIC * x * x * x))
    inside = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x)
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inside)


def softmax(x):
    raised = exp(x - x.max(axis=-1, keepdims=True))
    return raised / total(raised)[..., None]


def heads_of(x, heads):
    """[rows, tokens, width] to [rows, heads, tokens, width of a head]"""
    rows, tokens, width = x.shape
    return np.swapaxes(x.reshape(rows, tokens, heads, width // heads), 1, 2)


def joined(x):
    rows, heads, tokens, width = x.shape
    return np.swapaxes(x, 1, 2).reshape(rows, tokens, heads * width)


def attend(q, k, v):
    """Lets each token take the values of itself and of those before it. q, k and v are by heads."""
    scores = product(q, transpose(k)) / np.sqrt(np.float64(q.shape[-1]))
    later = np.triu(np.ones(scores.shape[-2:], bool), 1)
    weights = np.where(later, 0.0, softmax(np.where(later, -1e30, scores)))
    return joined(product(weights, v)), (q, k, v, weights)


def attend_backward(saved, dy):
    """Returns the gradients of q, k and v by heads."""
    q, k, v, weights = saved
    dy = heads_of(dy, q.shape[1])
    dweights = product(dy, transpose(v))
    dscores = weights * (dweights - total(weights * dweights)[..., None]) / np.sqrt(np.float64(q.shape[-1]))
    return product(dscores, k), product(transpose(dscores), q), product(transpose(weights), dy)


def attention(qkv, heads):
    return attend(*(heads_of(part, heads) for part in np.split(qkv, 3, axis=-1)))


def attention_backward(saved, dy):
    return np.concatenate([joined(part) for part in attend_backward(saved, dy)], axis=-1)


def block(p, at, x, heads):
    normal, norm_1 = layer_norm(p, at + "ln_1", x)
    mixed, attended = attention(linear(p, at + "attn.c_attn", normal), heads)
    x = x + linear(p, at + "attn.c_proj", mixed)
    normal_2, norm_2 = layer_norm(p, at + "ln_2", x)
    wide = linear(p, at + "mlp.c_fc", normal_2)
    bent = gelu(wide)
    saved = normal, norm_1, mixed, attended, normal_2, norm_2, wide, bent
    return x + linear(p, at + "mlp.c_proj", bent), saved


def block_backward(p, grad, at, saved, dx):
    normal, norm_1, mixed, attended, normal_2, norm_2, wide, bent = saved
    dwide = gelu_backward(wide, linear_backward(p, grad, at + "mlp.c_proj", bent, dx))
    dnormal = linear_backward(p, grad, at + "mlp.c_fc", normal_2, dwide)
    dx = dx + layer_norm_backward(p, grad, at + "ln_2", norm_2, dnormal)
    dqkv = attention_backward(attended, linear_backward(p, grad, at + "attn.c_proj", mixed, dx))
    dnormal = linear_backward(p, grad, at + "attn.c_attn", normal, dqkv)
    return dx + layer_norm_backward(p, grad, at + "ln_1", norm_1, dnormal)


def forward(p, c, ids):
    """The logits of ids [rows, tokens]."""
    x = p["wte.weight"][ids] + p["wpe.weight"][: ids.shape[1]]
    blocks = []
    for layer in range(c["n_layer"]):
        x, saved = block(p, f"h.{layer}.", x, c["n_head"])
        blocks.append(saved)
    last, norm = layer_norm(p, "ln_f", x)
    return product(last, transpose(p["wte.weight"])), (ids, blocks, last, norm)


def backward(p, c, saved, dlogits):
    """The gradients of all parameters."""
    ids, blocks, last, norm = saved
    grad = {}
    rows = dlogits.reshape(-1, dlogits.shape[-1])
    dwte = product(transpose(rows), last.reshape(-1, last.shape[-1]))  # as the output matrix
    dx = layer_norm_backward(p, grad, "ln_f", norm, product(dlogits, p["wte.weight"]))
    for layer in reversed(range(c["n_layer"])):
        dx = block_backward(p, grad, f"h.{layer}.", blocks[layer], dx)
    np.add.at(dwte, ids.reshape(-1), dx.reshape(-1, dx.shape[-1]))  # and as the embedding
    dwpe = np.zeros_like(p["wpe.weight"])
    dwpe[: ids.shape[1]] = total(dx, 0)
    return grad | {"wte.weight": dwte, "wpe.weight": dwpe}


def cross_entropy(logits, targets):
    """The loss of each token, and the gradient of their mean."""
    largest = logits.max(axis=-1, keepdims=True)
    sums = total(exp(logits - largest))
    hit = np.take_along_axis(logits, targets[..., None], -1)
    losses = log(sums) + (largest - hit)[..., 0]
    dlogits = softmax(logits)
    np.put_along_axis(dlogits, targets[..., None],
                      np.take_along_axis(dlogits, targets[..., None], -1) - 1, -1)
    return losses, dlogits / targets.size
